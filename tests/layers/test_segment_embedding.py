"""`SegmentEmbedding` against NumPy: rows by token type, masks, ids outside the table."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import reference
from tests.backend import numpy, predict, run, vectors, weight_gradients
from tests.layers.configs import assert_config_holds

IDS = np.array([[0, 0, 1], [2, 1, 0]])


def randomized(**options):
    layer = kt.layers.SegmentEmbedding(3, 4, **options)
    layer.build((None, None, 4))
    return layer, reference.randomize(layer)[layer.name]["embeddings"]


def test_adds_the_row_of_each_type():
    layer, table = randomized()
    x = vectors(2, 3, 4)
    np.testing.assert_allclose(run(layer, x, IDS), x + table[IDS], atol=1e-6)
    np.testing.assert_allclose(run(layer, x), x + table[0], atol=1e-6)
    np.testing.assert_allclose(run(layer, x, IDS.astype("float32")), x + table[IDS], atol=1e-6)


def test_types_never_mask():
    layer, _ = randomized()
    x = keras.layers.Embedding(5, 4, mask_zero=True)(np.array([[3, 4, 0], [2, 0, 0]]))
    for output in (layer(x), layer(x, IDS)):
        assert numpy(output._keras_mask).tolist() == [[True, True, False], [True, False, False]]
    assert getattr(layer(vectors(2, 3, 4), IDS), "_keras_mask", None) is None
    ids, types = (keras.Input((None,), dtype="int32") for _ in range(2))
    embedding = kt.layers.PositionalEmbedding(10, 4)
    assert layer(embedding(ids), types)._keras_mask is not None
    model = keras.Model([ids, types], kt.layers.EncoderBlock(2, 6)(layer(embedding(ids), types)))
    padded = predict(model, [np.array([[3, 4, 5, 0]]), np.array([[0, 1, 1, 0]])])
    alone = predict(model, [np.array([[3, 4, 5]]), np.array([[0, 1, 1]])])
    np.testing.assert_allclose(padded[:, :3], alone, atol=1e-5)


@pytest.mark.parametrize("segment_id", [3, -1])
def test_ids_outside_the_table(segment_id):
    """B41: an error with the number and the limit, in compiled code NaN and never the row of another type."""
    layer, table = randomized()
    x, ids = vectors(2, 3, 4), IDS.copy()
    ids[1, 2] = segment_id
    with pytest.raises(ValueError, match=f"{segment_id}.*num_segments=3"):
        layer(x, ids)
    inputs = keras.Input((None, 4)), keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, layer(*inputs))
    if keras.backend.backend() == "torch":  # predict runs eagerly there
        with pytest.raises(ValueError, match=f"{segment_id}.*num_segments=3"):
            model.predict([x, ids], verbose=0)
    else:
        output = model.predict([x, ids], verbose=0)
        assert np.isnan(output[1, 2]).all()
        np.testing.assert_allclose(output[0], (x + table[IDS])[0], atol=1e-6)


def test_gradients():
    layer, _ = randomized()
    x, ids = map(keras.ops.convert_to_tensor, (vectors(2, 3, 4), IDS))
    (gradient,) = weight_gradients(layer, lambda: keras.ops.sum(layer(x, ids))).values()
    np.testing.assert_allclose(gradient, np.repeat([[3.0], [2.0], [1.0]], 4, axis=1), atol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16"])
def test_policies(policy):
    exact, _ = randomized()
    layer, _ = randomized(dtype=policy)
    output = layer(vectors(2, 3, 4), IDS)
    assert keras.backend.standardize_dtype(output.dtype) == policy.replace("mixed_", "")
    expected = run(exact, vectors(2, 3, 4), IDS)
    np.testing.assert_allclose(numpy(keras.ops.cast(output, "float32")), expected, atol=0.05)


def test_config_keeps_every_argument():
    options = {
        "num_segments": 3,
        "hidden_dim": 4,
        "embeddings_initializer": keras.initializers.Constant(0.5),
        "name": "types",
        "dtype": "mixed_bfloat16",
    }
    assert_config_holds(kt.layers.SegmentEmbedding, options)


def test_refusals():
    for make, words in (
        (lambda: kt.layers.SegmentEmbedding(0, 4), ["num_segments", "0"]),
        (lambda: kt.layers.SegmentEmbedding(2, None), ["hidden_dim", "None"]),
        (lambda: kt.layers.SegmentEmbedding(2, 4)(keras.Input((None, 5))), ["hidden_dim=4", "5"]),
        (lambda: randomized()[0](vectors(2, 3, 4), IDS[:, :2]), ["segment_ids", "(2, 2)", "(2, 3)"]),
    ):
        with pytest.raises(ValueError) as error:
            make()
        assert all(word in str(error.value) for word in words), error.value
