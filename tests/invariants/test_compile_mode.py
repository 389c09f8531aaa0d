"""Compiling a model changes nothing: not its outputs, not what it is trained on (B01)."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.backend import numpy
from tests.invariants.table import EVERY_LAYER, VOCABULARY_SIZE, call, named

# What `predict` and `fit` can be told, by what it means on the backend at hand.
MODES = {
    "tensorflow": {"graph": {"jit_compile": False}, "xla": {"jit_compile": True}, "eager": {"run_eagerly": True}},
    "jax": {"xla": {"jit_compile": True}, "eager": {"run_eagerly": True}},
    "torch": {"eager": {}},
}[keras.backend.backend()]


def padded_inputs(family):
    """Three rows: one full, one padded on the right, one on the left (where the family knows padding)."""
    inputs = family.ids(batch=3)
    if family.pads:
        for x in inputs:
            x[1, -2:] = 0
            x[2, :2] = 0
    return inputs if len(inputs) > 1 else inputs[0]


@pytest.mark.parametrize("family", EVERY_LAYER, ids=str)
def test_outputs(family):
    """`model(x)`, and `predict` in every mode."""
    model, inputs = family.model, padded_inputs(family)
    expected = numpy(model(keras.tree.map_structure(keras.ops.convert_to_tensor, inputs)))
    for mode in MODES.values():
        model.compile(**mode)
        np.testing.assert_allclose(model.predict(inputs, verbose=0), expected, atol=1e-5)


def compiled_for_tokens(model, mode):
    metrics = [kt.training.TokenAccuracy(), kt.training.TokenCrossentropy()]
    model.compile(keras.optimizers.SGD(0.1), kt.training.MaskedCrossentropy(), weighted_metrics=metrics, **mode)
    return model


def test_evaluation():
    """The mask comes through the models that are nested in an encoder-decoder to the loss and the metrics."""
    (family,) = named("transformer, norm first")
    model, inputs = family.model, padded_inputs(family)
    targets = np.random.default_rng(1).integers(1, VOCABULARY_SIZE, inputs[-1].shape)
    logits = call(model, inputs)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -np.take_along_axis(log_probabilities, targets[..., None], -1)[inputs[-1] != 0].mean()
    for mode in MODES.values():
        found = compiled_for_tokens(model, mode).evaluate(inputs, targets, batch_size=3, verbose=0, return_dict=True)
        np.testing.assert_allclose(found["loss"], expected, rtol=1e-5)
        np.testing.assert_allclose(found["token_crossentropy"], expected, rtol=1e-5)


def test_training():
    """Two updates in every mode lead to the same weights and the same history."""
    (family,) = named("gpt, grouped heads, gated, rms")
    inputs = padded_inputs(family)
    targets = np.random.default_rng(1).integers(1, VOCABULARY_SIZE, inputs.shape)
    outcomes = []
    for mode in MODES.values():
        model = compiled_for_tokens(family.new(), mode)
        history = model.fit(inputs, targets, batch_size=3, epochs=2, verbose=0).history
        outcomes.append((history, [numpy(weight) for weight in model.weights]))
    (history, weights), *others = outcomes
    assert history["loss"][1] < history["loss"][0]
    for other_history, other_weights in others:
        for name, values in history.items():
            np.testing.assert_allclose(other_history[name], values, rtol=1e-5)
        for weight, other in zip(weights, other_weights, strict=True):
            np.testing.assert_allclose(other, weight, atol=1e-5)
