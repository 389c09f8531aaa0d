"""Drafts change the time a text takes, and nothing else: neither a greedy text nor the distribution of drawn ones."""

import functools
import itertools
import warnings

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.generation.decoders import CachedDecoder, FullForward
from keras_transformer.generation.sampling import filtered
from keras_transformer.generation.speculative import verify
from tests.backend import numpy, predict, run
from tests.generation.models import VOCABULARY_SIZE, Letters, Traced, ragged, translator

PROMPTS = ragged((5, 1, 9, 3))
SOURCES = ragged((4, 7, 2), seed=1)
DRAWS = 20_000
TOKENS = 4  # of which each text of the table-driven models is made
PAD = 9
STOP = 3


@functools.cache
def gpt(pad_token_id=None, position="sinusoidal"):
    """A decoder-only model of one block: what is tried here does not depend on their number."""
    ids = keras.Input((None,), dtype="int32")
    table = kt.layers.PositionalEmbedding(
        VOCABULARY_SIZE, 16, max_sequence_length=64, position=position, pad_token_id=pad_token_id
    )
    return keras.Model(ids, table(kt.layers.DecoderBlock(2, 32, norm_placement="pre")(table(ids)), reverse=True))


def like(model, noise, seed=0):
    """A model with other weights: the more noise, the more often it drafts what is rejected."""
    other, random = keras.models.clone_model(model), np.random.default_rng(seed)
    other.set_weights([w + noise * random.normal(size=w.shape) for w in model.get_weights()])
    return other


def of_numpy(model, seed):
    """The model with matrices from NumPy, so that it writes the same on every backend."""
    other, random = keras.models.clone_model(model), np.random.default_rng(seed)
    other.set_weights([random.normal(0, 0.3, w.shape) if w.ndim > 1 else w for w in model.get_weights()])
    return other


def table_model(seed, size=4):
    """A model whose next token depends on the last one alone, by a table of log-probabilities."""
    ids = keras.Input((None,), dtype="int32")
    layer = keras.layers.Embedding(size, size)
    model = keras.Model(ids, layer(ids))
    layer.set_weights([np.random.default_rng(seed).normal(0, 1.5, (size, size))])
    return model


