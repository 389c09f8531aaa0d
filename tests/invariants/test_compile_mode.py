"""Compiling a model changes nothing: not its outputs, not what it is trained on (B01)."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.backend import numpy
from tests.invariants.table import EVERY_LAYER, VOCABULARY_SIZE, named

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


TRAINED = named("transformer, norm first", "gpt, grouped heads, gated, rms")


@pytest.mark.parametrize("family", [*EVERY_LAYER, *TRAINED], ids=str)
def test_outputs(family):
    """`model(x)`, and `predict` in every mode."""
    model, inputs = family.model, padded_inputs(family)
    expected = numpy(model(keras.tree.map_structure(keras.ops.convert_to_tensor, inputs)))
    for mode in MODES.values():
        model.compile(**mode)
        np.testing.assert_allclose(model.predict(inputs, verbose=0), expected, atol=1e-5)


@pytest.mark.parametrize("family", TRAINED, ids=str)
def test_training(family):
    """Two updates in every mode lead to the same weights and the same history."""
    inputs = padded_inputs(family)
    targets = np.random.default_rng(1).integers(1, VOCABULARY_SIZE, (inputs[-1] if family.encodes else inputs).shape)
    outcomes = []
    for mode in MODES.values():
        model = family.new()
        metrics = [kt.training.TokenAccuracy(), kt.training.TokenCrossentropy()]
        optimizer = keras.optimizers.SGD(0.1)
        model.compile(optimizer, kt.training.MaskedCrossentropy(), weighted_metrics=metrics, **mode)
        history = model.fit(inputs, targets, batch_size=3, epochs=2, verbose=0).history
        outcomes.append((history, [numpy(weight) for weight in model.weights]))
    (history, weights), *others = outcomes
    assert history["loss"][1] < history["loss"][0]
    for other_history, other_weights in others:
        for name, values in history.items():
            np.testing.assert_allclose(other_history[name], values, rtol=1e-5)
        for weight, other in zip(weights, other_weights, strict=True):
            np.testing.assert_allclose(other, weight, atol=1e-5)
