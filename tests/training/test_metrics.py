import keras
import numpy as np
import pytest
import torch
from keras import ops

from keras_transformer.training import MaskedCrossentropy, Perplexity, TokenAccuracy, TokenCrossentropy

VOCABULARY = 7


def uneven_data(rows=10, length=6):
    """Ids padded with 0 on the right; the first rows are the shortest, so that batches differ in their real tokens."""
    rng = np.random.default_rng(0)
    token_ids = rng.integers(1, VOCABULARY, (rows, length))
    lengths = np.clip(np.arange(rows) // 2 + 1, 1, length)
    real = np.arange(length) < lengths[:, None]
    labels = np.where(real, rng.integers(0, VOCABULARY, (rows, length)), 0)
    return np.where(real, token_ids, 0), labels, real.astype("float32")


def small_model(mask_zero=True):
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(VOCABULARY, 8, mask_zero=mask_zero, embeddings_initializer="normal"),
            keras.layers.Dense(VOCABULARY, kernel_initializer=keras.initializers.RandomNormal(stddev=20.0)),
        ]
    )


def expected_figures(logits, labels, weights):
    """Over all tokens at once, with torch's cross-entropy."""
    losses = torch.nn.functional.cross_entropy(
        torch.tensor(logits.reshape(-1, VOCABULARY)), torch.tensor(labels.reshape(-1)), reduction="none"
    ).numpy()
    crossentropy = np.average(losses, weights=weights.reshape(-1))
    return {
        "token_accuracy": np.average(logits.argmax(-1) == labels, weights=weights),
        "token_crossentropy": crossentropy,
        "perplexity": np.exp(crossentropy),
    }


def figures():
    return [TokenAccuracy(), TokenCrossentropy(), Perplexity()]


def without_loss(logs):
    return {name: np.ravel(value)[0] for name, value in logs.items() if name != "loss"}


@pytest.mark.parametrize("argument, run_eagerly", [("metrics", False), ("metrics", True), ("weighted_metrics", False)])
def test_implicit_mask_counts_each_real_token_once_in_fit_and_evaluate(argument, run_eagerly):
    token_ids, labels, real = uneven_data()
    model = small_model()
    expected = expected_figures(model.predict(token_ids, verbose=0), labels, real)
    model.compile(keras.optimizers.SGD(0.0), MaskedCrossentropy(), run_eagerly=run_eagerly, **{argument: figures()})
    evaluated = model.evaluate(token_ids, labels, batch_size=5, verbose=0, return_dict=True)
    trained = model.fit(token_ids, labels, batch_size=5, shuffle=False, verbose=0).history
    assert without_loss(evaluated) == pytest.approx(expected, rel=1e-5)
    assert without_loss(trained) == pytest.approx(expected, rel=1e-5)
    # the batches really weigh differently: the printed loss is another figure
    assert abs(evaluated["loss"] - expected["token_crossentropy"]) > 1e-3


def test_weights_win_over_the_mask_in_fit_and_evaluate():
    token_ids, labels, _ = uneven_data()
    weights = np.random.default_rng(1).uniform(size=labels.shape).astype("float32")
    model = small_model()
    expected = expected_figures(model.predict(token_ids, verbose=0), labels, weights)
    model.compile(keras.optimizers.SGD(0.0), MaskedCrossentropy(), weighted_metrics=figures())
    data = {"sample_weight": weights, "batch_size": 4, "verbose": 0}
    assert without_loss(model.evaluate(token_ids, labels, return_dict=True, **data)) == pytest.approx(
        expected, rel=1e-5
    )
    trained = model.fit(token_ids, labels, shuffle=False, **data).history
    assert without_loss(trained) == pytest.approx(expected, rel=1e-5)


def test_without_mask_and_weights_every_position_counts():
    token_ids, labels, real = uneven_data()
    model = small_model(mask_zero=False)
    expected = expected_figures(model.predict(token_ids, verbose=0), labels, np.ones_like(real))
    model.compile(keras.optimizers.SGD(0.0), MaskedCrossentropy(), metrics=figures())
    evaluated = model.evaluate(token_ids, labels, batch_size=5, verbose=0, return_dict=True)
    assert without_loss(evaluated) == pytest.approx(expected, rel=1e-5)


