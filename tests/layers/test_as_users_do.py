"""The layers in the scripts people write: Sequential classifiers, TextVectorization, time series, masked losses."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.backend import numpy, run, vectors

IDS = np.array([[5, 6, 7, 0, 0, 0], [4, 3, 0, 0, 0, 0], [9, 8, 7, 6, 5, 4], [1, 2, 3, 4, 0, 0]])
LABELS = np.array([0, 1, 1, 0])


def classifier(*first, embedding=None):
    return keras.Sequential(
        [
            *first,
            embedding or kt.layers.PositionalEmbedding(vocabulary_size=20, hidden_dim=16),
            kt.layers.EncoderBlock(num_heads=2, intermediate_dim=24, dropout=0.1),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )


@pytest.mark.parametrize("first", [[], [keras.Input((None,), dtype="int32")]], ids=["without Input", "with Input"])
def test_sequential_classifier(first, tmp_path):
    model = classifier(*first)
    model.compile("adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(IDS, LABELS, epochs=2, batch_size=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    predictions = model.predict(IDS, verbose=0)
    called, shorter = run(lambda ids: (model(ids), model(ids[:1, :3])), IDS)
    np.testing.assert_allclose(predictions, called, atol=1e-5)
    np.testing.assert_allclose(predictions[:1], shorter, atol=1e-5)  # the average takes no padding either
    loss = -np.log(predictions[np.arange(4), LABELS]).mean()
    np.testing.assert_allclose(model.evaluate(IDS, LABELS, batch_size=2, verbose=0)[0], loss, atol=1e-5)
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(
        run(keras.models.load_model(tmp_path / "model.keras"), IDS.astype("float32")), predictions, atol=1e-5
    )


def test_ids_from_text_vectorization():
    import tensorflow as tf

    texts = ["a man a plan", "a canal", "panama is a canal in panama", "plan"]
    vectorize = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=6)
    vectorize.adapt(texts)
    model = classifier()
    model.compile("adam", loss="sparse_categorical_crossentropy")
    dataset = tf.data.Dataset.from_tensor_slices((texts, LABELS)).batch(2)
    dataset = dataset.map(lambda text, label: (vectorize(text), label))
    assert np.isfinite(model.fit(dataset, verbose=0).history["loss"]).all()
    ids = np.asarray(vectorize(texts))
    both = run(lambda ids: (model(ids), model(ids[:, :2])), ids[1:2])
    np.testing.assert_allclose(*both, atol=1e-5)  # its padding is 0, as ours


def test_pretrained_vectors_that_stay_fixed():
    embedding = kt.layers.PositionalEmbedding(20, 16, position=None)
    model = classifier(keras.Input((None,), dtype="int32"), embedding=embedding)
    pretrained = vectors(20, 16)
    embedding.embeddings.assign(pretrained)
    embedding.trainable = False
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    model.fit(IDS, LABELS, verbose=0)
    np.testing.assert_array_equal(numpy(embedding.embeddings), pretrained)


def test_time_series():
    series = vectors(4, 6, 3)
    series[0, 4:] = 0
    model = keras.Sequential(
        [
            keras.Input((None, 3)),
            keras.layers.Masking(),
            keras.layers.TimeDistributed(keras.layers.Dense(16)),
            kt.layers.PositionalEmbedding(None, 16),
            kt.layers.EncoderBlock(2, 24),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    assert np.isfinite(model.fit(series, LABELS, verbose=0).history["loss"]).all()
    np.testing.assert_allclose(*run(lambda x: (model(x), model(x[:, :4])), series[:1]), atol=1e-5)


def test_the_loss_leaves_padding_out():
    """The mask made from the ids reaches `compile`'s loss, with 0 a class like any other."""
    ids, classes = IDS[:, :4], np.random.default_rng(0).integers(0, 3, (4, 4))
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            kt.layers.PositionalEmbedding(20, 16),
            kt.layers.EncoderBlock(2, 24),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.0), loss="sparse_categorical_crossentropy")
    probabilities, real = run(model, ids), ids != 0
    picked = np.take_along_axis(probabilities, classes[..., None], -1)[..., 0]
    loss = -np.log(picked)[real].mean()
    np.testing.assert_allclose(model.fit(ids, classes, verbose=0).history["loss"], loss, atol=1e-5)
    padded, padded_classes = (np.pad(x, ((0, 0), (0, 3))) for x in (ids, classes))
    np.testing.assert_allclose(model.evaluate(padded, padded_classes, verbose=0), loss, atol=1e-5)


def test_add_of_masked_tensors_keeps_the_mask():
    """B01: token and position tables of one's own, joined by `keras.layers.Add`, between our layers."""
    ids = keras.Input((None,), dtype="int32")
    tokens = kt.layers.PositionalEmbedding(20, 16, position=None)(ids)
    positions = kt.layers.PositionalEmbedding(20, 16, position="learned", max_sequence_length=9)(ids)
    x = keras.layers.Add()([tokens, positions])
    x = kt.layers.EncoderBlock(2, 24)(x)
    x = keras.layers.Add()([x, kt.layers.FeedForward(24)(kt.layers.RMSNorm()(x))])
    model = keras.Model(ids, kt.layers.EncoderBlock(2, 24)(x))
    alone, batched = run(lambda ids: (model(ids[:1, :3]), model(ids)), IDS)
    np.testing.assert_allclose(batched[:1, :3], alone, atol=1e-5)
    np.testing.assert_allclose(model.predict(IDS, verbose=0)[:1, :3], alone, atol=1e-5)
    assert numpy(model(IDS[:1])._keras_mask).tolist() == (IDS[:1] != 0).tolist()


def test_subclassed_model():
    class Tagger(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = kt.layers.PositionalEmbedding(20, 16, dropout=0.1)
            self.blocks = [kt.layers.EncoderBlock(2, 24, dropout=0.1)]
            self.head = keras.layers.Dense(3)

        def call(self, ids):
            x = self.embedding(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    model = Tagger()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(IDS, IDS % 3, verbose=0)
    predictions = model.predict(IDS, verbose=0)
    np.testing.assert_allclose(predictions[:1, :3], run(model, IDS[:1, :3]), atol=1e-5)
    assert len(model.trainable_variables) == 1 + 16 + 2


def test_mixed_precision_by_the_global_policy():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = classifier(keras.Input((None,), dtype="int32"))
        unclear = classifier()
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile("adam", loss="sparse_categorical_crossentropy")
    assert np.isfinite(model.fit(IDS, LABELS, verbose=0).history["loss"]).all()
    assert all(w.dtype == "float32" for w in model.weights)
    with pytest.raises(ValueError, match="keras.Input"):  # such a model rounds its ids before any layer sees them
        unclear(IDS)
