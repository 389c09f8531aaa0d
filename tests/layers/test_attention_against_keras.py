"""`MultiHeadAttention` gives the numbers of `keras.layers.MultiHeadAttention` from the same weights."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import reference
from tests.backend import run, vectors

B, T, S, D = 2, 5, 7, 6


def booleans(*shape, seed=0):
    """A random mask in which every query sees key 0."""
    mask = np.random.default_rng((seed, *shape)).random(shape) < 0.6
    mask[..., 0] = True
    return mask


def pair(query_shape, value_shape, key_shape=None, **options):
    """Our layer and Keras' own with the same random weights."""
    ours, theirs = (
        layer_class(**{"num_heads": 2, "key_dim": 4, "kernel_initializer": "zeros", **options})
        for layer_class in (kt.layers.MultiHeadAttention, keras.layers.MultiHeadAttention)
    )
    for layer in (ours, theirs):
        layer.build(query_shape, value_shape, key_shape)
    reference.randomize(theirs)
    ours.set_weights(theirs.get_weights())
    return ours, theirs


def assert_equals_keras(inputs, call_options=None, **options):
    """Output and scores are equal, and the output is the same when the scores are not asked for."""
    call_options = call_options or {}
    ours, theirs = pair(*[x.shape for x in inputs], **options)

    def call(*inputs):
        # Keras' layer is asked for scores always: on JAX it fails without them if `value_dim` differs from `key_dim`.
        expected = theirs(*inputs, return_attention_scores=True, **call_options)
        return expected, ours(*inputs, return_attention_scores=True, **call_options), ours(*inputs, **call_options)

    (expected, expected_scores), (output, scores), without_scores = run(call, *inputs)
    assert output.shape == expected.shape and scores.shape == expected_scores.shape
    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(without_scores, expected, atol=1e-5)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


