"""A fresh process: what `import keras_transformer` brings along there, and what it makes of saved models.

The invariants' models go to new processes of every backend; here are those that are not among them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import keras_transformer as kt
from tests.backend import predict, vectors

ROOT = Path(__file__).resolve().parents[1]
INPUTS = {
    "t5": [np.array([[5, 6, 7, 8]]), np.array([[1, 2, 3]])],
    "bart": [np.array([[5, 6, 7, 8]]), np.array([[2, 3, 4]])],
    "vit": [vectors(2, 16, 32, 3)],
}

ELSEWHERE = """
import json, sys, keras
before = set(sys.modules)
import keras_transformer as kt
brought_along = sorted(set(sys.modules) - before)

import numpy as np
given, results, cards = np.load("inputs.npz"), {}, {}
for name in ("t5", "bart", "vit"):
    model = keras.models.load_model(f"{name}.keras")
    inputs = [given[key] for key in given if key.startswith(name)]
    results[name] = model.predict(inputs if len(inputs) > 1 else inputs[0], verbose=0)
    cards[name] = kt.layers.read_card(model)
    if name == "t5":
        results["text"] = kt.generate(model, inputs[0], 4, stop_token_id=[])
np.savez("results.npz", **results)
print(json.dumps([brought_along, cards]))
"""


@pytest.fixture(scope="module")
def models():
    sizes = {"vocabulary_size": 20, "num_layers": 1, "hidden_dim": 8, "intermediate_dim": 12}
    return {
        "t5": kt.models.t5("tiny", **sizes, gated=True, tie_embeddings=False, relative_buckets=8),
        "bart": kt.models.bart("tiny", **sizes, max_sequence_length=16),
        "vit": kt.models.vit("ti16", 5, (16, 32), num_layers=1, hidden_dim=8, num_heads=2, intermediate_dim=12),
    }


@pytest.fixture(scope="module")
def elsewhere(models, tmp_path_factory):
    """(modules that the import loads after `import keras`, cards, results) of a process that has built no model."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for name, model in models.items():
        model.save(folder / f"{name}.keras")
    np.savez(folder / "inputs.npz", **{f"{name}{i}": x for name, given in INPUTS.items() for i, x in enumerate(given)})
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stderr
    return *json.loads(process.stdout.splitlines()[-1]), np.load(folder / "results.npz")


def test_import_brings_the_package_alone(elsewhere):
    """No extra, no backend beyond what `import keras` loads, TensorFlow under JAX and PyTorch least of all."""
    brought_along = elsewhere[0]
    assert "keras_transformer.layers.attention" in brought_along
    foreign = {module.split(".")[0] for module in brought_along} - set(sys.stdlib_module_names)
    assert foreign - {"keras_transformer", "keras", "numpy"} == set()


def test_saved_models_are_the_same_there(models, elsewhere):
    _, cards, results = elsewhere
    for name, model in models.items():
        expected = predict(model, INPUTS[name] if len(INPUTS[name]) > 1 else INPUTS[name][0])
        np.testing.assert_allclose(results[name], expected, atol=1e-6)
        assert cards[name] == json.loads(json.dumps(kt.layers.read_card(model)))
    text = kt.generate(models["t5"], INPUTS["t5"][0], 4, stop_token_id=[])
    assert results["text"].tolist() == text.tolist()
