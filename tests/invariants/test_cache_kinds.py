"""Sliding windows keep no more than they see, and 8 bits are enough; neither changes what is decoded."""

import functools

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.ops import cache_entries
from tests import reference
from tests.backend import compiled, numpy, predict, vectors
from tests.invariants.test_cache import cuts

VOCABULARY_SIZE, LENGTH = 20, 5


@functools.cache
def stack(*windows, position="sinusoidal", pad_token_id=None):
    """A decoder-only model with one block for each window; None sees everything."""
    ids = keras.Input((None,), dtype="int32")
    embedding = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, 64, position, pad_token_id=pad_token_id)
    x = embedding(ids)
    for window in windows:
        attention = kt.layers.MultiHeadAttention(4, 8, num_key_value_heads=2, sliding_window=window)
        x = kt.layers.DecoderBlock(attention=attention, intermediate_dim=24, norm_placement="pre")(x)
    model = keras.Model(ids, embedding(keras.layers.LayerNormalization()(x), reverse=True))
    reference.randomize(model, stddev=0.3)
    return model


@functools.cache
def step_of(model, length=LENGTH, **options):
    """Ids, positions and a cache, or None, to logits and the new cache, compiled once per shape."""

    def step(ids, positions, cache):
        start = {"length": length, **options} if cache is None else {}
        with kt.ops.DecodingScope(cache, positions, **start) as scope:
            logits = model(ids)
        return logits, scope.cache

    return compiled(step)


def feed(step, ids, positions, cache=None):
    ids, positions = (keras.ops.convert_to_tensor(np.asarray(x, "int32")) for x in (ids, positions))
    logits, cache = step(ids, positions, cache)
    return numpy(logits), cache


def in_pieces(step, ids, cut):
    outputs, cache, begin = [], None, 0
    for size in cut:
        piece = slice(begin, begin + size)
        logits, cache = feed(step, ids[:, piece], np.tile(np.arange(LENGTH)[piece], (len(ids), 1)), cache)
        outputs.append(logits)
        begin += size
    return np.concatenate(outputs, axis=1), cache


def random_ids(*shape, seed=0):
    return np.random.default_rng(seed).integers(1, VOCABULARY_SIZE, shape).astype("int32")


def shapes(cache):
    return {slot: tuple(entry["key"].shape) for slot, entry in cache["layers"].items()}