OPTIONS = {
    "plain": {},
    "value_dim": {"value_dim": 3},
    "no bias": {"use_bias": False},
    "output_shape int": {"output_shape": 3},
    "output_shape tuple": {"output_shape": (3, 2)},
    "gate": {"use_gate": True},
    "gate and value_dim": {"use_gate": True, "value_dim": 5},
    "dropout at inference": {"dropout": 0.5},
    "flash forbidden": {"flash_attention": False},
    "window": {"sliding_window": 3},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_constructor_arguments(options):
    assert_equals_keras([vectors(B, T, D), vectors(B, S, D), vectors(B, S, D, seed=1)], **options)


AXES = {
    "columns, negative": ((2, 3, 4, D), (2, 3, 4, D), -3),
    "whole image": ((2, 3, 4, D), (2, 3, 4, D), None),
    "both axes, swapped": ((2, 3, 4, D), (2, 3, 4, D), (2, 1)),
    "image to larger image": ((2, 3, 4, D), (2, 5, 2, D), (1, 2)),
    "rows of different length": ((2, 3, 4, D), (2, 3, 6, D), (2,)),
    "video, first and last": ((2, 3, 2, 4, D), (2, 3, 2, 4, D), (1, 3)),
    "a list": ((2, 5, D), (2, 7, D), [1]),
}


@pytest.mark.parametrize("query_shape, value_shape, axes", AXES.values(), ids=AXES)
def test_attention_axes(query_shape, value_shape, axes):
    assert_equals_keras([vectors(*query_shape), vectors(*value_shape)], attention_axes=axes)


def test_attention_axes_with_masks():
    x = vectors(2, 3, 4, D)
    for mask in (booleans(4, 4), booleans(2, 3, 2, 4, 4)):
        assert_equals_keras([x, x], {"attention_mask": mask}, attention_axes=2)
    for mask in (booleans(2, 3, 4, 3, 4), booleans(2, 2, 3, 4, 3, 4)):
        assert_equals_keras([x, x], {"attention_mask": mask}, attention_axes=(1, 2))


@pytest.mark.parametrize("shape", [(T, S), (1, S), (B, T, S), (B, 1, S), (B, 1, T, S), (B, 2, 1, S)])
def test_attention_mask_of_every_rank(shape):
    assert_equals_keras([vectors(B, T, D), vectors(B, S, D)], {"attention_mask": booleans(*shape)})


@pytest.mark.parametrize("dtype", ["int32", "float32", "uint8"])
def test_attention_mask_of_every_dtype(dtype):
    mask = booleans(B, T, S).astype(dtype)
    assert_equals_keras([vectors(B, T, D), vectors(B, S, D)], {"attention_mask": mask})


MASKS = {
    "value_mask": {"value_mask": booleans(B, S)},
    "key_mask": {"key_mask": booleans(B, S)},
    "value and key": {"value_mask": booleans(B, S), "key_mask": booleans(B, S, seed=1)},
    "causal": {"use_causal_mask": True},
    "causal and value": {"use_causal_mask": True, "value_mask": booleans(B, S)},
    "causal and given": {"use_causal_mask": True, "attention_mask": booleans(B, T, S)},
    "all": {"use_causal_mask": True, "attention_mask": booleans(B, 1, S), "value_mask": booleans(B, S)},
}


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
def test_call_masks(masks):
    assert_equals_keras([vectors(B, T, D), vectors(B, S, D)], masks)


def test_window_with_masks():
    options = {"attention_mask": booleans(B, T, T), "use_causal_mask": True}
    options["attention_mask"] |= np.eye(T, dtype=bool)
    assert_equals_keras([vectors(B, T, D), vectors(B, T, D)], options, sliding_window=2)


def test_masked_queries_attend_to_nothing_and_the_others_equal_keras():
    ours, theirs = pair((B, T, D), (B, S, D))
    inputs = [vectors(B, T, D), vectors(B, S, D)]
    query_mask = np.array([[True] * 5, [False, True, True, True, False]])

    def call(*inputs):
        with_scores = [layer(*inputs, query_mask=query_mask, return_attention_scores=True) for layer in (theirs, ours)]
        return *with_scores, ours(*inputs, query_mask=query_mask)

    (expected, expected_scores), (output, scores), without_scores = run(call, *inputs)
    bias = keras.ops.convert_to_numpy(ours.output_dense.bias)
    for y in (output, without_scores):
        np.testing.assert_allclose(y[query_mask], expected[query_mask], atol=1e-5)
        np.testing.assert_allclose(y[~query_mask], [bias, bias], atol=1e-6)
    scores, expected_scores = scores.swapaxes(1, 2), expected_scores.swapaxes(1, 2)  # (B, T, N, S)
    np.testing.assert_allclose(scores[query_mask], expected_scores[query_mask], atol=1e-5)
    assert (scores[~query_mask] == 0).all()


def test_implicit_masks_arrive_as_in_keras():
    ids, context_ids = np.array([[3, 1, 2, 0, 0], [4, 5, 1, 1, 0]]), np.array([[1, 2, 0], [3, 0, 0]])
    embedding = keras.layers.Embedding(6, D, embeddings_initializer="normal", mask_zero=True)

    def call(layer, ids, context_ids):
        x = embedding(ids)
        yield layer(x, x)
        # embedded anew, because Keras' layer removes the masks from the tensors it is given
        yield layer(embedding(ids), embedding(context_ids))
        yield layer(embedding(ids), value=embedding(context_ids), key=embedding(context_ids))

    ours, theirs = pair((B, T, D), (B, T, D))
    results = run(lambda *inputs: [list(call(layer, *inputs)) for layer in (ours, theirs)], ids, context_ids)
    for mine, keras_own in zip(*results, strict=True):
        np.testing.assert_allclose(mine[ids != 0], keras_own[ids != 0], atol=1e-5)


def test_the_value_may_be_left_out_in_self_attention():
    layer, _ = pair((B, T, D), (B, T, D))
    embedding = keras.layers.Embedding(6, D, embeddings_initializer="normal", mask_zero=True)
    ids = np.array([[3, 1, 2, 0, 0], [3, 1, 2, 4, 5]])

    def call(ids):
        x = embedding(ids)
        return layer(x), layer(x, x), layer(embedding(ids[:1, :3]))

    alone, with_itself, without_padding = run(call, ids)
    np.testing.assert_allclose(alone, with_itself, atol=1e-6)
    np.testing.assert_allclose(alone[:1, :3], without_padding, atol=1e-5)


def test_weights_are_in_keras_order_and_shape():
    for options in ({"use_gate": True}, {"use_bias": False}, {"value_dim": 3, "output_shape": (2, 5)}):
        ours, theirs = pair((None, T, D), (None, S, D + 1), **options)
        mine, keras_own = ([(w.path.split("/", 1)[1], w.shape) for w in layer.weights] for layer in (ours, theirs))
        assert mine == keras_own


def test_positional_arguments_are_in_keras_order():
    arguments = [2, 4, 3, 0.1, False, 5, (1,), 2, None]
    ours, theirs = kt.layers.MultiHeadAttention(*arguments), keras.layers.MultiHeadAttention(*arguments)
    mine, keras_own = ours.get_config(), theirs.get_config()
    for name in ("num_heads", "key_dim", "value_dim", "dropout", "use_bias", "attention_axes", "sliding_window"):
        assert mine[name] == keras_own[name]
    assert tuple(mine["output_shape"]) == tuple(keras_own["output_shape"])


SYMBOLIC = {
    "self": ({}, [(None, None, D)]),
    "cross": ({"num_key_value_heads": 1}, [(B, T, D), (B, S, D)]),
    "separate key": ({"value_dim": 3, "output_shape": (3, 2)}, [(B, T, D), (B, S, D + 1), (B, S, D + 2)]),
    "axes": ({"attention_axes": 2}, [(B, 3, T, D), (B, 3, S, D)]),
    "whole image": ({}, [(B, 3, 4, D), (B, 2, 2, D)]),
}


@pytest.mark.parametrize("options, shapes", SYMBOLIC.values(), ids=SYMBOLIC)
def test_symbolic_shapes_are_the_real_ones(options, shapes):
    layer = kt.layers.MultiHeadAttention(4, 4, **options)
    symbolic = layer(*[keras.KerasTensor(shape) for shape in shapes], return_attention_scores=True)
    filled = [[3 if size is None else size for size in shape] for shape in shapes]
    real = run(lambda *inputs: layer(*inputs, return_attention_scores=True), *[vectors(*shape) for shape in filled])
    for spec, value in zip(symbolic, real, strict=True):
        assert len(spec.shape) == len(value.shape)
        assert all(known in (None, size) for known, size in zip(spec.shape, value.shape, strict=True))
        assert spec.dtype == keras.backend.standardize_dtype(value.dtype)
    assert layer.compute_output_shape(*shapes) == symbolic[0].shape


@pytest.mark.parametrize("num_key_value_heads", [1, 2])
def test_grouped_heads_equal_full_heads_with_repeated_kernels(num_key_value_heads):
    inputs = [vectors(B, T, D), vectors(B, S, D)]
    options = {"num_heads": 4, "key_dim": 3, "kernel_initializer": "zeros"}
    grouped = kt.layers.MultiHeadAttention(num_key_value_heads=num_key_value_heads, **options)
    full = keras.layers.MultiHeadAttention(**options)
    for layer in (grouped, full):
        layer.build((B, T, D), (B, S, D))
    reference.randomize(grouped)
    for mine, theirs in zip(grouped.weights, full.weights, strict=True):
        value = keras.ops.convert_to_numpy(mine)
        if mine.path.split("/")[-2] in ("key", "value"):  # heads 0, 1 use key/value head 0; heads 2, 3 head 1
            value = np.repeat(value, 4 // num_key_value_heads, axis=-2)
        theirs.assign(value)
    all_keys = np.ones((B, S), bool)
    for causal in (False, True):

        def call(*inputs, causal=causal):
            with_scores = [
                layer(*inputs, use_causal_mask=causal, return_attention_scores=True) for layer in (full, grouped)
            ]
            return *with_scores, [
                grouped(*inputs, use_causal_mask=causal, value_mask=mask) for mask in (None, all_keys)
            ]

        (expected, expected_scores), (output, scores), without_scores = run(call, *inputs)
        np.testing.assert_allclose(output, expected, atol=1e-5)
        np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
        for output in without_scores:
            np.testing.assert_allclose(output, expected, atol=1e-5)


def test_activity_regularizer():
    """It is one of the projections, in both."""
    ours, theirs = pair((B, T, D), (B, S, D), activity_regularizer="l2")
    x, memory = vectors(B, T, D), vectors(B, S, D, seed=1)
    ours(x, memory)
    theirs(x, memory)
    np.testing.assert_allclose(*([float(loss) for loss in layer.losses] for layer in (ours, theirs)), rtol=1e-5)
    again = kt.layers.MultiHeadAttention.from_config(ours.get_config())
    again(x, memory)
    assert len(again.losses) == 4
