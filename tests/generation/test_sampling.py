"""Samplers and logits processors against exact distributions and against `transformers`."""

import keras
import keras_hub
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from keras import ops
from transformers.generation import logits_process as hf

import keras_transformer as kt
from keras_transformer.generation import processors
from keras_transformer.generation.processors import Text
from keras_transformer.generation.sampling import filtered, sample
from tests.backend import compiled, numpy
from tests.generation.models import VOCABULARY_SIZE, Letters, Traced, logits_of, ragged, stacked_gpt, translator

PROMPTS = ragged((5, 2, 7))


def kept(logits, **options):
    """Which tokens the filters leave, bool (B, V)."""
    told = {name: ops.convert_to_tensor(value) for name, value in options.items()}
    return numpy(filtered(ops.convert_to_tensor(logits), tuple(options), told)) > 0


class TestFilters:
    @pytest.mark.parametrize("top_p, expected", [(0.6, 2), (0.85, 3), (1e-9, 1), (1.0, 4)])
    @pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
    def test_top_p_keeps_while_the_mass_before_a_token_is_below(self, top_p, expected, dtype):
        """B25."""
        probabilities = np.asarray([0.5, 0.3, 0.15, 0.05], "float32")
        order = np.asarray([2, 0, 3, 1])
        logits = ops.cast(ops.cast(np.log(probabilities[order])[None], dtype), "float32")
        assert (kept(logits, top_p=np.float32(top_p))[0] == (order < expected)).all()

    @pytest.mark.parametrize(
        "name, value, warper",
        [
            ("top_k", 5, hf.TopKLogitsWarper),
            ("top_p", 0.7, hf.TopPLogitsWarper),
            ("min_p", 0.2, hf.MinPLogitsWarper),
            ("typical_p", 0.6, hf.TypicalLogitsWarper),
        ],
    )
    def test_as_transformers(self, name, value, warper):
        logits = np.random.default_rng(0).normal(0, 2, (50, 30)).astype("float32")
        theirs = warper(value)(None, torch.tensor(logits)).isfinite().numpy()
        ours = kept(logits, **{name: np.asarray(value, "int32" if name == "top_k" else "float32")})
        assert (ours == theirs).all()

    def test_all_together_as_transformers(self):
        logits = np.random.default_rng(1).normal(0, 2, (50, 30)).astype("float32")
        x = torch.tensor(logits)
        warpers = (hf.TemperatureLogitsWarper(1.5), hf.TopKLogitsWarper(12), hf.TopPLogitsWarper(0.8))
        for warper in (*warpers, hf.MinPLogitsWarper(0.1)):
            x = warper(None, x)
        options = {"temperature": np.float32(1.5), "top_k": np.int32(12), "top_p": np.float32(0.8)}
        assert (kept(logits, **options, min_p=np.float32(0.1)) == x.isfinite().numpy()).all()

    def test_top_k_above_the_vocabulary_keeps_all(self):
        assert kept(np.zeros((1, 4), "float32"), top_k=np.int32(9)).all()


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.2}, {"typical_p": 0.7}],
    ids=str,
)
def test_frequencies_are_those_of_the_distribution(options):
    """Chi-square over 20,000 draws, below its 0.999 quantile; what is filtered out is never drawn."""
    draws = 20_000
    logits = np.asarray([1.0, 0.3, -0.5, 2.0, -3.0, 0.0, -30.0], "float32")
    told = {name: np.asarray(value, "int32" if name == "top_k" else "float32") for name, value in options.items()}
    noise = np.random.default_rng(0).random(draws, "float32")

    def draw(noise):
        rows = ops.broadcast_to(ops.convert_to_tensor(logits), (draws, len(logits)))
        return sample(rows, noise, tuple(options), {name: ops.convert_to_tensor(x) for name, x in told.items()})

    counts = np.bincount(numpy(compiled(draw)(ops.convert_to_tensor(noise))), minlength=len(logits))
    probabilities = np.exp(logits.astype("float64") / options.get("temperature", 1.0))
    if set(options) - {"temperature"}:
        probabilities = probabilities * kept(logits[None], **told)[0]
    expected = draws * probabilities / probabilities.sum()
    assert (counts[expected == 0] == 0).all()
    likely = expected > 5
    statistic = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    assert statistic < [0, 10.8, 13.8, 16.3, 18.5, 20.5, 22.5][likely.sum() - 1]


