"""`attention_scores` shows what the layers themselves return."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt


def test_scores_of_every_layer_of_a_nested_model():
    model = kt.models.transformer(20, 20, 2, 2, 8, 16, dropout=0.3)
    inputs = {
        "encoder_token_ids": np.asarray([[3, 4, 5, 0], [6, 7, 8, 9]]),
        "decoder_token_ids": np.asarray([[1, 4, 5], [1, 7, 0]]),
    }
    scores = kt.inspect.attention_scores(model, inputs)
    assert list(scores) == [
        "encoder_block_0/self_attention",
        "encoder_block_1/self_attention",
        "decoder_block_0/self_attention",
        "decoder_block_0/cross_attention",
        "decoder_block_1/self_attention",
        "decoder_block_1/cross_attention",
    ]
    cross = scores["decoder_block_1/cross_attention"]
    assert cross.shape == (2, 2, 3, 4)
    assert (cross[0, :, :, 3] == 0).all()  # source padding
    np.testing.assert_allclose(cross[0].sum(-1), 1, atol=1e-5)
    causal = scores["decoder_block_0/self_attention"][0, 0]
    assert (np.triu(causal, 1) == 0).all()


def test_equal_to_return_attention_scores_and_repeated_calls_are_kept_apart():
    block = kt.layers.EncoderBlock(2, 16, name="block")
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, block(block(inputs)))
    x = np.random.default_rng(0).normal(size=(2, 4, 8)).astype("float32")
    scores = kt.inspect.attention_scores(model, x)
    assert list(scores) == ["block/self_attention", "block/self_attention:1"]
    y, expected = block(x, return_attention_scores=True)
    np.testing.assert_allclose(scores["block/self_attention"], ops.convert_to_numpy(expected), atol=1e-6)
    _, expected = block(y, return_attention_scores=True)
    np.testing.assert_allclose(scores["block/self_attention:1"], ops.convert_to_numpy(expected), atol=1e-6)


def test_a_model_without_attention_is_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="no attention layer"):
        kt.inspect.attention_scores(model, np.zeros((1, 3), "float32"))


def test_a_model_that_was_never_called():
    """Keras first runs it without values, to build it; that leaves no scores behind. Rows of ids may be plain lists."""

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = kt.layers.PositionalEmbedding(20, 8)
            self.block = kt.layers.DecoderBlock(2, 16)

        def call(self, ids):
            return self.block(self.embedding(ids))

    scores = kt.inspect.attention_scores(Model(), [[3, 4, 5], [6, 7, 8]])
    assert [x.shape for x in scores.values()] == [(2, 2, 3, 3)]


def test_ragged_rows_are_refused():
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, kt.layers.EncoderBlock(2, 8)(kt.layers.PositionalEmbedding(9, 8)(ids)))
    with pytest.raises(ValueError, match="`inputs` has rows of different lengths.*pad_batch"):
        kt.inspect.attention_scores(model, [[5, 6, 7], [8]])
