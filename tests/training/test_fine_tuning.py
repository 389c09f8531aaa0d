"""Frozen layers, learning rates by layer around any optimizer, and balanced classes."""

import functools

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import reference
from tests.backend import numpy, vectors
from tests.hurry import train_in_a_hurry

SIZES = {"num_layers": 2, "hidden_dim": 8, "num_heads": 2, "intermediate_dim": 12}
IDS = np.array([[5, 6, 7, 8, 9], [5, 4, 2, 3, 6]])
LABELS = np.array([0, 2])
BOTTOM = ["embedding", "segment_embedding", "embedding_norm"]


def classifier(seed=0):
    bert = kt.models.bert(None, 20, 9, **SIZES, dropout=0.0)
    model = kt.models.with_head(bert, "sequence_classification", num_classes=3, dropout=0.0)
    reference.randomize(model, seed)
    return model


@pytest.mark.parametrize(
    "all_but_top, frozen",
    [
        (0, [*BOTTOM, "encoder_block_0", "encoder_block_1"]),
        (1, [*BOTTOM, "encoder_block_0"]),
        (2, BOTTOM),
    ],
)
def test_what_is_frozen(all_but_top, frozen):
    model = classifier()
    assert kt.training.freeze(model, all_but_top) == frozen
    assert {w.path.split("/")[0] for w in model.non_trainable_weights} == set(frozen)
    assert kt.training.unfreeze(model) == frozen
    assert model.non_trainable_weights == []


def test_frozen_weights_stay_and_the_others_learn(monkeypatch):
    train_in_a_hurry(monkeypatch)
    model = classifier()
    frozen = kt.training.freeze(model, all_but_top=1)
    before = [numpy(w) for w in model.weights]
    model.compile(keras.optimizers.SGD(0.1), kt.training.MaskedCrossentropy())
    model.fit(IDS, LABELS, verbose=0)
    moved = {w.path.split("/")[0] for w, x in zip(model.weights, before, strict=True) if (numpy(w) != x).any()}
    assert moved == {layer.name for layer in model.layers if layer.weights} - set(frozen)


def test_freezing_from_the_bottom_of_both_sides():
    """Encoder blocks are below decoder blocks; position tables and biases on the way are frozen with them."""
    bart = kt.models.bart("tiny", 20, 9, **SIZES)
    frozen = kt.training.freeze(bart, all_but_top=1)
    assert frozen[0] == "embedding" and "decoder_embedding" in frozen
    assert {w.path.split("/")[0] for w in bart.trainable_weights} == {"decoder_block_1"}
    gpt = kt.models.gpt(None, 20, 9, **SIZES)
    assert kt.training.freeze(gpt) == ["embedding", "decoder_block_0", "decoder_block_1"]
    assert [w.path for w in gpt.trainable_weights] == ["decoder_norm/gamma", "decoder_norm/beta"]


def test_a_sequential_model_and_models_without_blocks():
    blocks = [kt.layers.EncoderBlock(2, 12, name=f"block_{i}") for i in range(2)]
    model = keras.Sequential([keras.Input((None, 8)), keras.layers.Dense(8, name="first"), *blocks])
    assert kt.training.freeze(model, 1) == ["first", "block_0"]
    assert kt.training.layerwise_rates(model, 0.5) == {"first": 0.125, "block_0": 0.25, "block_1": 0.5}
    without = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    for function in (kt.training.freeze, kt.training.layerwise_rates):
        with pytest.raises(ValueError, match="no blocks"):
            function(without)
    with pytest.raises(ValueError, match="all_but_top=3"):
        kt.training.freeze(model, 3)
    with pytest.raises(ValueError, match="all_but_top=-1"):
        kt.training.freeze(model, -1)
    with pytest.raises(ValueError, match="decay=0"):
        kt.training.layerwise_rates(model, 0)


def test_rates_fall_to_the_embeddings():
    rates = kt.training.layerwise_rates(classifier(), 0.5)
    assert rates == {
        **dict.fromkeys(BOTTOM, 0.125),
        "encoder_block_0": 0.25,
        "encoder_block_1": 0.5,
        "pooler": 1.0,
        "classifier": 1.0,
    }
    rates = kt.training.layerwise_rates(kt.models.t5("tiny", 20, **SIZES), 0.5)
    assert rates["embedding"] == 1 / 32 and rates["encoder_block_0"] == 1 / 16 and rates["encoder_norm"] == 1 / 8
    assert rates["decoder_block_0"] == 1 / 4 and rates["decoder_block_1"] == 1 / 2 and rates["decoder_norm"] == 1


RATES = {"low": 0.0, "middle": 0.25}


def small():
    """Three layers for an optimizer to tell apart."""
    layers = [keras.layers.Dense(3, name=name) for name in ("low", "middle", "high")]
    model = keras.Sequential([keras.Input((4,)), *layers])
    reference.randomize(model)
    return model


