"""On TensorFlow no thread tunes the input, whose sleep the end of an epoch would have to wait for."""

import keras
import numpy as np
import pytest

import keras_transformer as kt


def test_pipelines_are_not_tuned_unless_they_say_so(monkeypatch):
    if keras.config.backend() != "tensorflow":
        assert kt.training.end_epochs_at_once() is False
        return
    import tensorflow as tf

    seen = []

    def begin(dataset):
        seen.append(dataset.options().autotune.enabled)
        return iter([])

    monkeypatch.setattr(tf.data.Dataset, "__iter__", begin)
    asked_for = tf.data.Options()
    asked_for.autotune.enabled = True
    dataset = tf.data.Dataset.range(4).prefetch(tf.data.AUTOTUNE)
    list(dataset)
    for _ in range(2):  # the second call changes nothing
        assert kt.training.end_epochs_at_once() is True
    list(dataset)
    list(dataset.with_options(asked_for))
    assert seen == [None, False, True]


@pytest.mark.parametrize("kind", ["arrays", "batches"])
def test_training_is_what_it_was(kind):
    """Keras' `fit` on arrays and on a `PyDataset`, against the steps by hand."""
    seen = []

    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            seen.append(index)
            return x[2 * index : 2 * index + 2], y[2 * index : 2 * index + 2]

    x, y = np.arange(6, dtype="float32")[:, None], np.ones((6, 1), "float32")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    kt.training.end_epochs_at_once()
    data = {"x": Rows()} if kind == "batches" else {"x": x, "y": y, "batch_size": 2}
    model.fit(**data, epochs=2, shuffle=False, verbose=0)
    weight = bias = 0.0
    for _ in range(2):
        for i in range(0, 6, 2):
            error = weight * x[i : i + 2] + bias - 1
            weight, bias = weight - 0.02 * (error * x[i : i + 2]).mean(), bias - 0.02 * error.mean()
    np.testing.assert_allclose(np.ravel(model.get_weights()[0]), weight, rtol=1e-5)
    np.testing.assert_allclose(model.get_weights()[1], bias, rtol=1e-5)
    assert kind == "arrays" or {0, 1, 2} <= set(seen)