class TestGreedy:
    @pytest.mark.parametrize("cache", ["auto", False])
    def test_the_text_is_the_greedy_one(self, cache):
        """Long enough for caches to grow, with rows that end, and a masked id in front of and in the texts."""
        model = of_numpy(gpt(pad_token_id=0, position="learned"), seed=2)
        prompts = [*PROMPTS, [0, 0, 7]]
        wanted = 55 if cache else 30
        expected = kt.generate(model, prompts, wanted, stop_token_id=4, return_dict=True, cache=cache)
        options = {"assistant_model": like(model, 0.06), "num_assistant_tokens": 4, "cache": cache}
        found = kt.generate(model, prompts, wanted, stop_token_id=4, return_dict=True, **options)
        assert (found["token_ids"] == expected["token_ids"]).all()
        for ours, theirs in zip(found["log_probs"], expected["log_probs"], strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
        shares = found["num_accepted_tokens"] / np.asarray(found["lengths"])
        assert 0.1 < shares.mean() < 0.7, shares

    def test_prompt_lookup(self):
        model = gpt()
        expected = kt.generate(model, PROMPTS, 40)
        found = kt.generate(model, PROMPTS, 40, prompt_lookup_num_tokens=4, max_matching_ngram_size=3, return_dict=True)
        assert (found["token_ids"] == expected).all()
        assert (found["num_accepted_tokens"] > 10).all()  # small models repeat themselves

    @pytest.mark.parametrize("kind", ["translator", "in full", "language model", "lookup"])
    def test_encoder_decoders(self, kind):
        model = translator()
        options = {
            "translator": lambda: {"assistant_model": like(model, 0.01)},
            "in full": lambda: {"assistant_model": like(model, 0.01), "cache": False, "num_assistant_tokens": 2},
            "language model": lambda: {"assistant_model": gpt()},
            "lookup": lambda: {"prompt_lookup_num_tokens": 3},
        }[kind]()
        expected = kt.generate(model, SOURCES, 14)
        assert (kt.generate(model, SOURCES, 14, **options) == expected).all()

    def test_a_model_drafts_for_itself_what_it_accepts(self):
        """The first token comes with the prompt, then N + 1 with each round."""
        options = {"assistant_model": gpt(), "return_dict": True}
        found = kt.generate(gpt(), PROMPTS, 13, **options)
        assert found["lengths"] == [13] * 4 and found["num_accepted_tokens"].tolist() == [10] * 4
        for wanted in (1, 2, 12, 14):
            assert kt.generate(gpt(), PROMPTS, wanted, **options)["lengths"] == [wanted] * 4
        assert kt.generate(gpt(), PROMPTS, 0, **options)["num_accepted_tokens"].tolist() == [0] * 4

    def test_processors_see_the_text_up_to_each_token(self):
        """A prompt of 16 tokens fills its bucket: the last token of the text has no slot in the cache yet."""
        model, prompts = gpt(), ragged((16, 4))
        options = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 6, "stop_token_id": 4}
        options |= {"bad_words_ids": [[9], [11, 12]], "frequency_penalty": 0.1}
        expected = kt.generate(model, prompts, 40, cache=False, **options)
        for draft in ({"assistant_model": model}, {"prompt_lookup_num_tokens": 3}):
            assert (kt.generate(model, prompts, 40, **draft, **options) == expected).all()

    def test_up_to_the_last_learned_position(self):
        model = gpt(position="learned")  # 64 positions; the last token is not fed
        expected = kt.generate(model, [PROMPTS[0]], 60)
        for options in (
            {"assistant_model": model, "num_assistant_tokens": 7},
            {"prompt_lookup_num_tokens": 7, "cache": False},
        ):
            assert (kt.generate(model, [PROMPTS[0]], 60, **options) == expected).all()

    def test_a_row_ends_where_every_token_is_banned(self):
        def nothing_after_three(logits, text):
            return ops.where(text.num_new < 3, logits, float("-inf"))

        for options in ({"sampler": "greedy"}, {"sampler": "sample", "seed": 1}):
            options |= {"logits_processors": [nothing_after_three], "assistant_model": gpt()}
            assert kt.generate(gpt(), PROMPTS[:2], 9, return_dict=True, **options)["lengths"] == [3, 3]

    def test_drafts_that_cannot_be_cached(self):
        ids = keras.Input((None,), dtype="int32")
        x = keras.layers.LSTM(8, return_sequences=True)(keras.layers.Embedding(VOCABULARY_SIZE, 8)(ids))
        recurrent = keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE)(x))
        with pytest.warns(UserWarning, match=f"{recurrent.name}.*in full"):
            found = kt.generate(gpt(), PROMPTS, 9, assistant_model=recurrent, cache=True)
        assert (found == kt.generate(gpt(), PROMPTS, 9)).all()


@pytest.mark.parametrize("kind", ["cached", "in full"])
def test_what_is_taken_back_was_never_there(kind):
    model = gpt()
    decoder = CachedDecoder(model) if kind == "cached" else FullForward(model, False)
    rows = np.asarray(ragged((10, 10)), "int32")
    batch = {"token_ids": rows[:, :3], "positions": np.resize(np.arange(3), (2, 3)), "last": np.asarray([2, 2])}
    batch = {name: ops.convert_to_tensor(x, "int32") for name, x in batch.items()}
    _, state = decoder.start(batch, 16)
    wrong = ops.convert_to_tensor([[*rows[0, 3:5], 9, 9], [rows[1, 3], 9, 9, 9]], "int32")
    positions = ops.convert_to_tensor(np.resize(np.arange(3, 7), (2, 4)), "int32")
    logits, state = decoder.feed(state, wrong, positions)
    state = decoder.take_back(state, 4, ops.convert_to_tensor([2, 1], "int32"))
    assert int(decoder.slots_used(state)) == 5
    begin = np.asarray([[5], [4]]) + np.arange(3)
    tokens = ops.convert_to_tensor(np.take_along_axis(rows, begin, axis=1))
    logits, state = decoder.feed(state, tokens, ops.convert_to_tensor(begin, "int32"))
    expected = predict(model, rows)
    for i in range(2):
        np.testing.assert_allclose(numpy(logits)[i], expected[i, begin[i]], atol=1e-4)