def fit(model, epochs=1, **options):
    return model.fit(np.eye(4)[:2], np.ones((2, 3)), epochs=epochs, verbose=0, **options)


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adafactor"])
def test_steps_are_multiplied(kind):
    """Each layer goes the share of the way that it goes with the plain optimizer."""
    options = {} if kind == "Adafactor" else {"weight_decay": 0.1, "global_clipnorm": 1.0}
    optimizer = functools.partial(getattr(keras.optimizers, kind), 0.05, **options)
    moved = []
    for each in (optimizer(), kt.training.LayerwiseOptimizer(optimizer(), RATES)):
        model = small()
        before = [numpy(w) for w in model.weights]
        gradients = [vectors(*w.shape, seed=i) for i, w in enumerate(model.weights)]
        each.apply([keras.ops.convert_to_tensor(x) for x in gradients], model.trainable_variables)
        moved.append([numpy(w) - x for w, x in zip(model.weights, before, strict=True)])
    for weight, plain, scaled in zip(model.weights, *moved, strict=True):
        factor = next((RATES[name] for name in weight.path.split("/") if name in RATES), 1.0)
        np.testing.assert_allclose(scaled, factor * plain, atol=1e-6, err_msg=weight.path)
        assert plain.all() and (factor == 0 or scaled.all())


def test_with_the_scaled_loss_of_16_bits(monkeypatch):
    """The optimizer that Keras puts around another one for float16 goes around this one as well."""
    train_in_a_hurry(monkeypatch)
    models = []
    for around in (lambda optimizer: optimizer, keras.optimizers.LossScaleOptimizer):
        models.append(small())
        models[-1].compile(around(kt.training.LayerwiseOptimizer("sgd", RATES)), "mse")
        fit(models[-1])
    for weights in zip(*(model.weights for model in models), strict=True):
        np.testing.assert_allclose(*map(numpy, weights), atol=1e-6)


def test_learning_rates_and_callbacks_are_those_of_the_optimizer_inside(monkeypatch):
    train_in_a_hurry(monkeypatch)
    optimizer = kt.training.LayerwiseOptimizer("sgd", RATES)
    rates = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda *_, **__: rates.append(float(optimizer.learning_rate))
    )
    model = small()
    before = [numpy(w) for w in model.weights]
    model.compile(optimizer, "mse")
    budget = kt.training.Budget(peak_learning_rate=0.1, warmup_steps=1, steps=4)
    fit(model, epochs=9, callbacks=[budget, look])
    np.testing.assert_allclose(rates, [0.1, 0.075, 0.05, 0.025], atol=1e-6)
    assert budget.step == int(optimizer.iterations) == 4
    assert [(numpy(w) != x).any() for w, x in zip(model.weights, before, strict=True)] == [False] * 2 + [True] * 4


def test_training_goes_on_after_loading(monkeypatch, tmp_path):
    """The same next step as without the file: the state of the optimizer inside is saved, too."""
    train_in_a_hurry(monkeypatch)
    model = small()
    model.compile(kt.training.LayerwiseOptimizer(keras.optimizers.Adam(0.01), RATES), "mse")
    fit(model, epochs=2)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for each in (model, loaded):
        fit(each)
    for weight, expected in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_allclose(numpy(weight), numpy(expected), atol=1e-6)
    assert int(loaded.optimizer.iterations) == 3


def test_what_the_optimizer_refuses():
    for rate in (-0.1, float("nan"), "much"):
        with pytest.raises(ValueError, match="rates"):
            kt.training.LayerwiseOptimizer("adam", {"embedding": rate})
    with pytest.raises(ValueError, match="average"):
        kt.training.LayerwiseOptimizer(keras.optimizers.Adam(use_ema=True), RATES)


def test_class_weights():
    """Each class counts the same in all, and labels count as much as before."""
    labels = np.array([3] * 70 + [0] * 20 + [7] * 10)
    weights = kt.training.class_weights(labels)
    assert weights == {0: pytest.approx(100 / 60), 3: pytest.approx(100 / 210), 7: pytest.approx(100 / 30)}
    by_class = [weights[c] * (labels == c).sum() for c in weights]
    np.testing.assert_allclose(by_class, 100 / 3)
    tokens, mask = np.array([[1, 1, 2, 0], [2, 1, 0, 0]]), np.array([[1, 1, 1, 0], [1, 1, 0, 0]])
    assert kt.training.class_weights(tokens, mask) == {1: pytest.approx(5 / 6), 2: pytest.approx(5 / 4)}


def test_class_weights_refuse():
    for labels, mask in (([0.5], None), ([], None), ([1, 2], [0, 0])):
        with pytest.raises(ValueError, match="labels"):
            kt.training.class_weights(labels, mask)
    with pytest.raises(ValueError, match="mask"):
        kt.training.class_weights([1, 2], [1])


def test_weights_of_tokens_by_what_the_docstring_says():
    """A class that occurs under the mask alone weighs nothing, and no NaN comes out."""
    labels = np.array([[1, 1, 2, 0], [2, 1, 0, 0]])
    mask = labels > 0
    weights = kt.training.class_weights(labels, mask)
    found = np.vectorize(lambda label: weights.get(label, 0.0))(labels) * mask
    assert np.isfinite(found).all() and (found[~mask] == 0).all() and found.sum() == pytest.approx(mask.sum())
