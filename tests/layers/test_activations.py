"""`gelu_tanh` by name and in configurations, and the soft cap."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.backend import numpy, run, vectors


def test_activations_have_names_and_are_saved():
    """GELU by tanh is none of Keras' names."""
    x = np.linspace(-3, 3, 13, dtype="float32")
    expected = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(numpy(kt.layers.gelu_tanh(keras.ops.convert_to_tensor(x))), expected, atol=1e-6)
    for given in ("gelu_tanh", kt.layers.gelu_tanh):
        layer = kt.layers.FeedForward(4, given)
        assert layer.activation is kt.layers.gelu_tanh
        again = kt.layers.FeedForward.from_config(layer.get_config())
        assert again.activation is kt.layers.gelu_tanh
    assert kt.layers.FeedForward(4, "gelu").activation is keras.activations.gelu
    with pytest.raises(ValueError, match="gelu_tan"):
        kt.layers.FeedForward(4, "gelu_tan")


def test_soft_cap():
    layer, x = kt.layers.SoftCap(2.0), 5 * vectors(2, 3, 4)
    found = run(layer, x)
    np.testing.assert_allclose(found, 2 * np.tanh(x / 2), atol=1e-6)
    assert found.dtype == "float32" and abs(found).max() <= 2
    again = kt.layers.SoftCap.from_config(layer.get_config())
    assert again.cap == 2.0 and again.compute_dtype == "float32"
    masked = layer(kt.layers.PositionalEmbedding(5, 4)(np.array([[1, 2, 0]])))
    np.testing.assert_array_equal(numpy(masked._keras_mask), [[True, True, False]])
    for cap in (0, -1.0):
        with pytest.raises(ValueError, match=f"cap.*{cap}"):
            kt.layers.SoftCap(cap)