def exact_distribution(log_table, prompt, penalty=1.0, **options):
    """Probability of each text of `TOKENS` new tokens, those behind a stop token being `PAD`."""
    told = {name: ops.convert_to_tensor(value) for name, value in options.items()}
    size = len(log_table)
    found, texts = {}, {tuple(prompt): 1.0}
    while texts:
        logits = np.zeros((size ** (TOKENS - 1), size), "float32")  # as many rows as there are texts before the last
        for row, text in zip(logits, texts):
            row[:] = log_table[text[-1]]
            seen = np.isin(np.arange(size), text)
            row[:] = np.where(seen, np.where(row > 0, row / penalty, row * penalty), row)
        left = run(lambda x: filtered(x, tuple(options), told), logits).astype("float64")
        longer = {}
        for (text, probability), row in zip(texts.items(), left):
            for token in np.flatnonzero(row):
                new = (*text, int(token))
                is_over = token == STOP or len(new) == len(prompt) + TOKENS
                key = (*new[len(prompt) :], *[PAD] * (len(prompt) + TOKENS - len(new)))
                (found if is_over else longer)[key if is_over else new] = probability * row[token] / row.sum()
        texts = longer
    return found


def chi_square(texts, expected):
    """The statistic and its 0.999 quantile; what is impossible must never be drawn."""
    counts = dict.fromkeys(expected, 0)
    for text, count in zip(*np.unique(texts, axis=0, return_counts=True), strict=True):
        counts[tuple(text.tolist())] += int(count)  # a KeyError: it is impossible
    pairs = [(counts[text], len(texts) * probability) for text, probability in expected.items()]
    rare = [pair for pair in pairs if pair[1] < 5]
    pairs = [*(pair for pair in pairs if pair[1] >= 5), tuple(map(sum, zip(*rare, strict=True)))] if rare else pairs
    degrees = len(pairs) - 1
    quantile = degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3  # Wilson and Hilferty
    return sum((count - mean) ** 2 / max(mean, 1e-9) for count, mean in pairs), quantile


