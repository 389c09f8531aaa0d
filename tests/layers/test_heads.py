"""The layers of heads against NumPy: padding on either side, places that are none, and rows without a token."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.backend import numpy, run, vectors, weight_gradients
from tests.layers.configs import assert_config_holds

IDS = np.array([[5, 2, 7, 0, 0], [0, 0, 5, 6, 2], [2, 6, 2, 6, 0], [0, 5, 6, 7, 0]])  # 2 ends a text, 0 is padding
REAL = IDS > 0
EMBEDDING = {"vocabulary_size": 10, "hidden_dim": 4, "position": None}


def test_tokens_at():
    x, places = vectors(2, 5, 4), np.array([[3, 0, -1], [4, -1, 4]])
    layer = kt.layers.TokensAt()
    expected = np.stack([x[0, [3, 0, 0]], x[1, [4, 0, 4]]])
    expected[places < 0] = 0
    np.testing.assert_array_equal(run(lambda x, places: layer([x, places]), x, places), expected)
    np.testing.assert_array_equal(numpy(layer.compute_mask([x, keras.ops.convert_to_tensor(places)])), places >= 0)


def test_tokens_outside_the_text_are_nan():
    found = run(lambda x, places: kt.layers.TokensAt()([x, places]), vectors(1, 5, 4), np.array([[4, 5, -1, -2]]))
    assert np.isnan(found).all(-1).tolist() == [[False, True, False, True]]


def test_shapes_that_tokens_at_refuses():
    with pytest.raises(ValueError, match="places"):
        kt.layers.TokensAt()([keras.Input((5, 4)), keras.Input((), dtype="int32")])


@pytest.mark.parametrize("token_id, places", [(2, [1, 4, 2, 3]), ([2, 7], [2, 4, 2, 3])])
def test_state_at_token(token_id, places):
    """The last of several; the last real token of the row that has none."""
    x = np.where(REAL[..., None], vectors(4, 5, 4), np.nan).astype("float32")
    layer = kt.layers.StateAtToken(token_id)
    found = run(lambda x, ids, real: layer([x, ids], mask=[real, None]), x, IDS, REAL)
    np.testing.assert_array_equal(found, x[np.arange(4), places])


def test_state_at_token_takes_the_mask_and_refuses_other_shapes():
    ids = keras.Input((None,), dtype="int32")
    embedding = kt.layers.PositionalEmbedding(**EMBEDDING)
    pooled = kt.layers.StateAtToken(9)([embedding(ids), ids])
    assert getattr(pooled, "_keras_mask", None) is None and pooled.shape == (None, 4)
    last = np.array([7, 2, 6, 7])  # none has a 9
    np.testing.assert_allclose(run(keras.Model(ids, pooled), IDS), numpy(embedding.embeddings)[last], atol=1e-6)
    with pytest.raises(ValueError, match="token_ids"):
        kt.layers.StateAtToken(2)([vectors(2, 5, 4), np.ones((2, 4), "int32")])
    with pytest.raises(ValueError, match="token_id"):
        kt.layers.StateAtToken([])


def test_bias():
    layer = kt.layers.AddBias(bias_initializer="ones")
    layer.build((2, 3, 4))
    np.testing.assert_allclose(run(layer, vectors(2, 3, 4)), vectors(2, 3, 4) + 1)
    assert [(w.name, w.shape) for w in layer.weights] == [("bias", (4,))]
    x = keras.ops.convert_to_tensor(vectors(2, 3, 4))
    found = weight_gradients(layer, lambda: keras.ops.sum(layer(x)))
    np.testing.assert_allclose(*found.values(), 6 * np.ones(4))


def test_spans_end_with_the_text():
    """Padding on both sides, no text at all; with segments the second one and the first token alone."""
    x = vectors(5, 5, 2)
    real = np.concatenate([REAL, np.zeros((1, 5), bool)])
    segments = np.array([[0, 1, 1, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1], [0, 0, 1, 1, 1]])
    allowed = [[1, 1, 1, 0, 0], [0, 0, 1, 0, 1], [1, 0, 0, 1, 0], [0, 1, 0, 1, 0], [0] * 5]
    layer = kt.layers.SpanLogits()
    of_all = run(lambda x, real: layer(x, mask=real), x, real)
    of_some = run(lambda x, real, segments: layer(x, segments, inputs_mask=real), x, real, segments)
    unmasked = run(lambda x, segments: layer(x, segments), x, segments)
    for i in range(2):
        np.testing.assert_array_equal(of_all[i], np.where(real, x[..., i], -1e9).astype("float32"))
        np.testing.assert_array_equal(of_some[i], np.where(allowed, x[..., i], -1e9).astype("float32"))
        np.testing.assert_array_equal(unmasked[i] > -1e8, (segments > 0) | (np.arange(5) == 0))
    with pytest.raises(ValueError, match="2"):
        layer(keras.Input((5, 3)))


def test_the_mask_goes_as_far_as_it_means_something():
    ids, places = keras.Input((None,), dtype="int32"), keras.Input((3,), dtype="int32")
    x = kt.layers.PositionalEmbedding(**EMBEDDING)(ids)
    masked = [kt.layers.AddBias()(x), kt.layers.TokensAt()([x, places]), kt.layers.HeadCard({"head": "x"})(x)]
    start, end = kt.layers.SpanLogits()(keras.layers.Dense(2)(x))
    assert all(getattr(y, "_keras_mask", None) is not None for y in masked)
    assert all(getattr(y, "_keras_mask", None) is None for y in (start, end))


def test_16_bits():
    """Logits are float32; vectors stay as they come."""
    x, places = vectors(2, 3, 2), np.array([[0], [1]])
    policy = keras.dtype_policies.DTypePolicy("mixed_float16")
    x = keras.ops.cast(x, "float16")
    found = [kt.layers.TokensAt(dtype=policy)([x, places]), kt.layers.StateAtToken(2, dtype=policy)([x, IDS[:2, :3]])]
    found += [*kt.layers.SpanLogits()(x), kt.layers.AddBias()(x)]
    dtypes = [keras.backend.standardize_dtype(y.dtype) for y in found]
    assert dtypes == ["float16"] * 2 + ["float32"] * 3


def test_configs():
    assert_config_holds(kt.layers.TokensAt, {"name": "tokens", "dtype": "mixed_float16"})
    assert_config_holds(kt.layers.StateAtToken, {"token_id": [2, 3], "name": "state"})
    assert_config_holds(kt.layers.AddBias, {"bias_initializer": "ones", "dtype": "float64"})
    assert_config_holds(kt.layers.SpanLogits, {"dtype": "float64"})
    assert_config_holds(kt.layers.HeadCard, {"config": {"head": "masked_lm"}, "name": "head_card"})


def test_cards():
    ids = keras.Input((None,), dtype="int32")
    x = kt.layers.PositionalEmbedding(**EMBEDDING)(kt.layers.ModelCard({"family": "mine"})(ids))
    model = keras.Model(ids, keras.layers.Dense(2)(kt.layers.HeadCard({"head": "some"})(x)))
    assert kt.layers.read_card(model) == {"family": "mine"} and kt.layers.read_head(model) == {"head": "some"}
    assert kt.layers.read_head(keras.Model(ids, x)) == {}