class TestSlidingWindow:
    def test_pieces_below_at_and_above_the_window_give_the_full_models_logits(self):
        """In every order, where pieces of one, three and five tokens make up the whole; each size is compiled."""
        windows = (1, None, 3)
        model, ids = stack(*windows), random_ids(2, LENGTH)
        expected = predict(model, ids)
        for cut in (cut for cut in cuts(LENGTH) if {*cut} <= {1, 3, 5}):
            logits, cache = in_pieces(step_of(model), ids, cut)
            np.testing.assert_allclose(logits, expected, atol=1e-5)
            assert shapes(cache) == {str(i): (2, 2, window or LENGTH, 8) for i, window in enumerate(windows)}

    def test_rows_take_what_they_get(self):
        """At every feed each row gets some tokens or none, between others that are padding."""
        random, length, num_rows = np.random.default_rng(0), 26, 8
        model = stack(3, None, 5)
        ids, done, cache = random_ids(num_rows, length), np.zeros(num_rows, int), None
        expected, step = predict(model, ids), step_of(model, length=32)
        for size in (6, 1, 4, 1, 6, 4, 1, 4):
            positions = np.full((num_rows, size), -1)
            for row in range(num_rows):
                places = np.flatnonzero(random.random(size) < 0.7)
                positions[row, places] = done[row] + np.arange(len(places))
                done[row] += len(places)
            fed = np.where(positions < 0, 0, np.take_along_axis(ids, np.maximum(positions, 0), axis=1))
            logits, cache = feed(step, fed, positions, cache)
            for row, here in enumerate(positions):
                np.testing.assert_allclose(logits[row, here >= 0], expected[row, here[here >= 0]], atol=1e-5)
        assert shapes(cache) == {str(i): (num_rows, 2, slots, 8) for i, slots in enumerate((3, 32, 5))}
        assert done.min() > 5  # every window has been left

    def test_a_pad_inside_the_text_keeps_its_place(self):
        model, ids = stack(3, pad_token_id=0), random_ids(2, LENGTH)
        ids[0, 2] = 0
        expected = predict(model, ids)
        for cut in ((2, 1, 1, 1), (2, 2, 1)):
            logits, _ = in_pieces(step_of(model), ids, cut)
            np.testing.assert_allclose(np.delete(logits, 2, 1), np.delete(expected, 2, 1), atol=1e-5)

    def test_it_grows_no_further_than_the_window(self):
        model, ids = stack(4), random_ids(2, LENGTH)
        expected = predict(model, ids)
        positions = np.tile(np.arange(LENGTH), (2, 1))
        logits, cache = feed(step_of(model, length=2), ids[:, :2], positions[:, :2])
        outputs, lengths = [logits], []
        for begin, end in ((2, 3), (3, 5)):
            lengths.append(shapes(cache)["0"][2])
            cache = kt.ops.extend_cache(cache, end)
            logits, cache = feed(step_of(model), ids[:, begin:end], positions[:, begin:end], cache)
            outputs.append(logits)
        np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, atol=1e-5)
        assert [*lengths, shapes(cache)["0"][2]] == [2, 3, 4]

    def test_tokens_are_taken_back(self):
        """Their positions are hidden, or fed anew: the keys that they replaced are still there."""
        model, ids = stack(3, None), random_ids(2, 6)
        expected = predict(model, ids)
        positions = np.tile(np.arange(6), (2, 1))
        for tried in (2, 3):
            step = step_of(model, length=10, spare=2)
            logits, cache = feed(step, ids[:, :3], positions[:, :3])
            wrong = random_ids(2, tried, seed=1)
            wrong[:, 0] = ids[:, 3]
            first, cache = feed(step, wrong, positions[:, 3:][:, :tried], cache)
            cache = {**cache, "index": cache["index"] - tried + 1}
            begin = keras.ops.arange(10) >= 4
            cache["positions"] = keras.ops.where(begin, -1, cache["positions"])
            for cut in ((1,), (1, 1), (2,)):
                outputs, going_on, here = [logits, first[:, :1]], cache, 4
                for size in cut:
                    piece = slice(here, here + size)
                    new, going_on = feed(step, ids[:, piece], positions[:, piece], going_on)
                    outputs.append(new)
                    here += size
                np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected[:, :here], atol=1e-5)

    @pytest.mark.parametrize("cut", [(1, 1), (2,)], ids=str)
    def test_a_masked_token_in_the_place_of_one_that_was_taken_back(self, cut):
        """The window forgets what it had there, although nothing takes its slot."""
        model, ids = stack(3, pad_token_id=0), random_ids(2, 5)
        ids[:, 3] = 0
        expected = predict(model, ids)
        positions = np.tile(np.arange(5), (2, 1))
        step = step_of(model, length=10, spare=2)
        logits, cache = feed(step, ids[:, :3], positions[:, :3])
        _, cache = feed(step, random_ids(2, 2, seed=1), positions[:, 3:], cache)
        cache = {**cache, "index": cache["index"] - 2}
        cache["positions"] = keras.ops.where(keras.ops.arange(10) >= 3, -1, cache["positions"])
        outputs, here = [logits], 3
        for size in cut:
            new, cache = feed(step, ids[:, here : here + size], positions[:, here : here + size], cache)
            outputs.append(new)
            here += size
        found = np.concatenate(outputs, axis=1)
        np.testing.assert_allclose(found[:, [0, 1, 2, 4]], expected[:, [0, 1, 2, 4]], atol=1e-5)

    def test_past_the_end_is_an_error(self):
        model, ids = stack(2), random_ids(1, 4)
        positions = np.arange(4)[None]
        _, cache = feed(step_of(model, length=4), ids, positions)
        with pytest.raises(ValueError, match="4 slots, 4 are taken and 1"):
            kt.ops.DecodingScope(cache, np.array([[4]]))

    @pytest.mark.parametrize("options", [{}, {"cache_dtype": "int8"}], ids=str)
    def test_texts(self, options):
        """Also in batches, and from a prefix that is longer than the window."""
        model, prompts = stack(4, None), [row.tolist() for row in random_ids(2, 9)]
        prompts[1] = prompts[1][:2]
        texts = kt.generate(model, prompts, 8, **options)
        without = {"batch_size": 1} if "cache_dtype" in options else {"cache": False}
        assert (texts == kt.generate(model, prompts, 8, **options, **without)).all()
        begun, rest = [row[:-1] for row in prompts], [row[-1:] for row in prompts]
        prefix = kt.prefill(model, begun, cache_dtype=options.get("cache_dtype"))
        assert (kt.generate(model, rest, 8, prefix=prefix, **options) == texts).all()

    def test_a_text_that_outgrows_its_first_cache(self):
        model, prompts = stack(70), [[3, 4, 5], [6]]
        for prompt, text in zip(prompts, kt.generate(model, prompts, 76), strict=True):
            text = text[: len(prompt) + 76]
            most_probable = predict(model, text[None])[0].argmax(-1)
            assert text[len(prompt) :].tolist() == most_probable[len(prompt) - 1 : -1].tolist()


def test_drafts_that_are_rejected():
    """What they replaced in a window is needed again, in the model and in the one that drafts."""
    model, draft, prompts = stack(4, None), stack(3), [[3, 4, 5, 6, 7, 8], [9]]
    texts = kt.generate(model, prompts, 12)
    options = {"assistant_model": draft, "num_assistant_tokens": 3, "return_dict": True}
    prefix = kt.prefill(model, [row[:-1] for row in prompts[:1]])
    for found in (
        kt.generate(model, prompts, 12, **options),
        kt.generate(model, [prompts[0][-1:]], 12, prefix=prefix, **options),
    ):
        rows = len(found["token_ids"])
        assert (found["token_ids"] == texts[:rows]).all()
        assert (found["num_accepted_tokens"] < 11).all()