class TestDistribution:
    @pytest.mark.parametrize(
        "draft, options",
        [
            ("same", {}),
            ("other", {}),
            ("lookup", {}),
            ("other", {"temperature": 0.6, "top_k": 3, "top_p": 0.9}),
            ("other", {"repetition_penalty": 1.7, "min_p": 0.1}),
            ("lookup", {"repetition_penalty": 0.6, "typical_p": 0.8}),
        ],
        ids=str,
    )
    def test_joint_frequencies_of_all_tokens(self, draft, options):
        """Rows accept different numbers of drafts, and some end early."""
        model, prompt = table_model(0), [0, 1, 2, 0]
        drafts = {"assistant_model": model if draft == "same" else table_model(1), "num_assistant_tokens": 2}
        drafts = {"prompt_lookup_num_tokens": 2} if draft == "lookup" else drafts
        more = {"stop_token_id": STOP, "pad_token_id": PAD, "num_return_sequences": DRAWS, "seed": 0}
        texts = kt.generate(model, [prompt], TOKENS, "sample", **drafts, **options, **more)[:, len(prompt) :]
        told = {name: np.asarray(x, "int32" if name == "top_k" else "float32") for name, x in options.items()}
        penalty = options.get("repetition_penalty", 1.0)
        told.pop("repetition_penalty", None)
        statistic, quantile = chi_square(texts, exact_distribution(*model.get_weights(), prompt, penalty, **told))
        assert statistic < quantile

    def test_through_the_caches_of_attention(self):
        """Rows of several prompts, against the product of what the full forward says."""
        ids = keras.Input((None,), dtype="int32")
        table = kt.layers.PositionalEmbedding(3, 8, pad_token_id=None, embeddings_initializer="random_normal")
        x = kt.layers.DecoderBlock(2, 16, norm_placement="pre")(table(ids))
        model = keras.Model(ids, keras.layers.Dense(3, kernel_initializer="random_normal")(x))
        model.set_weights([w * 5 for w in model.get_weights()])
        prompts = [[0, 1, 2], [1]]
        options = {"assistant_model": like(model, 0.3), "num_assistant_tokens": 2, "num_return_sequences": DRAWS // 2}
        texts = kt.generate(model, prompts, TOKENS, "sample", seed=1, pad_token_id=PAD, **options)
        endings = np.asarray(list(itertools.product(range(3), repeat=TOKENS)))
        for i, prompt in enumerate(prompts):
            whole = np.concatenate([np.tile(prompt, (len(endings), 1)), endings], axis=1)
            logits = predict(model, whole)[:, len(prompt) - 1 : -1].astype("float64")
            log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            log_probs = np.take_along_axis(log_probs, endings[..., None], axis=-1)[..., 0].sum(-1)
            expected = {tuple(ending.tolist()): p for ending, p in zip(endings, np.exp(log_probs), strict=True)}
            drawn = texts[i * DRAWS // 2 : (i + 1) * DRAWS // 2, len(prompt) : len(prompt) + TOKENS]
            statistic, quantile = chi_square(drawn, expected)
            assert statistic < quantile

    def test_a_row_draws_the_same_in_any_batch(self):
        """So what holds of the rows of a batch holds of a row alone, whatever its mates make of the cache."""
        model = gpt()
        for drafts, wanted in (({"assistant_model": like(model, 0.02)}, 12), ({"prompt_lookup_num_tokens": 3}, 24)):
            options = {"sampler": "sample", "seed": 3, **drafts}
            whole = kt.generate(model, PROMPTS, wanted, **options)
            assert (kt.generate(model, PROMPTS, wanted, batch_size=1, **options) == whole).all()
            assert (kt.generate(model, PROMPTS, wanted, **{**options, "seed": 4}) != whole).any()

    def test_verification_at_the_ends_of_the_noise(self):
        """What has no probability is never accepted, what is certain always; behind no draft one token is drawn."""
        drafts = ops.convert_to_tensor([[1, 2], [0, 1], [-1, 1]], "int32")
        shares = ops.one_hot(ops.maximum(drafts, 0), 3)
        wanted = ops.convert_to_tensor([[[0, 1.0, 0], [0, 0, 1.0], [1.0, 0, 0]]] * 3)
        for noise in (np.zeros((3, 3), "float32"), np.full((3, 3), np.nextafter(np.float32(1), np.float32(0)))):
            for given in (shares, None):
                tokens, accepted = numpy(verify(drafts, given, wanted, ops.convert_to_tensor(noise)))
                assert accepted.tolist() == [2, 0, 0]
                assert tokens[0].tolist() == [1, 2, 0] and tokens[1:, 0].tolist() == [1, 1]


def test_other_values_and_lengths_compile_nothing():
    if keras.backend.backend() == "torch":
        return  # nothing is compiled there
    models = []
    for _ in range(2):
        ids = keras.Input((None,), dtype="int32")
        table = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None)
        x = Traced()(table(ids))
        models.append(keras.Model(ids, table(kt.layers.DecoderBlock(2, 32)(x), reverse=True)))
    model, draft = models
    options = {"assistant_model": draft, "num_assistant_tokens": 3, "top_p": 0.9, "repetition_penalty": 1.2}
    kt.generate(model, PROMPTS, 20, **options)
    del Traced.TRACES[:]
    others = {"top_p": 0.5, "repetition_penalty": 1.5, "seed": 2, "stop_token_id": [4, 5]}
    kt.generate(model, ragged((4, 8, 2)), 30, **{**options, **others})
    assert not Traced.TRACES


class TestStream:
    def test_pieces_are_those_of_the_whole(self):
        model = gpt()
        options = {"assistant_model": like(model, 0.02), "num_assistant_tokens": 3, "stop_token_id": 4}
        options |= {"sampler": "sample", "seed": 2, "num_return_sequences": 2}
        pieces = list(kt.stream(model, PROMPTS, 40, chunk_size=8, **options))
        found = kt.generate(model, PROMPTS, 40, return_dict=True, **options)
        for i, length in enumerate(found["lengths"]):
            whole = [token for piece in pieces for token in piece[i]]
            begin = len(PROMPTS[i // 2])
            assert whole == found["token_ids"][i, begin : begin + length].tolist()
        assert max(len(new) for piece in pieces for new in piece) <= 8

    def test_stop_strings_end_a_row_within_what_was_accepted(self):
        model, tokenizer = gpt(), Letters()
        whole = kt.generate(model, "abc", 20, tokenizer=tokenizer)[0]
        options = {"assistant_model": model, "stop_strings": [whole[7:9]], "tokenizer": tokenizer}
        expected = whole[: whole.index(whole[7:9], 3) + 2]
        found = kt.generate(model, "abc", 20, return_dict=True, verbose=1, **options)
        assert found["texts"] == [expected] and found["lengths"] == [len(expected) - 3]
        assert len(found["log_probs"][0]) == len(expected) - 3
        assert 0 < found["num_accepted_tokens"][0] < len(expected) - 3
        assert "abc" + "".join(piece for (piece,) in kt.stream(model, "abc", 20, **options)) == expected


def test_errors_say_what_is_wrong():
    model = gpt()
    ids = keras.Input((None,), dtype="int32")
    table = kt.layers.PositionalEmbedding(VOCABULARY_SIZE + 1, 16, pad_token_id=None)
    larger = keras.Model(ids, table(kt.layers.DecoderBlock(2, 32)(table(ids)), reverse=True))
    table = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None)
    both_ways = keras.Model(ids, table(kt.layers.EncoderBlock(2, 32)(table(ids)), reverse=True))
    for options, message in (
        ({"assistant_model": model, "num_beams": 2}, "assistant_model.*sampler='beam'"),
        ({"prompt_lookup_num_tokens": 3, "num_beams": 2}, "prompt_lookup_num_tokens.*sampler='beam'"),
        ({"assistant_model": model, "prompt_lookup_num_tokens": 3}, "one of them"),
        ({"num_assistant_tokens": 3}, "num_assistant_tokens=3"),
        ({"max_matching_ngram_size": 3}, "max_matching_ngram_size=3"),
        ({"assistant_model": model, "num_assistant_tokens": 0}, "num_assistant_tokens=0"),
        ({"prompt_lookup_num_tokens": 0}, "prompt_lookup_num_tokens=0"),
        ({"assistant_model": larger}, f"{VOCABULARY_SIZE} logits.*{VOCABULARY_SIZE + 1}"),
        ({"assistant_model": translator()}, "encoder-decoder"),
        ({"assistant_model": gpt(position="learned"), "max_new_tokens": 70}, "assistant_model.*64 learned"),
        ({"assistant_model": both_ways}, "(?s)assistant_model.*both ways"),
        ({"assistant_model": both_ways, "cache": False}, "assistant_model.*both ways"),
    ):
        with pytest.raises(ValueError, match=message), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kt.generate(model, PROMPTS, **{"max_new_tokens": 5, **options})
