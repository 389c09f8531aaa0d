"""Decoding through the cache changes nothing, however the text is cut (B07)."""

import functools

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.backend import compiled, numpy, run
from tests.invariants import table
from tests.invariants.table import FAMILIES, call

LENGTH = 4
CAUSAL = [family for family in FAMILIES if family.causal]


def cuts(length):
    """All ways to write the length as a sum: (4,), (1, 3), ..., (1, 1, 1, 1)."""
    if length == 0:
        yield ()
    for first in range(1, length + 1):
        yield from ((first, *rest) for rest in cuts(length - first))


class Decoder:
    """A causal model as a step: new ids and their positions in, logits and the new cache out."""

    def __init__(self, family):
        self.family = family
        self.model = kt.models.decoder_from_ids(family.model) if family.encodes else family.model
        self._step = compiled(self._call)

    def _call(self, ids, positions, cache, states, encoder_positions):
        start = {"length": LENGTH + 2, "encoder_positions": encoder_positions} if cache is None else {}
        with kt.ops.DecodingScope(cache, positions, **start) as scope:
            logits = self.model(ids if states is None else {"decoder_token_ids": ids, "encoder_states": states})
        return logits, scope.cache

    def __call__(self, inputs, positions, cut, spoil=lambda cache: cache):
        """Logits of all positions, fed in pieces; `spoil` changes the cache between them."""
        *source, ids = map(keras.ops.convert_to_tensor, inputs)
        states = encoder_positions = None
        if self.family.encodes:
            states = keras.ops.convert_to_tensor(call(kt.models.encoder_from_ids(self.family.model), source))
            encoder_positions = keras.ops.where(source[0] != 0, 0, -1)
        outputs, cache, start = [], None, 0
        for size in cut:
            piece = [x[:, start : start + size] for x in (ids, keras.ops.convert_to_tensor(positions))]
            logits, cache = self._step(*piece, cache and spoil(cache), states, encoder_positions)
            outputs.append(numpy(logits))
            start += size
        return np.concatenate(outputs, axis=1)


decoder_of = functools.cache(Decoder)


def inputs_of(family, batch=2):
    inputs = [x[:, :LENGTH] for x in family.ids(batch)]
    if family.encodes:
        inputs[0][1, 3:] = 0  # a source with padding
    return inputs


def fill_unused_slots(cache):
    behind = np.arange(cache["positions"].shape[1]) >= int(numpy(cache["index"]))

    def fill(entry):
        unused = behind[:, None]
        if "positions" in entry:  # a ring knows which of its slots are
            unused = numpy(entry["positions"])[:, None, :, None] < 0
        return {k: keras.ops.where(unused, 1e4, x) if k in ("key", "value") else x for k, x in entry.items()}

    return {**cache, "layers": {slot: fill(entry) for slot, entry in cache["layers"].items()}}


@pytest.mark.parametrize("family", CAUSAL, ids=str)
def test_rows_of_unequal_length(family):
    """Prompts padded on the left share their slots; each row goes on as if it were alone.

    One feed has padding only in one row, tokens only in another and both in a third. What stands in slots that are
    not taken yet is not seen.
    """
    decoder, inputs = decoder_of(family), inputs_of(family, batch=3)
    expected = call(family.model, inputs)
    positions = np.array([[0, 1, 2, 3], [-1, 0, 1, 2], [-1, -1, 0, 1]])
    for row in (1, 2):
        inputs[-1][row] = np.where(positions[row] < 0, 0, np.roll(inputs[-1][row], row))
    # several tokens onto a cache are one more shape to compile, so it is tried with every layer and not with every row
    for cut in ((2, 1, 1), (2, 2)) if family in table.EVERY_LAYER else ((2, 1, 1),):
        outputs = decoder(inputs, positions, cut, fill_unused_slots)
        for row in range(3):
            np.testing.assert_allclose(outputs[row, row:], expected[row, : LENGTH - row], atol=1e-5)


# Each cut has shapes of its own to compile, so only a row for each kind of entry in the cache goes through all of
# them: attention, cross-attention, a state (test_cache_kinds.py has the windows).
@pytest.mark.parametrize("family", table.named("transformer, norm first", "gpt", "recurrent stack"), ids=str)
def test_every_cut_gives_the_full_models_logits(family):
    decoder, inputs = decoder_of(family), inputs_of(family)
    positions = np.tile(np.arange(LENGTH), (2, 1))
    expected = call(family.model, inputs)
    for cut in cuts(LENGTH):
        np.testing.assert_allclose(decoder(inputs, positions, cut), expected, atol=1e-5)


