"""Saving and loading change nothing: every row, in new processes, on two backends (B05, B55)."""

import gc
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import reference
from tests.backend import one_array, predict, run, vectors
from tests.invariants.table import EVERY_LAYER, FAMILIES, HEADED, VOCABULARY_SIZE, call, named

ROOT = Path(__file__).resolve().parents[2]
# The backend at hand reads its own files and another one does. Each has the one before it in this ring to read from and
# the one behind it to write for, so that the three runs of the tests have tried them all in both parts.
RING = {"tensorflow": "jax", "jax": "torch", "torch": "tensorflow"}
BACKENDS = (keras.backend.backend(), RING[keras.backend.backend()])
TRAINED = named("transformer, norm first", "gpt, grouped heads, gated, rms")  # also go on training after loading


def file_name(family):
    return family.name.replace(", ", " - ")


def random_inputs(family):
    inputs = family.ids(batch=2)
    if family.pads:
        inputs[0][1, 4:] = 0
    return inputs


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder of saved models, and what they gave before saving and after one more training step."""
    folder = tmp_path_factory.mktemp("saved")
    expected = {}
    for family in [*FAMILIES, *HEADED]:
        name, inputs = file_name(family), random_inputs(family)
        extra = {}
        model = family.model
        if family in TRAINED:
            model = family.new()
            model.compile(keras.optimizers.Adam(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            extra = {"targets": np.roll(inputs[-1], -1, axis=1), "backend": keras.backend.backend()}
            step = {"batch_size": 2, "verbose": 0}
            model.fit(inputs if len(inputs) > 1 else inputs[0], extra["targets"], **step)
        expected[f"{name} loaded"] = one_array(call(model, inputs))
        model.save(folder / f"{name}.keras")
        np.savez(folder / f"{name}.npz", **{f"input{i}": x for i, x in enumerate(inputs)}, **extra)
        if family in TRAINED:
            model.fit(inputs if len(inputs) > 1 else inputs[0], extra["targets"], **step)
            expected[f"{name} trained"] = call(model, inputs)
    return folder, expected


def test_new_processes_on_this_and_another_backend(saved):
    folder, expected = saved
    script = Path(__file__).with_name("reload.py")
    processes = {}
    for backend in BACKENDS:
        environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        processes[backend] = subprocess.Popen(
            [sys.executable, str(script), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    for backend, process in processes.items():
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
        results = np.load(folder / f"{backend}.npz")
        assert "keras_transformer" in str(results["error without the import"])
        tolerance = 1e-6 if backend == keras.backend.backend() else 1e-4
        assert len(expected) == len(FAMILIES) + len(HEADED) + len(TRAINED)
        for name, value in expected.items():
            if name.endswith("trained") and backend != keras.backend.backend():
                continue  # Keras saves the optimizer's class of its own backend, so training goes on only there
            np.testing.assert_allclose(results[name], value, atol=tolerance, err_msg=f"{name} on {backend}")


def modules_in(config):
    if isinstance(config, dict):
        yield from ([config["module"]] if isinstance(config.get("module"), str) else [])
        for value in config.values():
            yield from modules_in(value)
    elif isinstance(config, list):
        for value in config:
            yield from modules_in(value)


def test_saved_configs_name_only_keras_and_this_package(saved):
    """B55."""
    folder, _ = saved
    files = list(folder.glob("*.keras"))
    assert len(files) == len(FAMILIES) + len(HEADED)
    for file in files:
        text = zipfile.ZipFile(file).read("config.json").decode()
        modules = set(modules_in(json.loads(text)))
        assert any(module.startswith("keras_transformer.") for module in modules)
        assert {module.split(".")[0] for module in modules} <= {"keras", "keras_transformer", "builtins"}
        assert "Lambda" not in text


def paths(model):
    """A Sequential model that is rebuilt from its config leaves its own name out of the paths."""
    return [weight.path.removeprefix(f"{model.name}/") for weight in model.weights]


@pytest.mark.parametrize("family", [*EVERY_LAYER, *named("encoder")], ids=str)
def test_clones_and_weight_files(family, tmp_path):
    model, inputs = family.model, random_inputs(family)
    clone = keras.models.clone_model(model)
    assert paths(clone) == paths(model)
    assert any((ours != theirs).any() for ours, theirs in zip(clone.get_weights(), model.get_weights(), strict=True))
    model.save_weights(tmp_path / "model.weights.h5")
    clone.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(call(clone, inputs), call(model, inputs), atol=1e-6)


@pytest.mark.parametrize("family", named("transformer", "encoder"), ids=str)
def test_json(family):
    """A functional and a sequential model; what is in it is what a `.keras` file holds, and `from_config` is in it."""
    model = family.model
    again = keras.models.model_from_json(model.to_json())
    assert paths(again) == paths(model) and type(again) is type(model)
    again.set_weights(model.get_weights())
    np.testing.assert_allclose(*(call(x, random_inputs(family)) for x in (again, model)), atol=1e-6)


@keras.saving.register_keras_serializable("test_saving")
class Constant(keras.initializers.Initializer):
    def __init__(self, value):
        self.value = value

    def __call__(self, shape, dtype=None):
        return keras.ops.full(shape, self.value, dtype=dtype)

    def get_config(self):
        return {"value": self.value}


@keras.saving.register_keras_serializable("test_saving")
def squared(x):
    return x * x


def test_arguments_that_are_objects(tmp_path):
    """B05: a custom initializer, a custom function as activation, a norm layer, instances of sublayers."""
    ids = keras.Input((None,), dtype="int32")
    x = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, embeddings_initializer=Constant(0.5))(ids)
    options = {"kernel_initializer": Constant(0.25), "kernel_regularizer": keras.regularizers.L2(0.1)}
    x = kt.layers.EncoderBlock(2, 24, activation=squared, norm=keras.layers.LayerNormalization(epsilon=0.5), **options)(
        x
    )
    x = kt.layers.EncoderBlock(2, 24, activation=keras.activations.gelu, key_dim=3, norm_placement="sandwich")(x)
    x = kt.layers.DecoderBlock(
        attention=kt.layers.MultiHeadAttention(2, 5, use_gate=True, sliding_window=3, **options),
        cross_attention=kt.layers.MultiHeadAttention(4, 5, num_key_value_heads=1),
        feed_forward=kt.layers.FeedForward(24, activation=squared, gated=True, **options),
        norm_epsilon=0.25,
    )(x, x)
    model = keras.Model(ids, x)
    reference.randomize(model, stddev=0.2)
    inputs = np.array([[1, 2, 3, 0], [4, 5, 6, 7]])
    expected = predict(model, inputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(predict(loaded, inputs), expected, atol=1e-6)
    for layer, original in zip(loaded.layers, model.layers, strict=True):
        assert layer.get_config() == original.get_config()
    assert loaded.layers[2].activation is squared and len(loaded.losses) == len(model.losses) == 6 + 5 + 3
    assert (np.array(keras.models.clone_model(loaded).layers[1].embeddings) == 0.5).all()


def test_single_layers_in_models(tmp_path):
    """Each of the five alone, called with several inputs where it can be."""
    x, states = keras.Input((None, 16)), keras.Input((None, 8))
    mask = keras.Input((None,), dtype="bool")
    outputs = [
        kt.layers.PositionalEmbedding(None, 16, 9, position="learned")(x),
        kt.layers.MultiHeadAttention(2, 5)(x, states, return_attention_scores=True)[1],
        kt.layers.MultiHeadAttention(2, 5)(x, value=states, key=states, use_causal_mask=True),
        kt.layers.FeedForward(24)(x),
        kt.layers.RMSNorm()(x),
        kt.layers.EncoderBlock(2, 24)(x, padding_mask=mask),
        kt.layers.DecoderBlock(2, 24)(x, encoder_output=states, padding_mask=mask, return_attention_scores=True)[2],
    ]
    model = keras.Model([x, states, mask], outputs)
    reference.randomize(model)
    inputs = [vectors(2, 4, 16), vectors(2, 3, 8), np.array([[True] * 4, [True, True, False, False]])]
    expected = run(lambda *inputs: model(inputs), *inputs)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for output, value in zip(run(lambda *inputs: loaded(inputs), *inputs), expected, strict=True):
        np.testing.assert_allclose(output, value, atol=1e-6)


@pytest.fixture
def few_objects():
    """Keras collects garbage after each layer that it quantises, which takes as long as there are objects."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("quantisation", ["weights only", "int4"])
def test_how_layers_were_quantised_is_saved(quantisation, tmp_path):
    """Also what `quantize` was told by a configuration, and the order of the weights."""
    ids = keras.Input((None,), dtype="int32")
    embedding = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 32)
    x = kt.layers.FeedForward(32)(kt.layers.MultiHeadAttention(2, 16)(embedding(ids)))
    model = keras.Model(ids, embedding(kt.layers.EncoderBlock(2, 32)(x), reverse=True))
    inputs = np.arange(6).reshape(1, 6)
    exact = predict(model, inputs)
    if quantisation == "int4":
        model.quantize("int4")
    else:
        model.quantize(config=keras.quantizers.Int8QuantizationConfig(activation_quantizer=None))
    expected = predict(model, inputs)
    assert abs(expected - exact).max() > 1e-4
    model.save(tmp_path / "quantised.keras")
    loaded = keras.models.load_model(tmp_path / "quantised.keras")
    np.testing.assert_allclose(predict(loaded, inputs), expected, atol=1e-6)
    assert [x.path for x in loaded.weights] == [x.path for x in model.weights]
    for layer in loaded.layers[1:]:
        assert any("int8" in keras.backend.standardize_dtype(x.dtype) for x in layer.weights), layer.name
