"""Recurrent layers are decoded through the cache, one token per step, by every way to write a text."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.generation.decoders import CachedDecoder, CachedEncoderDecoder
from keras_transformer.ops import cache_entries
from tests import reference
from tests.backend import compiled, numpy, predict
from tests.generation.models import VOCABULARY_SIZE, assert_greedy, ragged

# A model that is not decoded through the cache warns.
pytestmark = pytest.mark.filterwarnings("error:generate")

PROMPTS = ragged((5, 1, 9, 3))
SOURCES = ragged((4, 7, 2), seed=1)
START, STOP = 1, 2


@functools.cache
def writer(pad_token_id=None):
    """A decoder-only stack by hand: recurrent layers around a block that attends."""
    ids = keras.Input((None,), dtype="int32")
    table = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 12, position=None, pad_token_id=pad_token_id)
    x = kt.layers.Recurrent(12, "lstm", dropout=0.1)(table(ids))
    x = kt.layers.Recurrent(12, "gru")(kt.layers.DecoderBlock(2, 16)(x))
    model = keras.Model(ids, table(x, reverse=True))
    reference.randomize(model, stddev=0.5)
    return model


@functools.cache
def translator(cell="gru", attention="bahdanau", num_layers=1):
    options = {"hidden_dim": 10, "start_token_id": START, "stop_token_id": STOP, "num_layers": num_layers}
    model = kt.models.rnn(VOCABULARY_SIZE, VOCABULARY_SIZE, cell=cell, attention=attention, **options)
    reference.randomize(model, stddev=0.5)
    return model


KINDS = {
    "gru, bahdanau": {},
    "lstm, luong, two layers": {"cell": "lstm", "attention": "luong", "num_layers": 2},
    "simple, no attention": {"cell": "simple", "attention": None},
}


class TestGreedy:
    def test_a_stack_by_hand(self):
        """Long enough for the cache to grow and for PyTorch to replay its steps; rows of different lengths."""
        texts = kt.generate(writer(), PROMPTS, 60)
        assert_greedy(writer(), PROMPTS, texts, 60)

    @pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
    def test_an_encoder_decoder(self, options):
        """Ragged sources in one batch, each as alone, and as the full forward chooses; rows end with a stop token."""
        model = translator(**options)
        texts = kt.generate(model, SOURCES, 20, stop_token_id=[])
        for source, text in zip(SOURCES, texts, strict=True):
            ids = {"encoder_token_ids": np.array([source]), "decoder_token_ids": np.array([[START, *text[:-1]]])}
            assert predict(model, ids)[0].argmax(-1).tolist() == text.tolist()
        assert (kt.generate(model, SOURCES[:1], 20, stop_token_id=[]) == texts[:1]).all()
        assert len({tuple(text) for text in texts.tolist()}) == 3  # the source matters
        stop = int(texts[1, 5])
        stopped = kt.generate(model, SOURCES, 20, stop_token_id=stop, return_dict=True)
        for text, length in zip(texts.tolist(), stopped["lengths"], strict=True):
            assert length == (text.index(stop) + 1 if stop in text else 20)

    def test_masked_ids_in_front_of_and_in_the_text(self):
        model, prompts = writer(pad_token_id=0), [[0, 0, 7], [5, 0, 6, 7]]
        expected = kt.generate(model, prompts, 12, cache=False)
        assert (kt.generate(model, prompts, 12) == expected).all()
        assert (kt.generate(model, [[7]], 12)[0, 1:] == expected[0, 3:15]).all()

    def test_arrays_with_padding_on_either_side(self):
        model = writer()
        rows = np.array([[0, 0, 5, 6], [3, 4, 5, 6], [0, 0, 0, 9]])
        texts = kt.generate(model, rows, 9, padding_mask=rows != 0)
        for row, text in zip(rows, texts, strict=True):
            assert (text[4:] == kt.generate(model, [row[row != 0].tolist()], 9)[0, -9:]).all()


WAYS = {
    "nucleus": ("writer", {"sampler": "sample", "seed": 3, "temperature": 0.8, "top_p": 0.9}),
    "beams": ("writer", {"num_beams": 4, "num_return_sequences": 2, "stop_token_id": [4, 9]}),
    "contrastive": ("writer", {"penalty_alpha": 0.4, "top_k": 3}),
    "lookup": ("writer", {"prompt_lookup_num_tokens": 3}),
    "several samples": ("translator", {"sampler": "sample", "seed": 3, "num_return_sequences": 3}),
    "groups of beams": ("translator", {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}),
    "speculative": ("translator", {"sampler": "sample", "seed": 3, "prompt_lookup_num_tokens": 2}),
    "processors": ("translator", {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}),
}


@pytest.mark.parametrize("kind, options", WAYS.values(), ids=WAYS)
def test_every_way_to_write_gives_what_the_full_forward_gives(kind, options):
    model, inputs = (writer(), PROMPTS) if kind == "writer" else (translator("lstm", "luong"), SOURCES)
    expected = kt.generate(model, inputs, 9, cache=False, **options)
    assert (kt.generate(model, inputs, 9, cache=True, **options) == expected).all()


class TestSpeculative:
    """A state cannot be rewound: so many are kept as tokens may be taken back."""

    def test_recurrent_models_draft_for_each_other(self):
        model, expected = writer(), kt.generate(writer(), PROMPTS, 30)
        draft = keras.models.clone_model(model)
        draft.set_weights([w + 0.02 * np.random.default_rng(0).normal(size=w.shape) for w in model.get_weights()])
        options = {"assistant_model": draft, "num_assistant_tokens": 3}
        found = kt.generate(model, PROMPTS, 30, return_dict=True, **options)
        assert (found["token_ids"] == expected).all()
        assert 0.05 < found["num_accepted_tokens"].mean() / 30 < 0.95

    def test_for_an_encoder_decoder_and_behind_a_prefix(self):
        model = translator("lstm", "bahdanau")
        options = {"assistant_model": translator("simple", None), "num_assistant_tokens": 3}
        expected = kt.generate(model, SOURCES, 14, stop_token_id=[])
        assert (kt.generate(model, SOURCES, 14, stop_token_id=[], **options) == expected).all()
        prefix = kt.prefill(writer(), [PROMPTS[0]])
        expected = kt.generate(writer(), [PROMPTS[0] + row for row in PROMPTS[1:]], 14)
        found = kt.generate(writer(), PROMPTS[1:], 14, prefix=prefix, prompt_lookup_num_tokens=3)
        assert (found == expected).all()

    def test_what_is_taken_back_was_never_there(self):
        """Each row keeps a number of tokens of its own; the next ones follow what it kept."""
        model, random = writer(), np.random.default_rng(0)
        rows = random.integers(3, VOCABULARY_SIZE, (3, 12)).astype("int32")
        expected = predict(model, rows)
        decoder = CachedDecoder(model)
        batch = {"token_ids": rows[:, :4], "positions": np.resize(np.arange(4), (3, 4)), "last": np.full(3, 3)}
        batch = {name: ops.convert_to_tensor(x, "int32") for name, x in batch.items()}
        start = compiled(lambda batch: decoder.start(batch, 32, 3))
        feed = compiled(lambda *arguments: decoder.feed(*arguments))
        _, state = start(batch)
        done = np.full(3, 4)
        for kept in ([1, 4, 2], [3, 1, 2], [4, 2, 1]):
            kept = np.array(kept)
            positions = (done[:, None] + np.arange(4)).astype("int32")
            fed = np.take_along_axis(rows, np.minimum(positions, 11), axis=1)
            fed = np.where(np.arange(4) < kept[:, None], fed, 9).astype("int32")
            logits, state = feed(state, *map(ops.convert_to_tensor, (fed, positions)))
            for row in range(3):
                here = slice(done[row], done[row] + kept[row])
                np.testing.assert_allclose(numpy(logits)[row, : kept[row]], expected[row, here], atol=1e-4)
            state = decoder.take_back(state, 4, ops.convert_to_tensor(kept, "int32"))
            done += kept

    def test_more_than_was_kept_is_no_number(self):
        entry = cache_entries.first_state([ops.ones((2, 3))], spare=1)
        for position in range(3):
            fed = ops.convert_to_tensor([[position], [-1]], "int32")
            entry = cache_entries.remember(entry, [ops.full((2, 1, 3), position + 2.0)], fed)
        for position, first_row in ((3, 4.0), (2, 3.0), (1, np.nan), (0, np.nan)):
            (state,) = cache_entries.recall(entry, ops.convert_to_tensor([[position], [0]], "int32"))
            np.testing.assert_array_equal(numpy(state)[:, 0], [first_row, 1.0])


@pytest.mark.parametrize("kind", ["writer", "translator"])
def test_prefixes_and_streams(kind):
    """What was read once is continued with more of the text, several times; a stream gives the same."""
    model, inputs = (writer(), PROMPTS) if kind == "writer" else (translator(), SOURCES)
    expected = kt.generate(model, inputs, 12, stop_token_id=[])
    prefix = kt.prefill(model, inputs)
    for _ in range(2):
        begun = [[] for _ in inputs]
        found = kt.generate(model, begun, 12, prefix=prefix, stop_token_id=[])
        assert [row.tolist() for row in _new(found, inputs, kind)] == [r.tolist() for r in _new(expected, inputs, kind)]
    pieces = list(kt.stream(model, inputs, 12, stop_token_id=[], chunk_size=5))
    streamed = [sum((piece[i] for piece in pieces), []) for i in range(len(inputs))]
    assert streamed == [row.tolist() for row in _new(expected, inputs, kind)]


def _new(texts, inputs, kind):
    """The 12 new tokens of each row."""
    fronts = [len(row) if kind == "writer" else 0 for row in inputs]
    return [text[front : front + 12] for text, front in zip(texts, fronts, strict=True)]


def test_eight_bits_are_for_keys_and_coverage_sees_the_attention():
    model = translator("gru", "bahdanau")
    assert isinstance(kt.generate(model, SOURCES, 6, cache_dtype="int8"), np.ndarray)
    plain, covered = (kt.generate(model, SOURCES, 8, num_beams=4, coverage_penalty=x) for x in (0.0, 3.0))
    assert plain.shape == covered.shape and (plain != covered).any()
    with pytest.raises(ValueError, match="coverage_penalty.*none"):
        kt.generate(translator("simple", None), SOURCES, 6, num_beams=2, coverage_penalty=1.0)


def test_the_state_is_what_a_recurrent_layer_keeps():
    """Between the slots of attention, in the order of the model; frozen are only the keys of the source."""
    decoder = CachedEncoderDecoder(translator("lstm", "luong", num_layers=2))
    sources = np.array([SOURCES[0]])
    batch = {"token_ids": [[START]], "positions": [[0]], "last": [0], "source_ids": sources}
    batch |= {"source_positions": np.arange(4)[None]}
    _, state = decoder.start({name: ops.convert_to_tensor(x, "int32") for name, x in batch.items()}, 8)
    layers = state["cache"]["layers"]
    kinds = [("state", 2), ("state", 2), ("encoder", 0)]
    found = [(next(iter(entry)).split("_")[0], sum("state" in name for name in entry)) for entry in layers.values()]
    assert sorted(found) == sorted(kinds)
    assert tuple(layers["0"]["state_0"].shape) == (1, 1, 1, 10)
    assert kt.ops.extend_cache(state["cache"], 16)["layers"]["0"] is layers["0"]


def test_rows_take_what_they_get():
    """At every feed each row gets some tokens or none, between others that are padding."""
    model, random = writer(), np.random.default_rng(1)
    rows = random.integers(3, VOCABULARY_SIZE, (3, 24)).astype("int32")
    expected, done, cache = predict(model, rows), np.zeros(3, int), None

    def step(ids, positions, cache):
        with kt.ops.DecodingScope(cache, positions, **({"length": 24} if cache is None else {})) as scope:
            logits = model(ids)
        return logits, scope.cache

    step = compiled(step)
    for size in (5, 1, 4, 1, 5, 1, 4):
        positions = np.full((3, size), -1)
        for row in range(3):
            places = np.flatnonzero(random.random(size) < 0.7)
            positions[row, places] = done[row] + np.arange(len(places))
            done[row] += len(places)
        fed = np.where(positions < 0, 0, np.take_along_axis(rows, np.maximum(positions, 0), axis=1))
        logits, cache = step(*(ops.convert_to_tensor(x, "int32") for x in (fed, positions)), cache)
        for row, here in enumerate(positions):
            np.testing.assert_allclose(numpy(logits)[row, here >= 0], expected[row, here[here >= 0]], atol=1e-4)
    assert done.min() > 5


class TestRefused:
    def model(self, *layers, embedding=None):
        ids = keras.Input((None,), dtype="int32")
        x = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 8, position=None, pad_token_id=None)(ids)
        for layer in layers:
            x = layer(x)
        return keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE)(x))

    def test_both_directions(self):
        model = self.model(kt.layers.Recurrent(4, bidirectional=True))
        with pytest.raises(ValueError, match="is bidirectional, so earlier tokens change"):
            kt.generate(model, PROMPTS, 5)
        with pytest.raises(ValueError, match="looks both ways"):
            kt.generate(model, PROMPTS, 5, cache=False)

    def test_attention_from_the_text_to_itself(self):
        def attend(x):
            return kt.layers.BahdanauAttention(4)(x, x)

        with pytest.raises(ValueError, match="looks both ways"):
            kt.generate(self.model(attend), PROMPTS, 5)

    def test_the_last_state_of_the_text(self):
        def spread(x):
            return keras.layers.Add()([x, keras.layers.Reshape((1, 8))(kt.layers.LastState()(x))])

        with pytest.raises(ValueError, match="last state of the text itself"):
            kt.generate(self.model(spread), PROMPTS, 5)

    @pytest.mark.filterwarnings("ignore:generate")
    def test_vectors_that_are_not_those_of_the_tokens(self):
        """A layer that reads more than the tokens that are fed cannot keep a state; the text is right all the same."""
        layer = kt.layers.Recurrent(8)
        positions = ops.convert_to_tensor([[0, 1]])
        with kt.ops.DecodingScope(None, positions), pytest.raises(kt.ops.CannotCache, match="reads 3 vectors, while 2"):
            layer(np.ones((1, 3, 8), "float32"))

    @pytest.mark.filterwarnings("default:generate")
    def test_a_cell_of_the_users_own_is_tried(self):
        class Slow(keras.layers.SimpleRNNCell):
            def call(self, sequence, states, training=False):
                output, new = super().call(sequence, states, training=training)
                return output / 2, new

        model = self.model(kt.layers.Recurrent(cell=Slow(8)))
        expected = kt.generate(model, PROMPTS, 6, cache=False)
        assert (kt.generate(model, PROMPTS, 6, cache=True) == expected).all()
