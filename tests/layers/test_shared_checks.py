"""What all layers check, or do, in the same way."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.backend import numpy, run, vectors

WITH_MASKS = {
    "pooling": (lambda: kt.layers.SequencePooling("mean"), "mask"),
    "experts": (lambda: kt.layers.MixtureOfExperts(2, 6), "mask"),
    "block": (lambda: kt.layers.EncoderBlock(2, 6), "padding_mask"),
    "attention": (lambda: kt.layers.MultiHeadAttention(2, 4), "query_mask"),
}


@pytest.mark.parametrize("name", WITH_MASKS)
def test_a_mask_has_a_row_for_each_text_or_one_for_all(name):
    make, argument = WITH_MASKS[name]
    layer, x = make(), vectors(2, 3, 8)
    inputs = (x, x) if name == "attention" else (x,)
    layer(*inputs)  # built before it is traced
    row, options = np.array([[True, True, False]]), {"training": True} if name == "experts" else {}
    one, each = (
        run(lambda *inputs, mask=mask: layer(*inputs, **{argument: mask}, **options), *inputs)
        for mask in (row, np.repeat(row, 2, axis=0))
    )
    np.testing.assert_allclose(one, each, atol=1e-6)
    with pytest.raises(ValueError, match=rf"`{argument}` must have the shape of the positions, \(2, 3\)"):
        layer(*inputs, **{argument: np.ones((3, 3), "bool")})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_span_in_nothing_but_padding_is_no_nan(dtype):
    layer = kt.layers.SpanLogits(dtype=dtype)
    for logits in numpy(layer(np.zeros((1, 3, 2), "float32"), mask=np.zeros((1, 3), "bool"))):
        assert np.isfinite(logits.astype("float32")).all() and (logits.astype("float32") <= -5e4).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda first, name: kt.layers.ClassToken(initializer=first, name=name),
        lambda first, name: kt.layers.RelativePositionBias(2, 4, 8, embeddings_initializer=first, name=name),
        lambda first, name: kt.layers.SegmentEmbedding(2, 8, first, name=name),
    ],
)
def test_one_initializer_for_two_layers_draws_twice(make):
    first = keras.initializers.RandomNormal()
    layers = [make(first, name) for name in "ab"]
    for layer in layers:
        layer.build((1, 3, 8))
    a, b = (numpy(layer.weights[0].value) for layer in layers)
    assert a.any() and (a != b).any()


def test_a_norm_needs_an_epsilon_and_known_features():
    for epsilon in (-1.0, 0, float("nan"), float("inf"), None):
        with pytest.raises(ValueError, match="`epsilon` must be a finite number above 0"):
            kt.layers.RMSNorm(epsilon)
    with pytest.raises(ValueError, match="expects known features"):
        kt.layers.RMSNorm()(keras.Input((3, None)))


def test_query_value_and_key_have_as_many_dimensions():
    layer, x = kt.layers.MultiHeadAttention(2, 4), vectors(2, 5, 8)
    for others in ([vectors(2, 3, 4, 8)], [vectors(2, 3, 8), vectors(2, 3, 4, 8)]):
        with pytest.raises(ValueError, match="must (have 3 dimensions|agree in all but the last)"):
            layer(x, *others)
