"""The self-check passes what is right and names what is wrong."""

import keras
import pytest

import keras_transformer as kt


def embed():
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    return ids, kt.layers.PositionalEmbedding(30, 16)(ids)


@pytest.mark.parametrize("options", [{}, {"norm_placement": "pre", "share_embeddings": None, "pad_token_id": None}])
def test_the_transformer_passes(options):
    report = kt.testing.check(kt.models.transformer(30, 40, 1, 2, 16, 32, dropout=0.2, **options))
    tried = {name for name, value in report.items() if isinstance(value, float)}
    assert tried >= {"batch", "future", "compiled", "saved", "cache"}
    assert ("padding" in tried) == ("pad_token_id" not in options)


def test_an_encoder_passes_and_is_called_one():
    ids, x = embed()
    report = kt.testing.check(keras.Model(ids, kt.layers.EncoderBlock(2, 32)(x)))
    assert report["future"] == "the model looks both ways"
    with pytest.raises(ValueError, match="`future`"):
        kt.testing.check(keras.Model(ids, kt.layers.EncoderBlock(2, 32)(x)), causal=True)


@pytest.mark.parametrize("spoil", [lambda x: x * 2.0, lambda x: x + x])
def test_the_spot_where_the_mask_is_lost_is_named(spoil):
    ids, x = embed()
    lost = spoil(x)
    model = keras.Model(ids, kt.layers.EncoderBlock(2, 32)(lost))
    with pytest.raises(ValueError, match="`padding`.*mask ends at '(multiply|add)"):
        kt.testing.check(model)


def test_keras_add_keeps_the_mask():
    ids, x = embed()
    x = keras.layers.Add()([x, kt.layers.EncoderBlock(2, 32)(x)])
    kt.testing.check(keras.Model(ids, kt.layers.EncoderBlock(2, 32)(x)))


def test_a_layer_that_mixes_positions_breaks_the_cache():
    ids, x = embed()
    x = keras.layers.GRU(16, return_sequences=True)(kt.layers.DecoderBlock(2, 32)(x))
    with pytest.raises(ValueError, match="`cache`"):
        kt.testing.check(keras.Model(ids, x))


def test_a_model_that_shows_no_embedding_needs_inputs():
    inputs = keras.Input((None, 8))
    with pytest.raises(ValueError, match="`inputs` is needed"):
        kt.testing.check(keras.Model(inputs, kt.layers.EncoderBlock(2, 16)(inputs)))