def test_noise_at_either_end_draws_a_possible_token():
    logits = np.asarray([[-np.inf, 0.0, 1.0, -np.inf]] * 2, "float32")
    noise = np.asarray([0.0, np.nextafter(np.float32(1), np.float32(0))], "float32")
    assert numpy(sample(ops.convert_to_tensor(logits), ops.convert_to_tensor(noise), (), {})).tolist() == [1, 2]


def text_of(rows, vocabulary_size, room=12, num_new=0):
    token_ids = np.full((len(rows), room), 3, "int32")
    counts = np.zeros((len(rows), vocabulary_size), "int32")
    for i, row in enumerate(rows):
        token_ids[i, : len(row)] = row
        counts[i] = np.bincount(row, minlength=vocabulary_size)
    lengths = np.asarray([len(row) for row in rows], "int32")
    return Text(*map(ops.convert_to_tensor, (token_ids, lengths, np.int32(num_new), counts)))


class TestProcessors:
    def test_repetition_penalty(self):
        """B28: positive logits are divided, negative multiplied, once for each id; what pads a row is no part of it."""
        text = text_of([[0, 1, 0]], 3)
        logits = ops.convert_to_tensor([[2.0, -1.0, 0.5]])
        assert numpy(processors.repetition_penalty(logits, text, 2.0)).tolist() == [[1.0, -2.0, 0.5]]
        assert numpy(processors.presence_penalty(logits, text, 0.5)).tolist() == [[1.5, -1.5, 0.5]]
        assert numpy(processors.frequency_penalty(logits, text, 0.5)).tolist() == [[1.0, -1.5, 0.5]]

    def test_no_repeat_ngram(self):
        """B28: after 4 5 4 there is no 5, and nothing else is banned."""
        logits = ops.zeros((2, 8))
        banned = np.isinf(numpy(processors.no_repeat_ngram(logits, text_of([[4, 5, 4], [1]], 8), 2)))
        assert np.argwhere(banned).tolist() == [[0, 5]]

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_no_repeat_ngram_as_transformers(self, size):
        rows = np.random.default_rng(0).integers(0, 4, (20, 9))
        theirs = hf.NoRepeatNGramLogitsProcessor(size)(torch.tensor(rows), torch.zeros(20, 4))
        ours = processors.no_repeat_ngram(ops.zeros((20, 4)), text_of(rows, 4), size)
        assert (np.isinf(numpy(ours)) == theirs.isinf().numpy()).all()

    def test_bad_words_as_transformers(self):
        rows = np.random.default_rng(0).integers(0, 4, (20, 9))
        words = [[3], [1, 2], [2, 0, 1]]
        theirs = hf.NoBadWordsLogitsProcessor(words)(torch.tensor(rows), torch.zeros(20, 4))
        table = np.asarray([[-1, -1, 3], [-1, 1, 2], [2, 0, 1]], "int32")
        ours = processors.bad_words(ops.zeros((20, 4)), text_of(rows, 4), ops.convert_to_tensor(table))
        assert (np.isinf(numpy(ours)) == theirs.isinf().numpy()).all()