def test_a_growing_cache_and_a_pad_inside_the_text():
    (family,) = table.named("gpt")
    inputs = inputs_of(family)
    inputs[0][:, 1] = 0
    expected = call(family.model, inputs)
    positions = np.tile(np.arange(LENGTH), (2, 1))

    def grow(cache):
        return kt.ops.extend_cache(cache, cache["positions"].shape[1] + 1)

    outputs = decoder_of(family)(inputs, positions, (2, 1, 1), grow)
    np.testing.assert_allclose(outputs[:, [0, 2, 3]], expected[:, [0, 2, 3]], atol=1e-5)


def test_a_model_that_was_never_called():
    """Keras first runs a subclassed model without values, to build it; that leaves nothing in the cache."""

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = kt.layers.PositionalEmbedding(table.VOCABULARY_SIZE, 8, position=None, pad_token_id=None)
            self.attention = kt.layers.MultiHeadAttention(2, 4)

        def call(self, ids):
            return self.attention(self.embedding(ids), use_causal_mask=True)

    model, positions = Model(), np.arange(3)[None]
    with kt.ops.DecodingScope(None, positions[:, :2], length=3) as scope:
        model(np.array([[3, 4]]))
    cache = scope.cache
    assert list(cache["layers"]) == ["0"]

    def last_step_and_whole(ids):
        with kt.ops.DecodingScope(cache, positions[:, 2:]):
            step = model(ids[:, 2:])
        return step[:, 0], model(ids)[:, 2]

    np.testing.assert_allclose(*run(last_step_and_whole, np.array([[3, 4, 5]])), atol=1e-5)


def test_scores_while_decoding():
    """A scores scope sees the probabilities over all slots."""
    (family,) = table.named("gpt")
    positions = keras.ops.arange(3)[None]

    def whole_and_last_step(ids):
        with kt.ops.ScoresScope() as whole:
            family.model(ids)
        with kt.ops.DecodingScope(None, positions[:, :2], length=4) as scope:
            family.model(ids[:, :2])
        with kt.ops.DecodingScope(scope.cache, positions[:, 2:]), kt.ops.ScoresScope() as step:
            family.model(ids[:, 2:])
        assert [layer for layer, _ in whole.records] == [layer for layer, _ in step.records]
        return [[scores for _, scores in scope.records] for scope in (whole, step)]

    for expected, scores in zip(*run(whole_and_last_step, family.ids(batch=1, length=3)[0]), strict=True):
        assert scores.shape == (1, 2, 1, 4)
        np.testing.assert_allclose(scores[..., :3], expected[:, :, 2:], atol=1e-5)
        assert (scores[..., 3] == 0).all()


def test_the_sources_implicit_mask_is_kept_in_the_cache():
    family = CAUSAL[0]
    inputs = inputs_of(family)
    encoder, decoder = kt.models.encoder_from_ids(family.model), kt.models.decoder_from_ids(family.model)
    positions = keras.ops.tile(keras.ops.arange(LENGTH)[None], (2, 1))

    def decode(source, target):
        with kt.ops.DecodingScope(None, positions) as scope:
            # without `encoder_positions`: the states carry their mask
            logits = decoder({"decoder_token_ids": target, "encoder_states": states(source)})
        return logits, scope.cache

    def states(source):
        with kt.ops.DecodingScope(False, keras.ops.where(source != 0, keras.ops.arange(source.shape[1]), -1)):
            return encoder(source)

    logits, cache = run(decode, *inputs)
    np.testing.assert_allclose(logits, call(family.model, inputs), atol=1e-5)
    entries = [entry for entry in cache["layers"].values() if "encoder_key" in entry]
    assert [entry["encoder_positions"][1].tolist() for entry in entries] == [[0, 0, 0, -1]] * 2


def test_refusals():
    gpt, encoder = (family.model for family in table.named("gpt", "encoder"))
    ids = np.array([[1, 2, 3]])
    positions = np.arange(3)[None]
    with pytest.raises(ValueError, match="positions"):
        kt.ops.DecodingScope(None, np.arange(3))
    with pytest.raises(ValueError, match="3 tokens.*length=2"):
        kt.ops.DecodingScope(None, positions, length=2)
    with pytest.raises(ValueError, match="both ways"), kt.ops.DecodingScope(None, positions):
        run(encoder, ids)

    def prefill(ids):
        with kt.ops.DecodingScope(None, positions) as scope:
            gpt(ids)
        return scope.cache

    cache = keras.tree.map_structure(keras.ops.convert_to_tensor, run(prefill, ids))
    with pytest.raises(ValueError, match="3 slots, 3 are taken and 1"):
        kt.ops.DecodingScope(cache, np.array([[3]]))
    with pytest.raises(ValueError, match="no cache"):
        _ = kt.ops.DecodingScope(False, positions).cache
    deeper = table.gpt(num_layers=3)(dtype="float32", dropout=0.0)
    roomy = kt.ops.extend_cache(cache, 6)
    with pytest.raises(ValueError, match="another model"), kt.ops.DecodingScope(roomy, positions + 3):
        run(deeper, ids)
    assert kt.ops.current_scope() is None
