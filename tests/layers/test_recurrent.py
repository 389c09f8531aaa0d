"""Recurrent layers and their attention against NumPy loops and torch: padding anywhere changes nothing (B39)."""

import functools

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import reference, reference_recurrent
from tests.backend import numpy, run, vectors, weight_gradients
from tests.layers.configs import assert_config_holds

CELLS = ("simple", "gru", "lstm")
UNITS, FEATURES = 4, 3
REAL = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool)


@functools.cache
def layer_of(cell, bidirectional=False):
    """A layer with random weights, and these."""
    layer = kt.layers.Recurrent(UNITS, cell, bidirectional, name="layer")
    layer.build((None, None, FEATURES))
    return layer, reference.randomize(layer)["layer"]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_outputs_and_states_equal_a_loop_over_the_real_tokens(cell, bidirectional):
    """Padding on the right, on the left, between tokens, everywhere and nowhere."""
    layer, weights = layer_of(cell, bidirectional)
    x = vectors(*REAL.shape, FEATURES)
    outputs, states = run(lambda x, real: layer(x, padding_mask=real, return_state=True), x, REAL)
    expected, last = reference_recurrent.recurrent(cell, x, REAL, weights)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    np.testing.assert_allclose(states, last, atol=1e-5)
    assert not np.any(outputs[3]) and not np.any([state[3] for state in states])
    found = run(lambda x, real: kt.layers.LastState(bidirectional)(x, padding_mask=real), outputs, REAL)
    hidden = [states[0], states[len(states) // 2]] if bidirectional else [states[0]]
    np.testing.assert_allclose(found, np.concatenate(hidden, axis=-1), atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_without_a_mask_and_from_a_state(cell):
    layer, weights = layer_of(cell)
    x, start = vectors(2, 4, FEATURES), [vectors(2, UNITS, seed=i) for i in range(len(layer.state_sizes))]
    everything = np.ones((2, 4), bool)
    outputs, states = run(lambda x, *start: layer(x, list(start), return_state=True), x, *start)
    expected, last = reference_recurrent.recurrent(cell, x, everything, weights, start)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    np.testing.assert_allclose(states, last, atol=1e-5)
    outputs = run(layer, x)
    np.testing.assert_allclose(outputs, reference_recurrent.recurrent(cell, x, everything, weights)[0], atol=1e-5)


def test_two_layers_in_both_directions_equal_those_of_torch():
    import torch

    theirs = torch.nn.LSTM(FEATURES, UNITS, num_layers=2, bidirectional=True, batch_first=True)
    x, lengths = vectors(3, 5, FEATURES), [5, 2, 4]
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.from_numpy(x), lengths, True, enforce_sorted=False)
    with torch.no_grad():
        theirs.bias_hh_l0.zero_()
        for name, parameter in theirs.named_parameters():
            if name.startswith("bias_hh"):
                parameter.zero_()  # Keras' LSTM has one bias
        expected, (hidden, carry) = theirs(packed)
        expected = torch.nn.utils.rnn.pad_packed_sequence(expected, batch_first=True)[0].numpy()
    weights = {name: parameter.detach().numpy() for name, parameter in theirs.named_parameters()}
    layers = [kt.layers.Recurrent(UNITS, "lstm", bidirectional=True) for _ in range(2)]
    for i, layer in enumerate(layers):
        layer.build((None, None, 2 * UNITS if i else FEATURES))
        names = [f"{kind}_l{i}{way}" for way in ("", "_reverse") for kind in ("weight_ih", "weight_hh", "bias_ih")]
        layer.set_weights([weights[name].T for name in names])

    def stack(x, real):
        return layers[1](layers[0](x, padding_mask=real), padding_mask=real, return_state=True)

    outputs, states = run(stack, x, np.arange(5) < np.array(lengths)[:, None])
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    last = [direction.detach().numpy() for pair in zip(hidden[2:], carry[2:], strict=True) for direction in pair]
    np.testing.assert_allclose(states, last, atol=1e-5)


def stack(cell, bidirectional, dtype="float32", dropout=0.3):
    """Ids to outputs and last state through two layers."""
    ids = keras.Input((None,), dtype="int32")
    x = kt.layers.PositionalEmbedding(9, FEATURES, position=None, dtype=dtype)(ids)
    for _ in range(2):
        x = kt.layers.Recurrent(UNITS, cell, bidirectional, dropout=dropout, dtype=dtype)(x)
    model = keras.Model(ids, [x, kt.layers.LastState(bidirectional, dtype=dtype)(x)])
    reference.randomize(model)
    return model


@pytest.mark.parametrize(
    "cell, bidirectional, dtype",
    [("gru", True, "float32"), ("lstm", False, "float32"), ("lstm", True, "mixed_bfloat16")],
)
def test_padding_in_a_model(cell, bidirectional, dtype):
    """B39: "a b c" on the left, on the right and alone; nothing but padding; `model(x)`, `predict` and `fit`."""
    model = stack(cell, bidirectional, dtype)
    rows = np.array([[5, 6, 7, 0, 0], [0, 0, 5, 6, 7], [0, 5, 6, 7, 0], [0] * 5])
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    alone, last = map(numpy, run(lambda ids: [keras.ops.cast(y, "float32") for y in model(ids)], rows[:1, :3]))
    for outputs, states in (model.predict(rows, verbose=0), model(rows)):
        outputs, states = (numpy(keras.ops.cast(y, "float32")) for y in (outputs, states))
        for row, start in enumerate((0, 2, 1)):
            np.testing.assert_allclose(outputs[row, start : start + 3], alone[0], atol=tolerance)
        np.testing.assert_allclose(states[:3], np.repeat(last, 3, axis=0), atol=tolerance)
        assert not outputs[3].any() and not states[3].any()
    model.compile("sgd", "mse")
    model.fit(rows, [np.ones_like(outputs), np.ones_like(states)], verbose=0)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_the_mask_is_kept_and_ends_with_the_last_state():
    ids = keras.ops.convert_to_tensor([[1, 2, 0]])
    x = kt.layers.PositionalEmbedding(9, FEATURES, position=None)(ids)
    layer = layer_of("lstm", True)[0]
    y, states = layer(x, return_state=True)
    assert numpy(y._keras_mask).tolist() == [[True, True, False]]
    assert all(getattr(state, "_keras_mask", None) is None for state in states)
    assert getattr(kt.layers.LastState(True)(y), "_keras_mask", None) is None


def test_dropout_is_of_training_and_of_the_inputs():
    layer = kt.layers.Recurrent(UNITS, dropout=0.5, seed=1)
    x = np.ones((1, 20, FEATURES), "float32")
    calm, again, dropped = numpy([layer(x), layer(x), layer(x, training=True)])
    assert (calm == again).all() and abs(dropped - calm).max() > 1e-3
    other = kt.layers.Recurrent(UNITS, dropout=0.5, seed=1)
    other.build(x.shape)
    other.set_weights(layer.get_weights())
    np.testing.assert_allclose(numpy(other(x, training=True)), dropped, atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_every_weight_has_a_gradient(cell):
    layer = layer_of(cell, True)[0]
    x, factors = map(keras.ops.convert_to_tensor, (vectors(*REAL.shape, FEATURES), vectors(*REAL.shape, 2 * UNITS)))
    gradients = weight_gradients(layer, lambda: keras.ops.sum(factors * layer(x, padding_mask=REAL)))
    assert len(gradients) == 6
    assert all(np.isfinite(g).all() and abs(g).max() > 1e-4 for g in gradients.values())


def test_a_cell_of_ones_own():
    cell = keras.layers.GRUCell(UNITS, reset_after=False, recurrent_dropout=0.5, kernel_initializer="ones")
    layer = kt.layers.Recurrent(cell=cell, bidirectional=True)
    x = vectors(2, 3, FEATURES)
    layer.build(x.shape)
    y = run(layer, x)
    assert y.shape == (2, 3, 2 * UNITS) and layer.cell is cell and layer.backward_run.cell.reset_after is False
    again = kt.layers.Recurrent.from_config(layer.get_config())
    again.build(x.shape)
    again.set_weights(layer.get_weights())
    np.testing.assert_allclose(run(again, x), y, atol=1e-6)
    assert again.get_config() == layer.get_config()


def test_both_directions_begin_with_weights_of_their_own():
    cell = keras.layers.GRUCell(UNITS, kernel_initializer=keras.initializers.RandomNormal(seed=1))
    for options in ({"units": UNITS, "seed": 1}, {"cell": cell}):
        layer = kt.layers.Recurrent(**options, bidirectional=True)
        layer.build((None, None, FEATURES))
        assert abs(layer.get_weights()[0] - layer.get_weights()[3]).max() > 1e-3


def test_configs():
    options = {"units": 3, "cell": "lstm", "bidirectional": True, "dropout": 0.1, "seed": 2, "dtype": "mixed_bfloat16"}
    assert_config_holds(kt.layers.Recurrent, options)
    assert_config_holds(kt.layers.LastState, {"bidirectional": True, "dtype": "mixed_bfloat16"})


REFUSED = {
    "cell": ({"units": 3, "cell": "rnn"}, "cell='rnn'"),
    "no units": ({}, "units=None"),
    "units of a cell": ({"units": 3, "cell": keras.layers.GRUCell(3)}, "units=3"),
    "no cell": ({"cell": keras.layers.Dense(3)}, "cell=<Dense"),
    "cells": ({"cell": keras.layers.StackedRNNCells([keras.layers.LSTMCell(3)])}, "flat `state_size`"),
    "dropout": ({"units": 3, "dropout": 1.0}, "dropout=1.0"),
}


@pytest.mark.parametrize("options, words", REFUSED.values(), ids=REFUSED)
def test_refused_arguments(options, words):
    with pytest.raises(ValueError, match=words):
        kt.layers.Recurrent(**options)


def test_refused_inputs():
    x = vectors(2, 3, FEATURES)
    with pytest.raises(ValueError, match="padding_mask.*shape"):
        layer_of("gru")[0](x, padding_mask=np.ones((2, 4), bool))
    with pytest.raises(ValueError, match=r"initial_state.*sizes \[4, 4\].*\(2, 4\)"):
        layer_of("lstm")[0](x, vectors(2, 4))
    with pytest.raises(ValueError, match="even size.*3"):
        kt.layers.LastState(bidirectional=True)(x)


ATTENTION = {
    "additive": lambda **options: kt.layers.BahdanauAttention(5, **options),
    "dot": lambda **options: kt.layers.LuongAttention("dot", **options),
    "general": lambda **options: kt.layers.LuongAttention("general", **options),
    "concat": lambda **options: kt.layers.LuongAttention("concat", units=5, **options),
}
QUERY_REAL = np.array([[1, 1], [0, 1], [1, 1], [1, 1], [1, 1]], bool)


class TestAttention:
    @pytest.mark.parametrize("kind", ATTENTION)
    def test_it_equals_numpy(self, kind):
        """Padding in the values, a row without any value, a masked query."""
        layer = ATTENTION[kind](name="layer")
        query, value = vectors(5, 2, 4), vectors(5, 5, 4 if kind == "dot" else 3)
        layer.build(query.shape, value.shape)
        weights = reference.randomize(layer).get("layer", {})

        def call(query, value, query_real, real):
            masks = {"query_mask": query_real, "value_mask": real}
            return layer(query, value, return_attention_scores=True, **masks)

        contexts, scores = run(call, query, value, QUERY_REAL, REAL)
        expected, probabilities = reference_recurrent.attention(kind, query, value, REAL, weights)
        np.testing.assert_allclose(contexts, expected * QUERY_REAL[..., None], atol=1e-5)
        np.testing.assert_allclose(scores, probabilities * QUERY_REAL[..., None], atol=1e-5)
        assert not contexts[3].any() and (abs(scores.sum(-1) - 1) < 1e-5)[0].all()
        np.testing.assert_allclose(run(layer, query[4:], value[4:]), expected[4:], atol=1e-5)
        assert [w.path for w in layer.weights] == {
            "additive": ["layer/score_kernel", "layer/query/kernel", "layer/key/kernel"],
            "dot": [],
            "general": ["layer/key/kernel"],
            "concat": ["layer/score_kernel", "layer/key/kernel", "layer/query/kernel"],
        }[kind]

    def test_keys_of_their_own(self):
        layer = kt.layers.LuongAttention()
        query, key, value = vectors(1, 2, 4), vectors(1, 3, 4), vectors(1, 3, 2)
        weights = np.exp(query @ key.swapaxes(1, 2))
        expected = weights / weights.sum(-1, keepdims=True) @ value
        np.testing.assert_allclose(run(layer, query, value, key), expected, atol=1e-5)

    def test_implicit_masks(self):
        query = kt.layers.PositionalEmbedding(9, 4, position=None)(np.array([[3, 4, 0]]))
        value = kt.layers.PositionalEmbedding(9, 4, position=None)(np.array([[5, 0, 6, 0]]))
        context, scores = kt.layers.BahdanauAttention(4)(query, value, return_attention_scores=True)
        assert (numpy(scores) > 0).tolist() == [[[True, False, True, False]] * 2 + [[False] * 4]]
        assert numpy(context._keras_mask).tolist() == [[True, True, False]]

    @pytest.mark.parametrize("kind", ["additive", "general", "concat"])
    def test_every_weight_has_a_gradient(self, kind):
        layer = ATTENTION[kind]()
        query, value, factors = map(keras.ops.convert_to_tensor, (vectors(5, 2, 4), vectors(5, 5, 3), vectors(5, 2, 3)))
        layer.build(query.shape, value.shape)
        loss = lambda: keras.ops.sum(factors * layer(query, value, value_mask=REAL))  # noqa: E731
        gradients = weight_gradients(layer, loss)
        assert all(np.isfinite(g).all() and abs(g).max() > 1e-4 for g in gradients.values())

    @pytest.mark.parametrize("kind", ATTENTION)
    def test_in_sixteen_bits_the_scores_are_float32(self, kind):
        """With scores near 300 bfloat16 would round the difference of 1 between two of them away."""
        query = np.full((1, 1, 4), 10.0, "float32")
        value = np.array([[[10, 10, 10, 10], [9.9375, 9.9375, 9.9375, 10]]], "float32")
        if kind != "dot":
            query, value = vectors(1, 2, 4), vectors(1, 5, 4)
        half, full = ATTENTION[kind](dtype="mixed_bfloat16"), ATTENTION[kind]()
        for layer in (half, full):
            layer.build(query.shape, value.shape)
        half.set_weights(full.get_weights())

        def call(query, value):
            rounded = [keras.ops.cast(x, "bfloat16") for x in (query, value)]
            outputs, scores = half(*rounded, return_attention_scores=True)
            assert keras.backend.standardize_dtype(outputs.dtype) == half.compute_dtype == "bfloat16"
            return keras.ops.cast(scores, "float32"), full(query, value, return_attention_scores=True)[1]

        np.testing.assert_allclose(*run(call, query, value), atol=2e-2)

    def test_configs(self):
        options = {"kernel_initializer": "ones", "dtype": "mixed_bfloat16"}
        assert_config_holds(kt.layers.BahdanauAttention, {"units": 3, **options})
        assert_config_holds(kt.layers.LuongAttention, {"score": "concat", "units": 3, **options})

    def test_refused(self):
        query, value = vectors(1, 2, 4), vectors(1, 3, 3)
        with pytest.raises(ValueError, match="score='cosine'"):
            kt.layers.LuongAttention("cosine")
        with pytest.raises(ValueError, match="units=3"):
            kt.layers.LuongAttention("general", units=3)
        with pytest.raises(ValueError, match="units=0"):
            kt.layers.BahdanauAttention(0)
        with pytest.raises(ValueError, match="one size.*4 and 3"):
            kt.layers.LuongAttention("dot")(query, value)
        with pytest.raises(ValueError, match="value_mask.*shape"):
            kt.layers.BahdanauAttention(3)(query, value, value_mask=np.ones((1, 2), bool))