class TestGenerate:
    def test_the_same_seed_draws_the_same_text_and_another_call_another(self):
        options = {"temperature": 3.0, "top_k": 20}
        first, again = (kt.generate(stacked_gpt(), PROMPTS, 20, seed=3, **options) for _ in range(2))
        assert (first == again).all()
        others = [kt.generate(stacked_gpt(), PROMPTS, 20, **options) for _ in range(2)]
        assert (others[0] != others[1]).any() and (others[0] != first).any()

    @pytest.mark.parametrize("cache", [True, False])
    def test_a_row_draws_the_same_in_any_batch(self, cache):
        """The noise of a row depends on the seed and its place alone, and not on how the rest is cut."""
        options = {"sampler": "sample", "seed": 3, "cache": cache}
        whole = kt.generate(stacked_gpt(), PROMPTS, 9, **options)
        first = kt.generate(stacked_gpt(), PROMPTS[:1], 9, **options)
        cut = kt.generate(stacked_gpt(), PROMPTS, 9, batch_size=1, **options)
        assert (whole[0, :14] == first[0]).all() and (whole == cut).all()
        longer = kt.generate(stacked_gpt(), PROMPTS[:1], 80, **{**options, "cache": True})
        assert (longer[0, :14] == first[0]).all()

    def test_it_is_the_inverse_of_the_distribution_at_the_seeds_noise(self):
        model, prompt = stacked_gpt(), PROMPTS[0]
        noise = np.random.default_rng([7, 0, 0]).random(5, "float32")
        row = list(prompt)
        for u in noise:
            logits = logits_of(model, row)[-1] / 0.7
            cumulative = np.cumsum(np.exp(logits - logits.max()))
            row.append(int(np.searchsorted(cumulative, u * cumulative[-1], side="right")))
        assert kt.generate(model, [prompt], 5, temperature=0.7, seed=7)[0].tolist() == row

    def test_several_samples_of_a_prompt_share_its_prefill(self):
        options = {"num_return_sequences": 4, "sampler": "sample", "seed": 0, "stop_token_id": []}
        texts = kt.generate(translator(), PROMPTS, 8, **options)
        assert len(texts) == 12 and len({tuple(text) for text in texts.tolist()}) > 6
        alone = kt.generate(translator(), PROMPTS[:1], 8, **options)
        assert (texts[:4] == alone).all()

    def test_log_probabilities_are_those_of_the_model(self):
        model, prompt = stacked_gpt(), PROMPTS[0]
        result = kt.generate(model, [prompt], 4, temperature=2.0, seed=1, repetition_penalty=1.5, return_dict=True)
        logits = logits_of(model, result["token_ids"][0])
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        tokens = result["token_ids"][0, len(prompt) :]
        expected = log_probs[np.arange(len(prompt) - 1, len(prompt) + 3), tokens]
        np.testing.assert_allclose(result["log_probs"][0], expected, atol=1e-5)

    def test_greedy_with_processors_as_by_hand(self):
        model, stop = stacked_gpt(), 4
        options = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 6}
        options["bad_words_ids"] = [[9], 11]
        text = kt.generate(model, PROMPTS[:1], 12, stop_token_id=stop, **options)[0].tolist()
        row = list(PROMPTS[0])
        processor = transformers.LogitsProcessorList(
            [
                hf.RepetitionPenaltyLogitsProcessor(1.3),
                hf.MinNewTokensLengthLogitsProcessor(len(row), 6, stop, device="cpu"),
                hf.NoBadWordsLogitsProcessor([[9], [11]]),
                hf.NoRepeatNGramLogitsProcessor(2),
            ]
        )
        while len(row) < 17 and row[-1] != stop:
            logits = torch.tensor(logits_of(model, row)[-1:])
            row.append(int(processor(torch.tensor([row]), logits).argmax()))
        assert text[: len(row)] == row

    def test_allowed_tokens_and_a_processor_of_the_user(self):
        mask = np.isin(np.arange(VOCABULARY_SIZE), [5, 6])
        for allowed in ([5, 6], mask):
            text = kt.generate(stacked_gpt(), PROMPTS[:1], 6, allowed_token_ids=allowed)[0, 5:]
            assert set(text.tolist()) <= {5, 6}

        def only_successors(logits, text):
            allowed = ops.equal(ops.arange(logits.shape[-1]), text.last(1) + 1)
            return ops.where(allowed, logits, float("-inf"))

        text = kt.generate(stacked_gpt(), [[5]], 4, logits_processors=[only_successors])
        assert text.tolist() == [[5, 6, 7, 8, 9]]

    @pytest.mark.parametrize("sampler", ["greedy", "sample"])
    def test_a_row_ends_where_every_token_is_banned(self, sampler):
        def nothing_after_two(logits, text):
            return ops.where(text.num_new < 2, logits, float("-inf"))

        options = {"sampler": sampler, "logits_processors": [nothing_after_two], "return_dict": True}
        result = kt.generate(stacked_gpt(), PROMPTS[:2], 6, **options)
        assert result["lengths"] == [2, 2]

    def test_options_of_different_samplers_do_not_mix(self):
        for options, message in (
            ({"temperature": 0.7, "num_beams": 3}, "do not go together"),
            ({"sampler": "beam", "top_k": 3}, "top_k"),
            ({"temperature": 0.0}, "temperature=0.0"),
            ({"top_p": 1.5}, "top_p=1.5"),
            ({"top_k": 0}, "top_k=0"),
            ({"num_return_sequences": 2}, "num_return_sequences=2"),
            ({"num_beams": 2, "num_return_sequences": 3}, "num_beams=2"),
            ({"heat": 1.0}, "'heat'"),
            ({"sampler": "magic"}, "sampler='magic'"),
            ({"bad_words_ids": [[VOCABULARY_SIZE]]}, "bad_words_ids"),
            ({"bad_words_ids": [[]]}, "bad_words_ids"),
            ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
            ({"num_beams": 2, "stop_strings": ["a"]}, "stop_strings"),
            ({"early_stopping": 1}, "early_stopping"),
            ({"cache": 0}, "cache=0"),
        ):
            with pytest.raises(ValueError, match=message):
                kt.generate(stacked_gpt(), PROMPTS, 4, **options)