def test_beams_that_write_the_masked_id():
    """The hole in the text moves with its beam, as does the window; one prompt is longer than it, one shorter."""
    model, prompts = stack(3, position="learned", pad_token_id=0), [[3, 4], [5, 6, 7, 8]]
    options = {"num_beams": 4, "num_return_sequences": 4, "allowed_token_ids": [0, 8]}
    texts = kt.generate(model, prompts, 6, **options)
    assert (texts[:4, 2:8] == 0).any()
    assert (texts == kt.generate(model, prompts, 6, cache=False, **options)).all()


class TestInt8:
    def test_numbers_are_as_near_as_8_bits_allow(self):
        key, value = 10 * vectors(2, 3, 2, 8), 1e-3 * vectors(2, 3, 2, 8, seed=1)
        key[0, 1], value[1, 1, 1] = 0, 0
        packed = cache_entries.pack(*map(keras.ops.convert_to_tensor, (key, value)), "int8")
        assert {name: str(keras.backend.standardize_dtype(x.dtype)) for name, x in packed.items()} == {
            "key": "int8",
            "key_scale": "float32",
            "value": "int8",
            "value_scale": "float32",
        }
        for found, x in zip(map(numpy, cache_entries.unpack(packed)), (key, value), strict=True):
            assert (abs(found - x) <= abs(x).max(-1, keepdims=True) / 127 / 2 * 1.001).all()

    def test_logits(self):
        model, ids = stack(3, None), random_ids(2, LENGTH)
        expected = predict(model, ids)
        step = step_of(model, dtype="int8")
        whole, cache = in_pieces(step, ids, (LENGTH,))
        error = abs(whole - expected).max() / abs(expected).max()
        assert 1e-5 < error < 0.03
        for cut in ((2, 2, 1), (2, 1, 1, 1)):
            np.testing.assert_allclose(in_pieces(step, ids, cut)[0], whole, atol=1e-4)
        for entry in cache["layers"].values():
            assert {keras.backend.standardize_dtype(entry[name].dtype) for name in ("key", "value")} == {"int8"}

    def test_in_16_bits_keys_come_back_in_16_bits(self):
        key = keras.ops.cast(vectors(1, 2, 1, 8), "bfloat16")
        back, _ = cache_entries.unpack(cache_entries.pack(key, key, "int8"))
        assert keras.backend.standardize_dtype(back.dtype) == "bfloat16"
        difference = numpy(keras.ops.cast(back, "float32")) - numpy(keras.ops.cast(key, "float32"))
        assert abs(difference).max() < 0.03
        tiny = keras.ops.cast(1e-7 * vectors(1, 2, 1, 8), "float16")
        back, _ = cache_entries.unpack(cache_entries.pack(tiny, tiny, "int8"))
        assert abs(numpy(keras.ops.cast(back, "float32"))).max() < 1e-5

    def test_memory(self):
        """A float of 4 bytes is one byte, and 64 of them share a scale of 4; so does cross-attention."""
        model = kt.models.transformer(20, 20, 1, 2, 16, 8, key_dim=64, start_token_id=1)
        sizes = []
        for cache_dtype in (None, "int8"):
            entries = kt.prefill(model, [[3, 4]], cache_dtype=cache_dtype).kept.state["cache"]["layers"].values()
            parts = [x for entry in entries for name, x in entry.items() if "positions" not in name]
            sizes.append(sum(numpy(x).nbytes for x in parts))
        assert sizes[1] / sizes[0] == 17 / 64

    def test_encoder_decoders(self):
        model = kt.models.transformer(20, 20, 1, 2, 16, 24, start_token_id=1)
        sources, options = [[3, 4, 5], [6]], {"stop_token_id": [], "return_dict": True}
        near = kt.generate(model, sources, 4, cache_dtype="int8", **options)
        alone = kt.generate(model, sources[1:], 4, cache_dtype="int8", **options)  # without the padding of its source
        assert (near["token_ids"][1:] == alone["token_ids"]).all()
        exact = kt.generate(model, sources, 4, **options)
        np.testing.assert_allclose([x[0] for x in near["log_probs"]], [x[0] for x in exact["log_probs"]], atol=0.05)

    def test_other_dtypes_are_refused(self):
        model = stack(None, None)
        for call in (kt.generate, kt.stream):
            with pytest.raises(ValueError, match="cache_dtype.*int4"):
                call(model, [[3]], 2, cache_dtype="int4")
        with pytest.raises(ValueError, match="int4"):
            kt.ops.DecodingScope(None, np.zeros((1, 1)), dtype="int4")
        prefix = kt.prefill(model, [[3]])
        with pytest.raises(ValueError, match="cache_dtype=None.*int8"):
            kt.generate(model, [[4]], 2, prefix=prefix, cache_dtype="int8")