def test_mask_survives_into_metrics_of_models_with_several_outputs():
    token_ids, labels, real = uneven_data()
    inputs = keras.Input((None,), dtype="int32")
    states = keras.layers.Embedding(VOCABULARY, 8, mask_zero=True)(inputs)
    heads = [keras.layers.Dense(VOCABULARY, name=name)(states) for name in ("first", "second")]
    model = keras.Model(inputs, dict(zip(("first", "second"), heads)))
    model.compile(
        keras.optimizers.SGD(0.0),
        {"first": MaskedCrossentropy(), "second": MaskedCrossentropy()},
        metrics={"first": [TokenCrossentropy()], "second": [TokenCrossentropy()]},
    )
    targets = {"first": labels, "second": labels}
    trained = model.fit(token_ids, targets, batch_size=5, shuffle=False, verbose=0).history
    logits = model.predict(token_ids, verbose=0)
    for name in ("first", "second"):
        expected = expected_figures(logits[name], labels, real)["token_crossentropy"]
        assert trained[f"{name}_token_crossentropy"] == pytest.approx([expected], rel=1e-5)


@pytest.mark.parametrize("metric_class", [TokenAccuracy, TokenCrossentropy, Perplexity])
def test_sums_and_counts_are_divided_once(metric_class):
    labels, weights = uneven_data()[1:]
    logits = np.random.default_rng(2).normal(size=(*labels.shape, VOCABULARY)).astype("float32")
    metric = metric_class()
    for rows in (slice(0, 5), slice(5, 10)):  # of different numbers of real tokens
        metric.update_state(labels[rows], logits[rows], weights[rows])
    expected = expected_figures(logits, labels, weights)[metric.name]
    np.testing.assert_allclose(metric.result(), expected, rtol=1e-5)
    metric.reset_state()
    np.testing.assert_allclose(metric.result(), 1.0 if metric_class is Perplexity else 0.0)


def test_crossentropy_is_in_nats_and_perplexity_its_exponential():
    labels, logits = np.array([[0, 1]]), np.zeros((1, 2, 4))
    np.testing.assert_allclose(TokenCrossentropy()(labels, logits), np.log(4), rtol=1e-6)
    np.testing.assert_allclose(Perplexity()(labels, logits), 4.0, rtol=1e-6)


def test_ignored_positions_may_hold_any_id():
    labels, logits = np.array([[1, -100, 9]]), np.zeros((1, 3, 4), "float32")
    logits[0, 0, 1] = 2.0
    weights = np.array([[1, 0, 0]])
    np.testing.assert_allclose(TokenAccuracy()(labels, logits, weights), 1.0)
    np.testing.assert_allclose(TokenCrossentropy()(labels, logits, weights), np.log(1 + 3 * np.exp(-2)), rtol=1e-6)
    for metric in figures():
        assert np.isnan(ops.convert_to_numpy(metric(labels, logits)))


@pytest.mark.parametrize("metric_class", [TokenAccuracy, TokenCrossentropy, Perplexity])
def test_metrics_round_trip_through_their_config(metric_class):
    metric = metric_class(name="figure")
    restored = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert type(restored) is metric_class
    assert restored.get_config() == metric.get_config()


def test_early_stopping_knows_which_way_is_better():
    token_ids, labels, _ = uneven_data()
    model = small_model()
    model.compile(keras.optimizers.SGD(0.0), MaskedCrossentropy(), metrics=figures())
    accuracy, perplexity = (keras.callbacks.EarlyStopping(f"val_{name}") for name in ("token_accuracy", "perplexity"))
    stopping = {"verbose": 0, "callbacks": [accuracy, perplexity]}
    model.fit(token_ids, labels, validation_data=(token_ids, labels), **stopping)
    assert bool(ops.convert_to_numpy(accuracy.monitor_op(2.0, 1.0)))
    assert not bool(ops.convert_to_numpy(perplexity.monitor_op(2.0, 1.0)))