def test_processors_see_rows_in_the_callers_order():
    def each_its_own(logits, text):
        own = ops.arange(3, 7)  # the id that each row must write
        return ops.where(ops.equal(ops.arange(VOCABULARY_SIZE), ops.expand_dims(own, -1)), logits, float("-inf"))

    texts = kt.generate(stacked_gpt(), [[5], [5, 6, 7], [5, 6], [8]], 1, logits_processors=[each_its_own])
    assert [row[length] for row, length in zip(texts.tolist(), (1, 3, 2, 1), strict=True)] == [3, 4, 5, 6]


def test_other_values_compile_nothing():
    if keras.backend.backend() == "torch":
        return  # nothing is compiled there
    ids = keras.Input((None,), dtype="int32")
    table = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None)
    model = keras.Model(ids, table(kt.layers.DecoderBlock(2, 32)(Traced()(table(ids))), reverse=True))
    options = {"repetition_penalty": 1.2, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_new_tokens": 2, "seed": 1}
    kt.generate(model, PROMPTS, 6, **options)
    del Traced.TRACES[:]
    others = {"repetition_penalty": 1.5, "temperature": 1.7, "top_k": 9, "top_p": 0.5, "min_new_tokens": 4, "seed": 2}
    kt.generate(model, PROMPTS, 9, **others, stop_token_id=[3, 4])
    assert not Traced.TRACES


class TestStream:
    @pytest.mark.parametrize("kind", ["encoder-decoder, sampled twice", "in full"])
    def test_pieces_are_those_of_the_whole(self, kind):
        model, options = stacked_gpt(), {"cache": False}
        if kind != "in full":
            model, options = translator(), {"sampler": "sample", "seed": 2, "num_return_sequences": 2}
        pieces = list(kt.stream(model, PROMPTS, 20, chunk_size=4, stop_token_id=2, **options))
        result = kt.generate(model, PROMPTS, 20, stop_token_id=2, return_dict=True, **options)
        for i, length in enumerate(result["lengths"]):
            start = len(PROMPTS[i]) if kind == "in full" else 0
            whole = [token for piece in pieces for token in piece[i]]
            assert whole == result["token_ids"][i, start : start + length].tolist()
        assert all(len(new) <= 4 for piece in pieces for new in piece)
        assert [len(new) for new in pieces[0]] == [1] * len(result["lengths"])

    def test_texts(self):
        whole = kt.generate(stacked_gpt(), ["abc"], 20, tokenizer=Letters())[0]
        pieces = [piece for (piece,) in kt.stream(stacked_gpt(), "abc", 20, tokenizer=Letters())]
        assert len(pieces) > 3 and "abc" + "".join(pieces) == whole

    def test_words_keep_the_space_before_them(self):
        """The tokenizer takes one space off the front of a text: new tokens alone would lose it."""
        tokenizer = kt.data.train_tokenizer(["one two one two"] * 5, vocabulary_size=300)
        one, two = tokenizer.encode(["one two"])[0]

        def alternate(ids):
            ids = ops.convert_to_numpy(ids)
            return np.eye(tokenizer.vocabulary_size, dtype="float32")[np.where(ids == one, two, one)]

        options = {"tokenizer": tokenizer, "cache": False}
        pieces = [piece for (piece,) in kt.stream(alternate, "one", 5, **options)]
        assert pieces[0] == " two" and "".join(pieces) == " two one two one two"
        assert kt.generate(alternate, ["one"], 5, stop_strings=[" one"], **options) == ["one two one"]

    def test_a_stop_string_ends_the_text_with_it(self):
        whole = kt.generate(stacked_gpt(), ["abc"], 30, tokenizer=Letters(), temperature=3.0, seed=1)[0]
        stop = whole[15:17]
        end = whole.index(stop, 3) + 2
        options = {"tokenizer": Letters(), "temperature": 3.0, "seed": 1, "stop_strings": [stop, "!"]}
        assert kt.generate(stacked_gpt(), ["abc"], 30, **options) == [whole[:end]]
        assert "abc" + "".join(piece for (piece,) in kt.stream(stacked_gpt(), "abc", 30, **options)) == whole[:end]

    def test_what_cannot_be_streamed(self):
        with pytest.raises(ValueError, match="cannot be streamed"):
            kt.stream(stacked_gpt(), PROMPTS, 4, num_beams=2)
        with pytest.raises(ValueError, match="stop_strings"):
            kt.stream(stacked_gpt(), PROMPTS, 4, stop_strings=["a"])
        assert list(kt.stream(stacked_gpt(), PROMPTS, 0)) == []


class TestTokenizers:
    """Strings in, strings out, by the tokenizers of other libraries."""

    @pytest.mark.parametrize("library", ["tokenizers", "transformers"])
    def test_byte_pairs(self, library):
        ours = kt.data.train_tokenizer(["one two one two"] * 5, vocabulary_size=300)
        theirs = tokenizers.Tokenizer.from_str(ours._backend.to_str())
        if library == "transformers":
            theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=theirs)
        one, two = ours.encode(["one two"])[0]

        def alternate(ids):
            return np.eye(300, dtype="float32")[np.where(ops.convert_to_numpy(ids) == one, two, one)]

        assert kt.generate(alternate, ["one", "one two"], 2, tokenizer=theirs, cache=False) == [
            "one two one",
            "one two one two",
        ]

    def test_keras_hub(self):
        tokenizer = keras_hub.tokenizers.ByteTokenizer()

        def successor(ids):
            return np.eye(256, dtype="float32")[(ops.convert_to_numpy(ids) + 1) % 256]

        assert kt.generate(successor, ["abc", "x"], 2, tokenizer=tokenizer, cache=False) == ["abcde", "xyz"]
        pieces = kt.stream(successor, "a", 4, tokenizer=tokenizer, cache=False)
        assert "".join(piece for (piece,) in pieces) == "bcde"

    def test_what_is_none(self):
        with pytest.raises(ValueError, match="`tokenizer`.*dict"):
            kt.generate(stacked_gpt(), ["a"], 2, tokenizer={})


def test_a_progress_bar(capsys):
    kt.generate(stacked_gpt(), PROMPTS, 6, verbose=1, batch_size=2)
    assert "12/12" in capsys.readouterr().out
