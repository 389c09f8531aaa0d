import functools

import keras
import numpy as np
import pytest
import torch
from keras import ops

from keras_transformer.training import MaskedCrossentropy, Perplexity, TokenAccuracy, TokenCrossentropy

LOGITS = np.array([[[2, 0, -1], [0, 1, 0], [5, 5, -5]]], "float32")
LABELS = np.array([[0, 1, 0]])  # 0 is a class like any other; the third position is padding
TOKEN_IDS = np.array([[1, 2, 0]])
REAL_TOKENS_ONLY, PADDING_INCLUDED = 0.360645, 0.471487
BATCH, LENGTH, VOCABULARY = 3, 5, 11


def lookup_model(padding_id_is_masked=True):
    """Logits read from a table: ids 1, 2, 0 give the three rows of LOGITS."""
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(3, 3, mask_zero=padding_id_is_masked),
            keras.layers.Dense(3, use_bias=False, kernel_initializer="identity"),
        ]
    )
    model.layers[0].set_weights([LOGITS[0][[2, 0, 1]]])
    return model


def loss_of(labels, logits, weights=None):
    return ops.convert_to_numpy(MaskedCrossentropy()(labels, logits, weights))


def random_batch(dtype="float32"):
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=3.0, size=(BATCH, LENGTH, VOCABULARY)).astype(dtype)
    labels = rng.integers(0, VOCABULARY, (BATCH, LENGTH))
    weights = (rng.uniform(size=(BATCH, LENGTH)) < 0.6).astype("float32")
    return labels, logits, weights


@functools.cache
def differentiated(label_smoothing, compiled):
    """The loss of `(logits, labels, weights)` and its gradient by the logits, by the backend's own differentiation."""

    def loss(logits, labels, weights):
        return MaskedCrossentropy(label_smoothing)(labels, logits, weights)

    if keras.config.backend() == "jax":
        import jax

        function = jax.value_and_grad(loss)
        return jax.jit(function) if compiled else function
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        def function(logits, labels, weights):
            with tf.GradientTape() as tape:
                tape.watch(logits)
                value = loss(logits, labels, weights)
            return value, tape.gradient(value, logits)

        return tf.function(function) if compiled else function

    def function(logits, labels, weights):
        logits.requires_grad_(True)
        value = loss(logits, labels, weights)
        value.backward()
        return value, logits.grad

    return function


def value_and_gradient(labels, logits, weights, label_smoothing=0.0, compiled=True):
    tensors = [ops.convert_to_tensor(x) for x in (logits, labels, weights)]
    value, gradient = differentiated(label_smoothing, compiled)(*tensors)
    return ops.convert_to_numpy(value), ops.convert_to_numpy(ops.cast(gradient, "float32"))


def torch_reference(labels, logits, weights, label_smoothing):
    logits = torch.tensor(logits.reshape(-1, logits.shape[-1]), requires_grad=True)
    labels = torch.tensor(np.where(weights > 0, labels, -100).reshape(-1))
    loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, label_smoothing=label_smoothing)
    loss.backward()
    return loss.item(), logits.grad.numpy()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.9])
def test_value_and_gradient_equal_torch(label_smoothing, compiled):
    labels, logits, weights = random_batch()
    value, gradient = value_and_gradient(labels, logits, weights, label_smoothing, compiled)
    expected_value, expected_gradient = torch_reference(labels, logits, weights, label_smoothing)
    np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    np.testing.assert_allclose(gradient.reshape(expected_gradient.shape), expected_gradient, atol=1e-7)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_gradient_is_softmax_minus_target_over_the_number_of_tokens(label_smoothing):
    labels, logits, weights = random_batch()
    _, gradient = value_and_gradient(labels, logits, weights, label_smoothing)
    softmax = np.exp(logits.astype("float64"))
    softmax /= softmax.sum(-1, keepdims=True)
    target = (1 - label_smoothing) * np.eye(VOCABULARY)[labels] + label_smoothing / VOCABULARY
    expected = weights[..., None] * (softmax - target) / weights.sum()
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


def test_large_logits_neither_overflow_nor_underflow():
    labels, logits, weights = random_batch()
    value, gradient = value_and_gradient(labels, logits * 1e4, weights, 0.1)
    expected_value, expected_gradient = torch_reference(labels, logits * 1e4, weights, 0.1)
    np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    np.testing.assert_allclose(gradient.reshape(expected_gradient.shape), expected_gradient, atol=1e-7)


