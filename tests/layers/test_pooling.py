"""`SequencePooling` and `Pooler` against NumPy, with padding on either side, holes and nothing but padding."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import reference
from tests.backend import numpy, run, vectors, weight_gradients
from tests.layers.configs import assert_config_holds

MODES = ("mean", "max", "first", "last")
MASK = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool)


def by_hand(x, mask, mode):
    rows = []
    for row, real in zip(x, mask, strict=True):
        tokens = row[real]
        if len(tokens) == 0:
            rows.append(np.zeros(row.shape[-1]))
        else:
            rows.append({"mean": tokens.mean(0), "max": tokens.max(0), "first": tokens[0], "last": tokens[-1]}[mode])
    return np.stack(rows)


def garbage_on_padding(x):
    return np.where(MASK[..., None], x, np.nan).astype("float32")


@pytest.mark.parametrize("mode", MODES)
def test_equals_numpy(mode):
    x = vectors(5, 5, 4) - 3  # the largest are below zero, so a padding of zeros would show
    layer = kt.layers.SequencePooling(mode)
    np.testing.assert_allclose(
        run(lambda x, mask: layer(x, mask=mask), garbage_on_padding(x), MASK), by_hand(x, MASK, mode), atol=1e-6
    )
    np.testing.assert_allclose(run(layer, x), by_hand(x, np.ones_like(MASK), mode), atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_takes_the_implicit_mask_and_passes_none_on(mode):
    ids = keras.Input((None,), dtype="int32")
    x = kt.layers.PositionalEmbedding(10, 4)(ids)
    output = kt.layers.SequencePooling(mode)(x)
    assert output.shape == (None, 4) and getattr(output, "_keras_mask", None) is None
    model = keras.Model(ids, output)
    rows = [[[5, 6, 7]], [[5, 6, 7, 0, 0]], [[0, 0, 5, 6, 7]]]
    first, *others = (run(model, np.array(row)) for row in rows)
    for other in others:
        np.testing.assert_allclose(other, first, atol=1e-6)


def test_means_of_many_numbers_in_16_bits():
    """A sum of 4096 numbers near 100 does not fit into 16 bits."""
    x = np.full((1, 4096, 1), 100.0, "float16")
    assert float(numpy(kt.layers.SequencePooling("mean", dtype="float16")(x))[0, 0]) == 100.0


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_padding_are_zero(mode):
    dense = keras.layers.Dense(4, use_bias=False, kernel_initializer="ones")
    x, mask = map(keras.ops.convert_to_tensor, (vectors(5, 5, 4), MASK))
    dense.build((None, None, 4))
    layer = kt.layers.SequencePooling(mode)
    (gradient,) = weight_gradients(dense, lambda: keras.ops.sum(layer(dense(x), mask=mask))).values()
    assert np.isfinite(gradient).all() and abs(gradient).max() > 0
    if mode in ("mean", "first", "last"):
        expected = by_hand(vectors(5, 5, 4), MASK, mode).sum(0)
        np.testing.assert_allclose(gradient, np.tile(expected[:, None], (1, 4)), atol=1e-5)


def test_pooler_equals_numpy():
    layer = kt.layers.Pooler(3)
    layer.build((None, None, 4))
    weights = reference.randomize(layer)[layer.name]["dense"]
    x = vectors(5, 5, 4)
    np.testing.assert_allclose(run(layer, x), np.tanh(reference.dense(x[:, 0], weights)), atol=1e-6)
    first = by_hand(x, MASK, "first")
    np.testing.assert_allclose(
        run(lambda x, mask: layer(x, mask=mask), garbage_on_padding(x), MASK),
        np.tanh(reference.dense(first, weights)),
        atol=1e-6,
    )
    assert layer(keras.Input((None, 4))).shape == (None, 3)
    tensor = keras.ops.convert_to_tensor(x)
    found = weight_gradients(layer, lambda: keras.ops.sum(layer(tensor)))
    assert len(found) == 2 and all(abs(gradient).min() > 0 for gradient in found.values())


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16"])
def test_policies(policy):
    layers = [kt.layers.SequencePooling(mode, dtype=policy) for mode in MODES]
    pooler = kt.layers.Pooler(3, dtype=policy)
    x = vectors(5, 5, 4)
    for layer in [*layers, pooler]:
        output = layer(x, mask=MASK)
        assert keras.backend.standardize_dtype(output.dtype) == policy.replace("mixed_", "")
        if layer is not pooler:
            expected = by_hand(x, MASK, layer.mode)
            np.testing.assert_allclose(numpy(keras.ops.cast(output, "float32")), expected, atol=0.03)


def test_config_keeps_every_argument():
    assert_config_holds(kt.layers.SequencePooling, {"mode": "last", "name": "pool", "dtype": "mixed_bfloat16"})
    options = {
        "hidden_dim": 3,
        "activation": "relu",
        "use_bias": False,
        "kernel_initializer": keras.initializers.RandomNormal(stddev=0.5),
        "bias_initializer": keras.initializers.Constant(0.5),
        "kernel_regularizer": keras.regularizers.L2(0.5),
        "bias_regularizer": keras.regularizers.L1(0.25),
        "kernel_constraint": keras.constraints.MaxNorm(3),
        "bias_constraint": keras.constraints.NonNeg(),
        "name": "pooler",
        "dtype": "mixed_bfloat16",
    }
    assert_config_holds(kt.layers.Pooler, options)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: kt.layers.SequencePooling("median"), ["mode", "'median'", "'last'"]),
        (lambda: kt.layers.Pooler(0), ["hidden_dim", "0"]),
        (lambda: kt.layers.Pooler(3)(keras.Input((4,))), ["(None, 4)"]),
        (lambda: kt.layers.SequencePooling()(keras.Input((2, 3, 4))), ["(None, 2, 3, 4)"]),
        (lambda: kt.layers.SequencePooling()(vectors(2, 3, 4), mask=np.ones((2, 2), bool)), ["mask", "(2, 2)"]),
    ],
)
def test_refusals(make, words):
    with pytest.raises(ValueError) as error:
        make()
    assert all(word in str(error.value) for word in words), error.value
