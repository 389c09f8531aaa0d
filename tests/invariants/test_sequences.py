"""Padding, the future and batch mates change nothing.

Compiling takes most of the time, so a model is called with two shapes only: a text by itself, and one batch whose
rows are all that may become of it.
"""

import functools

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.backend import numpy
from tests.invariants.table import EVERY_LAYER, FAMILIES, VOCABULARY_SIZE, call, named

PADDING, CUT, HOLE = 3, 2, 2  # pad ids added, tokens cut off the front of a shorter text, the place of a hole
PADDED = [family for family in FAMILIES if family.pads]
CAUSAL = [family for family in FAMILIES if family.causal]


def variants(text, pads):
    """Rows of one length by name: the text, shorter ones and changed ones, with padding around them."""

    def padded(tokens, left=0):
        return np.pad(tokens, (left, len(text) + PADDING * pads - len(tokens) - left))

    def other(tokens):
        return tokens % (VOCABULARY_SIZE - 1) + 1

    rows = {"text": padded(text), "other": padded(other(text))}
    for t in range(1, len(text)):
        rows[f"other from {t}"] = padded(np.concatenate([text[:t], other(text[t:])]))
    if pads:
        short, hole, no_hole = text[CUT:], text.copy(), text.copy()
        hole[HOLE], no_hole[HOLE] = 0, 7
        rows |= {
            "left": padded(text, PADDING),
            "both": padded(text, 1),
            "hole": padded(hole),
            "no hole": padded(no_hole),
        }
        rows |= {f"short {left}": padded(short, left) for left in (0, 1, CUT + PADDING)}
        rows |= {"full": np.pad(other(text), (0, PADDING), mode="wrap"), "empty": padded(text[:0])}
    return rows


class Batch:
    """What a family gives for all variants of one of its inputs, the others being padded on the right."""

    def __init__(self, family):
        self.family, texts = family, family.ids(batch=1)
        self.alone = call(family.model, texts)[0]
        rows = [variants(text[0], family.pads) for text in texts]
        # by which input varies, and how
        self.names = [(i, name) for i in range(len(texts)) for name in rows[i]]
        self.inputs = [
            np.stack([rows[j][name if i == j else "text"] for i, name in self.names]) for j in range(len(texts))
        ]
        self.outputs = call(family.model, self.inputs)

    def of(self, i, name, start=0, length=None):
        """Outputs (length, ...) from `start` on where input i is the variant of this name."""
        length = len(self.alone) if length is None else length
        return self.outputs[self.names.index((i, name)), start : start + length]

    @property
    def sides(self):
        """The inputs by number, and whether the outputs belong to it."""
        last = len(self.inputs) - 1
        return [(i, i == last) for i in range(last + 1)]


batch_of = functools.cache(Batch)


def assert_same(outputs, expected):
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_batch_mates(family):
    """A text gives alone what it gives among others, be they padded, full or nothing but padding."""
    batch = batch_of(family)
    for i, _ in batch.sides:
        assert_same(batch.of(i, "text"), batch.alone)
        assert abs(batch.of(i, "other") - batch.alone).max() > 1e-4
    assert np.isfinite(batch.outputs).all()


@pytest.mark.parametrize("family", PADDED, ids=str)
def test_padding(family):
    """B01, B04: on the right, the left and both sides of either input, and wider where the row is shorter."""
    batch = batch_of(family)
    for i, outputs_are_its_own in batch.sides:
        for name, start in (("text", 0), ("both", 1), ("left", PADDING)):
            assert_same(batch.of(i, name, start * outputs_are_its_own), batch.alone)
        length = len(batch.alone) - CUT * outputs_are_its_own
        short, *others = (
            batch.of(i, f"short {left}", left * outputs_are_its_own, length) for left in (0, 1, CUT + PADDING)
        )
        for outputs in others:
            assert_same(outputs, short)
        assert abs(short - batch.alone[:length]).max() > 1e-4


@pytest.mark.parametrize("family", PADDED, ids=str)
def test_the_pads_own_vector_and_holes(family):
    """B01: with an embedding of 1000 for the pad id, no other output moves.

    A pad id between tokens also hides what stands there, and a token in its place is seen.
    """
    batch, model = batch_of(family), family.model
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, kt.layers.PositionalEmbedding)]
    tables = list({id(x.embeddings): x.embeddings for x in layers if x.vocabulary_size}.values())
    originals = [np.array(numpy(table)) for table in tables]
    for table, original in zip(tables, originals, strict=True):
        table.assign(np.concatenate([np.full_like(original[:1], 1000.0), original[1:]]))
    outputs = call(model, batch.inputs)
    for table, original in zip(tables, originals, strict=True):
        table.assign(original)
    real = batch.inputs[-1] != 0
    assert_same(without_pad_logit(outputs)[real], without_pad_logit(batch.outputs)[real])
    for i, outputs_are_its_own in batch.sides:
        hole, no_hole = (batch.of(i, name) for name in ("hole", "no hole"))
        others = np.arange(len(hole)) != (HOLE if outputs_are_its_own else -1)
        assert abs(without_pad_logit(hole - no_hole)[others]).max() > 1e-3


def without_pad_logit(outputs):
    """A tied head's logit of the pad id moves with its embedding, as it should."""
    return outputs[..., 1:] if outputs.shape[-1] == VOCABULARY_SIZE else outputs


@pytest.mark.parametrize("family", CAUSAL, ids=str)
def test_the_future(family):
    """The outputs at 0..t do not depend on the tokens behind t, and do depend on token t."""
    batch = batch_of(family)
    last = len(batch.inputs) - 1
    for t in range(1, len(batch.alone)):
        outputs = batch.of(last, f"other from {t}")
        assert_same(outputs[:t], batch.alone[:t])
        assert abs(outputs[t] - batch.alone[t]).max() > 1e-4


# one row for each kind of layer that drops something
DROPPING = named("transformer", "sinks, layer scale, parallel", "gpt, experts", "rnn")


@pytest.mark.parametrize("family", DROPPING, ids=str)
def test_dropout_is_off_at_inference(family):
    """B09: the models above have dropout everywhere, or no two of their rows would agree; nor is anything scaled."""
    assert_same(call(family.new(dropout=0.0), family.ids(batch=1))[0], batch_of(family).alone)


def test_the_short_list_holds_every_layer():
    def classes(families):
        return {type(layer) for family in families for layer in family.model._flatten_layers()}

    assert classes(EVERY_LAYER) | {keras.Sequential} == classes(FAMILIES)