def test_logits_and_labels_without_a_time_axis():
    labels, logits, weights = (x[:, 0] for x in random_batch())
    expected, _ = torch_reference(labels, logits, np.ones(BATCH), 0.0)
    np.testing.assert_allclose(loss_of(labels, logits), expected, rtol=1e-6)
    np.testing.assert_allclose(loss_of(labels[:, None], logits), expected, rtol=1e-6)
    weights = np.array([1.0, 0.0, 1.0])
    expected, _ = torch_reference(labels, logits, weights, 0.0)
    np.testing.assert_allclose(loss_of(labels, logits, weights), expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_logits_are_reduced_in_float32(dtype):
    labels, logits, weights = random_batch()
    rounded = ops.cast(logits, dtype)
    expected = MaskedCrossentropy()(labels, ops.cast(rounded, "float32"), weights)
    result = MaskedCrossentropy()(labels, rounded, weights)
    assert keras.backend.standardize_dtype(result.dtype) == "float32"
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_padding_counts_unless_mask_or_weights_say_so():
    np.testing.assert_allclose(loss_of(LABELS, LOGITS), PADDING_INCLUDED, atol=1e-6)
    np.testing.assert_allclose(loss_of(LABELS, LOGITS, np.array([[1, 1, 0]])), REAL_TOKENS_ONLY, atol=1e-6)
    np.testing.assert_allclose(loss_of(LABELS, lookup_model()(TOKEN_IDS)), REAL_TOKENS_ONLY, atol=1e-6)


@pytest.mark.parametrize("num_pads", [0, 7])
def test_appended_padding_changes_nothing_in_fit_and_evaluate(num_pads):
    token_ids, labels = (np.pad(x, [(0, 0), (0, num_pads)]) for x in (TOKEN_IDS, LABELS))
    model = lookup_model()
    metrics = [TokenAccuracy(), TokenCrossentropy(), Perplexity()]
    model.compile(keras.optimizers.SGD(0.0), MaskedCrossentropy(), metrics=metrics)
    evaluated = model.evaluate(token_ids, labels, verbose=0, return_dict=True)
    trained = model.fit(token_ids, labels, verbose=0).history
    expected = {
        "loss": REAL_TOKENS_ONLY,
        "token_accuracy": 1.0,
        "token_crossentropy": REAL_TOKENS_ONLY,
        "perplexity": np.exp(REAL_TOKENS_ONLY),
    }
    assert evaluated == pytest.approx(expected, abs=2e-6)
    assert {name: values[0] for name, values in trained.items()} == pytest.approx(expected, abs=2e-6)


def test_weights_reach_the_loss_in_fit_and_evaluate():
    model = lookup_model(padding_id_is_masked=False)
    model.compile(keras.optimizers.SGD(0.0), MaskedCrossentropy())
    assert model.evaluate(TOKEN_IDS, LABELS, verbose=0) == pytest.approx(PADDING_INCLUDED, abs=1e-6)
    weights = np.array([[1.0, 1.0, 0.0]])
    assert model.evaluate(TOKEN_IDS, LABELS, sample_weight=weights, verbose=0) == pytest.approx(
        REAL_TOKENS_ONLY, abs=1e-6
    )
    history = model.fit(TOKEN_IDS, LABELS, sample_weight=weights, verbose=0).history
    assert history["loss"] == pytest.approx([REAL_TOKENS_ONLY], abs=1e-6)


def test_weights_per_token_replace_the_mask():
    masked_logits = lookup_model()(TOKEN_IDS)
    expected, _ = torch_reference(LABELS, LOGITS, np.array([[0, 1, 1]]), 0.0)
    np.testing.assert_allclose(loss_of(LABELS, masked_logits, np.array([[0, 1, 1]])), expected, rtol=1e-6)


@pytest.mark.parametrize("axes", [1, 2])
def test_weights_per_row_multiply_the_mask(axes):
    token_ids = np.array([[1, 2, 0], [2, 2, 2]])
    labels = np.array([[0, 1, 0], [1, 0, 2]])
    row_weights = np.array([0.5, 2.0])
    logits = lookup_model()(token_ids)
    per_token = row_weights[:, None] * np.array([[1, 1, 0], [1, 1, 1]])
    expected = loss_of(labels, logits, per_token)
    row_weights = row_weights if axes == 1 else row_weights[:, None]
    np.testing.assert_allclose(loss_of(labels, logits, row_weights), expected, rtol=1e-6)

    model = lookup_model()
    model.compile(keras.optimizers.SGD(0.0), MaskedCrossentropy())
    result = model.evaluate(token_ids, labels, sample_weight=row_weights, verbose=0)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_fractional_weights_give_the_weighted_mean():
    labels, logits, _ = random_batch()
    weights = np.random.default_rng(1).uniform(size=labels.shape)
    per_token = torch.nn.functional.cross_entropy(
        torch.tensor(logits.reshape(-1, VOCABULARY)), torch.tensor(labels.reshape(-1)), reduction="none"
    ).numpy()
    expected = (per_token * weights.reshape(-1)).sum() / weights.sum()
    np.testing.assert_allclose(loss_of(labels, logits, weights), expected, rtol=1e-6)
    np.testing.assert_allclose(
        MaskedCrossentropy().call(labels, ops.convert_to_tensor(logits)), per_token.reshape(labels.shape), rtol=1e-5
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_a_batch_without_weight_has_zero_loss_and_gradient(compiled):
    labels, logits, weights = random_batch()
    value, gradient = value_and_gradient(labels, logits, 0 * weights, 0.1, compiled)
    assert value == 0.0
    assert not gradient.any()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("bad_id", [VOCABULARY, -1, -100, 10**9])
def test_ids_outside_the_vocabulary_give_nan_unless_their_weight_is_zero(bad_id, compiled):
    labels, logits, weights = random_batch()
    expected_value, expected_gradient = torch_reference(labels, logits, weights, 0.1)

    ignored = np.where(weights > 0, labels, bad_id)
    value, gradient = value_and_gradient(ignored, logits, weights, 0.1, compiled)
    np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    np.testing.assert_allclose(gradient.reshape(expected_gradient.shape), expected_gradient, atol=1e-7)

    counted = labels.copy()
    counted[np.unravel_index(weights.argmax(), weights.shape)] = bad_id
    value, gradient = value_and_gradient(counted, logits, weights, 0.1, compiled)
    assert np.isnan(value)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("bad_id", [3, -1])
def test_ids_outside_the_vocabulary_give_nan_in_fit_and_evaluate(bad_id):
    model = lookup_model()
    model.compile(keras.optimizers.SGD(0.1), MaskedCrossentropy(), metrics=[TokenCrossentropy(), TokenAccuracy()])
    labels = np.array([[0, bad_id, 0]])
    assert np.isnan(model.evaluate(TOKEN_IDS, labels, verbose=0)).all()
    assert np.isnan([values[0] for values in model.fit(TOKEN_IDS, labels, verbose=0).history.values()]).all()
    masked = np.array([[0, 1, bad_id]])
    assert np.isfinite(model.evaluate(TOKEN_IDS, masked, verbose=0)).all()


def test_training_lowers_the_loss_of_a_compiled_model():
    model = lookup_model()
    model.compile(keras.optimizers.SGD(0.5), MaskedCrossentropy(), jit_compile=keras.config.backend() != "torch")
    history = model.fit(TOKEN_IDS, LABELS, epochs=3, verbose=0).history["loss"]
    assert history[0] == pytest.approx(REAL_TOKENS_ONLY, abs=1e-6)
    assert history[0] > history[1] > history[2]


def test_compiled_model_keeps_loss_and_metrics_in_its_file(tmp_path):
    model = lookup_model()
    model.compile("sgd", MaskedCrossentropy(label_smoothing=0.2), metrics=[TokenAccuracy(), Perplexity("p")])
    expected = model.evaluate(TOKEN_IDS, LABELS, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.loss, MaskedCrossentropy)
    assert loaded.loss.get_config() == {"name": "masked_crossentropy", "label_smoothing": 0.2}
    np.testing.assert_allclose(loaded.evaluate(TOKEN_IDS, LABELS, verbose=0), expected, rtol=1e-6)


@pytest.mark.parametrize("label_smoothing", [1.0, -0.1, 1.5, float("nan")])
def test_label_smoothing_outside_zero_to_one_is_refused(label_smoothing):
    with pytest.raises(ValueError, match="label_smoothing"):
        MaskedCrossentropy(label_smoothing)


@pytest.mark.parametrize(
    "labels_shape, logits_shape, weights_shape, match",
    [
        ((2, 3, 4), (2, 3, 4), None, "y_true"),  # one-hot targets
        ((2, 4), (2, 3, 5), None, r"\(2, 4\).*\(2, 3, 5\)"),
        ((2,), (2, 3, 5), None, "y_true"),
        ((2, 3), (2, 5), None, "y_true"),
        ((), (5,), None, "y_true"),
        ((2, 3), (2, 3, 5), (2, 4), r"sample_weight.*\(2, 4\)"),
        ((2, 3), (2, 3, 5), (3,), "sample_weight"),
        ((2, 3), (2, 3, 5), (2, 3, 5), "sample_weight"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(labels_shape, logits_shape, weights_shape, match):
    labels, logits = np.zeros(labels_shape, "int32"), np.zeros(logits_shape, "float32")
    weights = None if weights_shape is None else np.ones(weights_shape)
    for metric_or_loss in (MaskedCrossentropy(), TokenAccuracy(), Perplexity()):
        with pytest.raises(ValueError, match=match):
            metric_or_loss(labels, logits, weights)


def test_dtypes_that_are_no_ids_or_logits_are_refused():
    with pytest.raises(ValueError, match="integer token ids"):
        MaskedCrossentropy()(LABELS.astype("float32"), LOGITS)
    with pytest.raises(ValueError, match="float logits"):
        MaskedCrossentropy()(LABELS, LOGITS.astype("int32"))
