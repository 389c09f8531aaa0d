"""Padding, the future and batch mates change nothing."""

import contextlib

import numpy as np
import pytest

import keras_transformer as kt
from tests.backend import numpy
from tests.invariants.table import FAMILIES, VOCABULARY_SIZE, call

SIDES = {"right": (0, 3), "left": (3, 0)}


def padded(rows, side):
    return np.pad(rows, ((0, 0), SIDES[side]))


def real_part(outputs, side):
    return outputs[:, :-3] if side == "right" else outputs[:, 3:]


def assert_same(outputs, expected):
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.pads], ids=str)
def test_padding(family):
    """B01, B04: padding on either side, in either input, in some rows or all; the pad's own vector does not matter."""
    model, inputs = family.model, family.ids()
    expected = call(model, inputs)
    for i, side in ((i, side) for i in range(len(inputs)) for side in SIDES):
        changed = [padded(rows, side) if j == i else rows for j, rows in enumerate(inputs)]
        outputs = call(model, changed)
        assert_same(real_part(outputs, side) if i == len(inputs) - 1 else outputs, expected)
        # ragged: the last row is two tokens shorter than the others, so its padding is wider
        ragged = [x.copy() for x in changed]
        cut = slice(-5, None) if side == "right" else slice(None, 5)
        ragged[i][2, cut] = 0
        by_itself = [x[2:] for x in inputs]
        by_itself[i] = by_itself[i][:, :-2] if side == "right" else by_itself[i][:, 2:]
        outputs, alone = call(model, ragged), call(model, by_itself)
        if i == len(inputs) - 1:
            assert_same(real_part(outputs, side)[:2], expected[:2])
            assert_same(outputs[2:, :-5] if side == "right" else outputs[2:, 5:], alone)
        else:
            assert_same(outputs[:2], expected[:2])
            assert_same(outputs[2:], alone)


@contextlib.contextmanager
def pad_vector_of(value, model):
    """The model with another embedding of the pad id."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, kt.layers.PositionalEmbedding)]
    tables = list({id(x.embeddings): x.embeddings for x in layers if x.vocabulary_size}.values())
    originals = [np.array(numpy(table)) for table in tables]
    for table, original in zip(tables, originals, strict=True):
        changed = original.copy()
        changed[0] = value
        table.assign(changed)
    yield
    for table, original in zip(tables, originals, strict=True):
        table.assign(original)


def without_pad_logit(outputs):
    """A tied head's logit of the pad id moves with its embedding, as it should."""
    return outputs[..., 1:] if outputs.shape[-1] == VOCABULARY_SIZE else outputs


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.pads], ids=str)
def test_the_pads_own_vector(family):
    """B01: with an embedding of 1000 for the pad id, real outputs do not move."""
    model, inputs = family.model, [padded(rows, "left") for rows in family.ids()]
    inputs[-1] = padded(family.ids()[-1], "right")
    inputs[0][1, :5] = 0
    expected = without_pad_logit(call(model, inputs))
    with pad_vector_of(1000.0, model):
        outputs = without_pad_logit(call(model, inputs))
    real = inputs[-1] != 0
    assert_same(outputs[real], expected[real])


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.pads], ids=str)
def test_a_hole_is_not_seen(family):
    """A pad id between tokens hides what stands there; the others keep their positions."""
    model, inputs = family.model, family.ids()
    others = np.arange(inputs[-1].shape[1]) != 2
    inputs[-1][:, 2] = 0
    expected = without_pad_logit(call(model, inputs))[:, others]
    with pad_vector_of(5.0, model):
        assert_same(without_pad_logit(call(model, inputs))[:, others], expected)
    inputs[-1][:, 2] = 7
    assert abs(without_pad_logit(call(model, inputs))[:, others] - expected).max() > 1e-3


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.causal], ids=str)
def test_the_future(family):
    """The outputs at 0..t do not depend on the tokens behind t, and do depend on token t."""
    model, inputs = family.model, family.ids()
    expected = call(model, inputs)
    for t in range(1, inputs[-1].shape[1]):
        changed = [x.copy() for x in inputs]
        changed[-1][:, t:] = changed[-1][:, t:] % (VOCABULARY_SIZE - 1) + 1
        outputs = call(model, changed)
        assert_same(outputs[:, :t], expected[:, :t])
        assert (abs(outputs[:, t] - expected[:, t]).max(-1) > 1e-4).all()


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_batch_mates(family):
    model, inputs = family.model, family.ids()
    expected = call(model, inputs)
    assert_same(call(model, [x[::-1] for x in inputs]), expected[::-1])
    others = [np.concatenate([x[:1], (x[1:] + 3) % (VOCABULARY_SIZE - 1) + 1]) for x in inputs]
    assert_same(call(model, others)[:1], expected[:1])
    assert_same(call(model, [x[1:2] for x in inputs]), expected[1:2])
    if family.pads:  # a mate that is nothing but padding, or padded
        empty = [np.concatenate([x[:2], np.zeros_like(x[:1])]) for x in inputs]
        outputs = call(model, empty)
        assert_same(outputs[:2], expected[:2])
        assert np.isfinite(outputs).all()


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_dropout_is_off_at_inference(family):
    """B09: the model of the other tests has dropout everywhere."""
    inputs = family.ids()
    assert_same(call(family.model, inputs), call(family.new(dropout=0.0), inputs))
