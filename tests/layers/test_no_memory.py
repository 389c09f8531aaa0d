"""What is called keeps nothing, and leaves nothing on what it was called with.

Keras hangs a layer's mask on its output. Where that is the very tensor that came in, the caller's tensor carries the
mask into the next call, of this model or another.
"""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.backend import numpy, vectors

IDS = np.asarray([[5, 6, 0], [4, 0, 0]], "int32")
LAYERS = {
    "PaddingMask": (lambda: kt.layers.PaddingMask(0), IDS),
    "ModelCard": (lambda: kt.layers.ModelCard({}), IDS),
    "PositionalEmbedding": (lambda: kt.layers.PositionalEmbedding(9, 4), IDS),
    "PositionalEmbedding of vectors": (
        lambda: kt.layers.PositionalEmbedding(None, 4, position=None, scale=1.0),
        vectors(2, 3, 4),
    ),
    "EncoderBlock": (lambda: kt.layers.EncoderBlock(2, 4, stochastic_depth=0.5), vectors(2, 3, 4)),
    "RMSNorm": (lambda: kt.layers.RMSNorm(), vectors(2, 3, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_input_carries_no_mask(name):
    make, given = LAYERS[name]
    layer, x = make(), keras.ops.convert_to_tensor(given)
    layer(x)
    assert getattr(x, "_keras_mask", None) is None


def test_the_same_tensors_once_more():
    """T5 masks sources alone; a model without padding then reads the same ids."""
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
    t5, gpt = kt.models.t5(None, 9, key_dim=4, **sizes), kt.models.gpt(None, 9, 8, pad_token_id=None, **sizes)
    inputs = {"encoder_token_ids": IDS, "decoder_token_ids": np.asarray([[1, 3, 4, 5], [1, 6, 7, 8]], "int32")}
    inputs = {name: keras.ops.convert_to_tensor(x) for name, x in inputs.items()}
    before = numpy(gpt(inputs["encoder_token_ids"]))
    first, second = numpy(t5(inputs)), numpy(t5(inputs))
    np.testing.assert_allclose(first, second, atol=1e-6)
    np.testing.assert_allclose(numpy(gpt(inputs["encoder_token_ids"])), before, atol=1e-6)
