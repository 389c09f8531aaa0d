"""Layers of KerasHub, trained, as ours: the same numbers on real tokens."""

import keras
import keras_hub
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.convert import from_keras_hub
from tests import reference
from tests.backend import numpy, vectors

MASK = np.array([[True, True, True, True], [True, True, False, False]])
KINDS = {
    "post": {},
    "pre, tanh gelu": {"normalize_first": True, "activation": keras.activations.gelu, "layer_norm_epsilon": 1e-2},
}


def assert_same(ours, theirs):
    np.testing.assert_allclose(numpy(ours)[MASK], numpy(theirs)[MASK], atol=1e-5)


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_blocks(options):
    x, encoder_output = vectors(2, 4, 8), vectors(2, 4, 8, seed=1)
    encoder = keras_hub.layers.TransformerEncoder(12, 2, name="first", **options)
    decoder = keras_hub.layers.TransformerDecoder(12, 2, **options)
    alone = keras_hub.layers.TransformerDecoder(12, 2, **options)
    for layer, inputs in ((encoder, [x]), (decoder, [x, encoder_output]), (alone, [x])):
        layer(*inputs)
        reference.randomize(layer)
    ours = from_keras_hub(encoder)
    assert isinstance(ours, kt.layers.EncoderBlock) and ours.name == "first"
    assert_same(ours(x, padding_mask=MASK), encoder(x, padding_mask=MASK))
    ours = from_keras_hub(decoder)
    found = ours(x, encoder_output, padding_mask=MASK, encoder_padding_mask=MASK)
    assert_same(found, decoder(x, encoder_output, decoder_padding_mask=MASK, encoder_padding_mask=MASK))
    assert_same(from_keras_hub(alone)(x, padding_mask=MASK), alone(x, decoder_padding_mask=MASK))


def test_embeddings():
    ids = np.array([[3, 1, 4, 1], [5, 9, 0, 0]])
    theirs = keras_hub.layers.TokenAndPositionEmbedding(10, 6, 8, mask_zero=True)
    expected = theirs(ids)
    ours = from_keras_hub(theirs)
    assert_same(ours(ids), expected)
    np.testing.assert_array_equal(numpy(ours.compute_mask(keras.ops.convert_to_tensor(ids))), MASK)
    theirs = keras_hub.layers.ReversibleEmbedding(10, 8)
    expected = theirs(ids)
    ours = from_keras_hub(theirs)
    assert_same(ours(ids), expected)
    assert_same(ours(expected, reverse=True), theirs(expected, reverse=True))


def test_what_cannot_come_across():
    with pytest.raises(ValueError, match="TransformerEncoder.*Received: Dense"):
        from_keras_hub(keras.layers.Dense(3))
    with pytest.raises(ValueError, match="must have been built"):
        from_keras_hub(keras_hub.layers.TransformerEncoder(12, 2))
    uneven = keras_hub.layers.TransformerEncoder(12, 3)
    uneven(vectors(2, 4, 8))
    with pytest.raises(ValueError, match="num_heads=3.*8 features"):
        from_keras_hub(uneven)
