"""`FeedForward` and `RMSNorm` against NumPy."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import reference
from tests.backend import numpy, run, vectors
from tests.layers.configs import assert_config_holds

ACTIVATIONS = {"relu": reference.relu, "gelu": reference.gelu, "silu": reference.silu, "sigmoid": reference.sigmoid}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_equals_numpy(activation, gated):
    layer = kt.layers.FeedForward(12, activation=activation, gated=gated, use_bias=activation != "silu")
    layer.build((None, None, 6))
    weights = reference.randomize(layer)[layer.name]
    assert set(weights) == {"intermediate", "output"} | ({"gate"} if gated else set())
    x = vectors(2, 5, 6)
    expected = reference.feed_forward(x, weights, ACTIVATIONS[activation])
    np.testing.assert_allclose(run(layer, x), expected, atol=1e-5)


def test_gelu_is_exact_unless_the_approximation_is_asked_for():
    """B13: GELU at 1 and -2, by the error function and by tanh."""
    values = {}
    for name, activation in (("erf", "gelu"), ("tanh", lambda x: keras.activations.gelu(x, approximate=True))):
        layer = kt.layers.FeedForward(1, activation=activation, use_bias=False, kernel_initializer="ones")
        values[name] = numpy(layer(np.array([[[1.0]], [[-2.0]]])))[:, 0, 0]
    np.testing.assert_allclose(values["erf"], [0.841345, -0.045500], atol=1e-6)
    np.testing.assert_allclose(values["tanh"], [0.841192, -0.045402], atol=1e-6)


def test_any_rank_is_position_wise():
    layer = kt.layers.FeedForward(12, "gelu", gated=True)
    x = vectors(2, 3, 4, 6)
    by_position = layer(x.reshape(24, 1, 6))
    np.testing.assert_allclose(numpy(layer(x)).reshape(24, 1, 6), numpy(by_position), atol=1e-6)
    assert layer(keras.Input((None, 6))).shape == (None, None, 6)


def test_mask_is_passed_on():
    x = keras.layers.Embedding(5, 6, mask_zero=True)(np.array([[3, 0]]))
    assert numpy(kt.layers.FeedForward(12)(x)._keras_mask).tolist() == [[True, False]]
    assert numpy(kt.layers.RMSNorm()(x)._keras_mask).tolist() == [[True, False]]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16"])
def test_policies(policy):
    exact = kt.layers.FeedForward(12, "silu", gated=True)
    layer = kt.layers.FeedForward(12, "silu", gated=True, dtype=policy)
    for x in (exact, layer):
        x.build((None, None, 6))
    reference.randomize(exact)
    layer.set_weights(exact.get_weights())
    x = vectors(2, 5, 6)
    output = layer(x)
    assert keras.backend.standardize_dtype(output.dtype) == policy.replace("mixed_", "")
    np.testing.assert_allclose(numpy(keras.ops.cast(output, "float32")), run(exact, x), atol=0.05)


def test_inner_dropout():
    layer = kt.layers.FeedForward(50, "linear", dropout=0.3, use_bias=False, seed=1)
    layer.build((None, None, 50))
    layer.intermediate_dense.kernel.assign(np.eye(50))
    layer.output_dense.kernel.assign(np.eye(50))
    x = np.ones((1, 40, 50), "float32")
    np.testing.assert_array_equal(numpy(layer(x)), x)
    output = numpy(layer(x, training=True))
    assert abs((output == 0).mean() - 0.3) < 3 * np.sqrt(0.3 * 0.7 / 2000)
    np.testing.assert_allclose(output[output != 0], 1 / 0.7, rtol=1e-5)


def test_config_keeps_every_argument():
    options = {
        "intermediate_dim": 12,
        "activation": "silu",
        "gated": True,
        "dropout": 0.25,
        "use_bias": False,
        "seed": 3,
        "kernel_initializer": keras.initializers.RandomNormal(stddev=0.5),
        "bias_initializer": keras.initializers.Constant(0.5),
        "kernel_regularizer": keras.regularizers.L2(0.5),
        "bias_regularizer": keras.regularizers.L1(0.25),
        "kernel_constraint": keras.constraints.MaxNorm(3),
        "bias_constraint": keras.constraints.NonNeg(),
        "name": "inner",
        "dtype": "mixed_bfloat16",
    }
    assert_config_holds(kt.layers.FeedForward, options)
    norm = {"epsilon": 0.5, "zero_centered": True, "name": "norm", "dtype": "mixed_bfloat16"}
    assert_config_holds(kt.layers.RMSNorm, norm)
    layer = kt.layers.FeedForward(**options)
    layer.build((None, None, 6))
    assert len(layer.losses) == 3
    kernels = [numpy(w) for w in layer.weights]
    assert kernels[0].shape == kernels[1].shape == (6, 12) and abs(kernels[0] - kernels[1]).max() > 1e-3


def test_refused_arguments():
    for options, words in (
        ({"intermediate_dim": None}, ["intermediate_dim", "None"]),
        ({"intermediate_dim": 0}, ["intermediate_dim", "0"]),
        ({"intermediate_dim": 3, "dropout": -0.1}, ["dropout", "-0.1"]),
    ):
        with pytest.raises(ValueError) as error:
            kt.layers.FeedForward(**options)
        assert all(word in str(error.value) for word in words)
    with pytest.raises(ValueError, match="last dimension"):
        kt.layers.FeedForward(3)(keras.Input((None, None)))


def test_rms_norm_equals_numpy_in_float32():
    layer = kt.layers.RMSNorm(epsilon=1e-6)
    layer.build((None, None, 6))
    scale = reference.randomize(layer)[layer.name]["scale"]
    x = vectors(2, 5, 6)
    np.testing.assert_allclose(run(layer, x), reference.rms_norm(x.astype("float64"), scale, 1e-6), atol=1e-5)
    tiny = np.array([[[1e-3, -1e-3, 2e-3, -2e-3]]])
    np.testing.assert_allclose(numpy(kt.layers.RMSNorm(1e-5)(tiny)), reference.rms_norm(tiny, epsilon=1e-5), rtol=1e-4)
    half = kt.layers.RMSNorm(dtype="float16")
    large = np.full((1, 1, 8), 3e4, "float16")  # its square does not fit into 16 bits
    np.testing.assert_allclose(numpy(half(large)).astype("float32"), 1, atol=1e-3)
    assert kt.layers.RMSNorm.from_config(layer.get_config()).epsilon == 1e-6
