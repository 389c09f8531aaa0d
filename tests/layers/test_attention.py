"""`MultiHeadAttention` and `ops.attend` against NumPy and PyTorch: masks, missing keys, 16 bits, refusals."""

import json

import keras
import numpy as np
import pytest
import torch

import keras_transformer as kt
from tests import reference
from tests.backend import gradients, numpy, run, vectors
from tests.layers.configs import assert_config_holds

B, T, S, D, N, H = 2, 5, 7, 6, 4, 3


def tensors(*arrays):
    return [torch.tensor(x) for x in arrays]


def random_mask(seed=0):
    """A mask (B, 1, T, S) in which query 1 of row 0 and all queries of row 1 but the last see no key."""
    mask = np.random.default_rng(seed).random((B, 1, T, S)) < 0.5
    mask[..., 2] = True
    mask[0, :, 1] = False
    mask[1, :, :-1] = False
    return mask


@pytest.mark.parametrize("num_key_value_heads", [N, 2, 1])
def test_attend_equals_torch(num_key_value_heads):
    query, key, value = vectors(B, T, N, H), *(vectors(B, S, num_key_value_heads, H, seed=seed) for seed in (1, 2))
    mask = random_mask() | (np.arange(S) == 2)  # torch gives NaN where nothing is allowed
    bias = vectors(1, N, T, S)
    for options in ({}, {"attn_mask": mask}, {"is_causal": True}, {"attn_mask": bias}):
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in tensors(query, key, value)),
            **{name: torch.tensor(x) if isinstance(x, np.ndarray) else x for name, x in options.items()},
            enable_gqa=True,
        ).transpose(1, 2)
        given = options.get("attn_mask")
        ours = {
            "mask": keras.ops.convert_to_tensor(mask) if given is mask else None,
            "bias": keras.ops.convert_to_tensor(bias) if given is bias else None,
            "causal": options.get("is_causal", False),
        }
        fused, (explicit, _) = run(
            lambda *inputs, ours=ours: (
                kt.ops.attend(*inputs, **ours)[0],
                kt.ops.attend(*inputs, **ours, return_scores=True),
            ),
            *(query, key, value),
        )
        np.testing.assert_allclose(fused, expected, atol=1e-5)
        np.testing.assert_allclose(explicit, expected, atol=1e-5)


def test_attend_takes_masks_of_every_rank_and_dtype():
    """As many heads as rows: three dimensions are a mask per row, never one per head."""
    inputs = vectors(B, T, B, H), vectors(B, S, B, H, seed=1), vectors(B, S, B, H, seed=2)
    shapes = ((T, S), (B, T, S), (B, 1, S), (B, B, T, S), (B, 1, T, S), (1, 1, 1, S))
    cases = []
    for shape, dtype, causal in zip(shapes, ("bool", "int32", "float32") * 2, (False, True, True) * 2, strict=True):
        mask = np.random.default_rng((3, *shape)).random(shape) < 0.5
        mask[..., 0, :] = False
        cases.append((mask, dtype, causal))

    def call(*inputs):
        for mask, dtype, causal in cases:
            options = {"mask": mask.astype(dtype), "causal": causal}
            yield kt.ops.attend(*inputs, **options)[0], kt.ops.attend(*inputs, **options, return_scores=True)

    results = run(lambda *inputs: list(call(*inputs)), *inputs)
    for (mask, _, causal), (output, (explicit, scores)) in zip(cases, results, strict=True):
        allowed = mask[:, None] if mask.ndim == 3 else mask
        allowed = allowed & np.tril(np.ones((T, S), bool)) if causal else allowed
        expected, expected_scores = reference.attention(*(x.astype("float64") for x in inputs), allowed)
        np.testing.assert_allclose(output, expected, atol=1e-5)
        np.testing.assert_allclose(explicit, expected, atol=1e-5)
        np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


@pytest.mark.parametrize("shape", [(S,), (1, B, 1, T, S)])
def test_attend_refuses_masks_of_other_ranks(shape):
    with pytest.raises(ValueError, match=r"`mask`.*\(T, S\)") as error:
        kt.ops.attend(vectors(B, T, N, H), vectors(B, S, N, H), vectors(B, S, N, H), mask=np.ones(shape, bool))
    assert str(shape) in str(error.value)


def test_layer_equals_torch_multihead_attention():
    layer = kt.layers.MultiHeadAttention(2, D // 2)
    layer.build((B, T, D), (B, S, D))
    weights = reference.randomize(layer)[layer.name]
    theirs = torch.nn.MultiheadAttention(D, 2, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(
            torch.tensor(np.concatenate([weights[x]["kernel"].reshape(D, D).T for x in ("query", "key", "value")]))
        )
        theirs.in_proj_bias.copy_(
            torch.tensor(np.concatenate([weights[x]["bias"].ravel() for x in ("query", "key", "value")]))
        )
        theirs.out_proj.weight.copy_(torch.tensor(weights["attention_output"]["kernel"].reshape(D, D).T))
        theirs.out_proj.bias.copy_(torch.tensor(weights["attention_output"]["bias"]))
    x, memory = vectors(B, T, D), vectors(B, S, D)
    real = np.arange(S) < np.array([[5], [7]])
    with torch.no_grad():
        expected, expected_scores = theirs(
            *tensors(x, memory, memory), key_padding_mask=torch.tensor(~real), average_attn_weights=False
        )
    output, scores = run(lambda *x: layer(*x, value_mask=real, return_attention_scores=True), x, memory)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_queries_without_a_key_give_the_output_bias(causal):
    layer = kt.layers.MultiHeadAttention(N, H, num_key_value_heads=2, value_dim=2)
    layer.build((B, T, D), (B, S, D))
    weights = reference.randomize(layer)[layer.name]
    x, memory, mask = vectors(B, T, D), vectors(B, S, D), random_mask()
    allowed = mask & np.tril(np.ones((T, S), bool)) if causal else mask
    expected, expected_scores = reference.multi_head_attention(
        x.astype("float64"), memory.astype("float64"), weights, allowed
    )
    output, (same_output, scores) = run(
        lambda *x: [
            layer(*x, attention_mask=mask, use_causal_mask=causal, return_attention_scores=asked)
            for asked in (False, True)
        ],
        *(x, memory),
    )
    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(same_output, expected, atol=1e-5)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    without_key = ~allowed.any(-1)[:, 0]
    assert without_key.any() and (scores.swapaxes(1, 2)[without_key] == 0).all()
    np.testing.assert_allclose(output[without_key], np.broadcast_to(layer.output_dense.bias, (without_key.sum(), D)))


def test_gradients_are_finite_where_there_is_no_key():
    layer = kt.layers.MultiHeadAttention(2, H)
    layer.build((B, T, D), (B, S, D))
    reference.randomize(layer)
    mask = random_mask()
    inputs = vectors(B, T, D), vectors(B, S, D)
    without_scores = gradients(lambda *x: layer(*x, attention_mask=mask), *inputs)
    with_scores = gradients(lambda *x: layer(*x, attention_mask=mask, return_attention_scores=True)[0], *inputs)
    for found, same in zip(without_scores, with_scores, strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, same, atol=1e-5)
    without_key = ~mask.any(-1)[:, 0]
    assert (without_scores[0][without_key] == 0).all() and (without_scores[0][~without_key] != 0).any()


def test_masks_of_keys_that_are_the_queries():
    """Named once, the tokens hide as keys what they hide named twice, and what their own mask hides."""
    x, layer, theirs = vectors(B, T, D), kt.layers.MultiHeadAttention(N, H), keras.layers.MultiHeadAttention(N, H)
    layer(x), theirs(x, x)
    theirs.set_weights(layer.get_weights())
    of_values, of_queries = (np.tile(np.arange(T) != i, (B, 1)) for i in (2, 3))
    once, twice = numpy([layer(x, value_mask=of_values), theirs(x, x, value_mask=of_values)])
    np.testing.assert_allclose(once, twice, atol=1e-5)
    once = numpy(layer(x, value_mask=of_values, query_mask=of_queries))
    twice = numpy(theirs(x, x, value_mask=of_values & of_queries))
    np.testing.assert_allclose(once[of_queries], twice[of_queries], atol=1e-5)


def test_everything_masked():
    layer = kt.layers.MultiHeadAttention(2, H)
    x = vectors(B, T, D)
    output, (_, scores) = run(
        lambda x: [layer(x, x, value_mask=np.zeros((B, T)), return_attention_scores=asked) for asked in (False, True)],
        x,
    )
    assert (output == 0).all() and (scores == 0).all()  # the bias is zero


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_with_large_scores_and_all_masks(dtype):
    """B15: causal, padding and a given mask at once, scores of about a thousand."""
    query, key, value = (
        keras.ops.cast(factor * vectors(B, T, N, H, seed=seed), dtype)
        for seed, factor in ((0, 30.0), (1, 30.0), (2, 1.0))
    )
    exact = [numpy(keras.ops.cast(x, "float32")).astype("float64") for x in (query, key, value)]
    mask = random_mask()[..., :T] & (np.arange(T) < 4)
    allowed = mask & np.tril(np.ones((T, T), bool))
    scores = np.einsum("btnh,bsnh->bnts", *exact[:2]) / np.sqrt(H)
    assert abs(scores).max() > 1000
    expected, _ = reference.attention(*exact, allowed)

    def attend(*inputs, **options):
        return kt.ops.attend(*inputs, mask=keras.ops.convert_to_tensor(mask), causal=True, **options)

    def call(*inputs):
        explicit, probabilities = attend(*inputs, return_scores=True)
        return [keras.ops.cast(x, "float32") for x in (attend(*inputs)[0], explicit, probabilities)]

    fused, explicit, probabilities = run(call, query, key, value)
    for output in (fused, explicit):
        assert np.isfinite(output).all()
        assert abs(output - expected).max() <= 2e-2 * abs(expected).max()
    assert (probabilities[~np.broadcast_to(allowed, probabilities.shape)] == 0).all()
    has_key = np.broadcast_to(allowed.any(-1), probabilities.shape[:-1])
    np.testing.assert_allclose(probabilities.sum(-1), has_key, atol=2e-3)
    for options in ({}, {"return_scores": True}):
        found = gradients(lambda *inputs, options=options: attend(*inputs, **options)[0], query, key, value)
        assert all(np.isfinite(x.astype("float32")).all() for x in found)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16"])
def test_policies(policy):
    exact = kt.layers.MultiHeadAttention(2, H)
    layer = kt.layers.MultiHeadAttention(2, H, dtype=policy)
    for x in (exact, layer):
        x.build((B, T, D), (B, S, D))
    reference.randomize(exact)
    layer.set_weights(exact.get_weights())
    mask = random_mask()
    expected = run(lambda *x: exact(*x, attention_mask=mask), vectors(B, T, D), vectors(B, S, D))
    output = layer(vectors(B, T, D), vectors(B, S, D), attention_mask=mask)
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype == policy.replace("mixed_", "")
    assert all(w.dtype == ("float32" if "mixed" in policy else policy) for w in layer.weights)
    np.testing.assert_allclose(numpy(keras.ops.cast(output, "float32")), expected, atol=0.05)


def test_causal_with_and_without_other_masks_and_unequal_lengths():
    layer = kt.layers.MultiHeadAttention(2, H)
    layer.build((B, T, D), (B, S, D))
    weights = reference.randomize(layer)[layer.name]
    x, memory = vectors(B, T, D), vectors(B, S, D)
    for query, value in ((x, memory), (memory, x)):
        causal = np.tril(np.ones((query.shape[1], value.shape[1]), bool))
        expected, _ = reference.multi_head_attention(query, value, weights, causal)
        everything = np.ones((B, value.shape[1]), bool)
        for output in run(
            lambda *inputs, everything=everything: [
                layer(*inputs, use_causal_mask=True, value_mask=mask) for mask in (None, everything)
            ],
            *(query, value),
        ):
            np.testing.assert_allclose(output, expected, atol=1e-5)


def test_position_bias_is_added_to_the_scores():
    layer = kt.layers.MultiHeadAttention(2, H)
    layer.build((B, T, D), (B, S, D))
    weights = reference.randomize(layer)[layer.name]
    x, memory, bias, mask = vectors(B, T, D), vectors(B, S, D), vectors(1, 2, T, S), random_mask()
    expected, expected_scores = reference.multi_head_attention(x, memory, weights, mask, bias=bias)
    output, scores = run(
        lambda *x: layer(*x, attention_mask=mask, position_bias=bias, return_attention_scores=True), x, memory
    )
    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("given", ["float64", "float32", "symbolic"])
def test_position_bias_is_not_rounded_to_sixteen_bits(policy, given):
    """Neighbouring integers above 2 ** 11 are one number in both: distances would lose their order."""
    layer = kt.layers.MultiHeadAttention(2, H, dtype=policy)
    layer.build((B, T, D), (B, S, D))
    weights = reference.randomize(layer, stddev=0.1)[layer.name]
    x, memory = vectors(B, T, D), vectors(B, S, D)
    bias = 4096.0 + np.random.default_rng(0).permuted(np.tile(np.arange(S), (1, 2, T, 1)), axis=-1)
    rounded = keras.ops.cast(keras.ops.cast(bias, layer.compute_dtype), "float32")
    assert len(np.unique(numpy(rounded))) < S
    _, expected = reference.multi_head_attention(x, memory, weights, bias=bias)
    if given == "symbolic":
        inputs = keras.Input((T, D)), keras.Input((S, D)), keras.Input((2, T, S))
        _, scores = layer(*inputs[:2], position_bias=inputs[2], return_attention_scores=True)
        scores = keras.Model(inputs, scores)([x, memory, np.tile(bias, (B, 1, 1, 1)).astype("float32")])
    else:
        _, scores = layer(x, memory, position_bias=bias.astype(given), return_attention_scores=True)
    assert keras.backend.standardize_dtype(scores.dtype) == layer.compute_dtype
    np.testing.assert_allclose(numpy(keras.ops.cast(scores, "float32")), expected, atol=2e-2)


@pytest.mark.parametrize("lowest", [np.finfo("float32").min, -1e31, float("-inf")])
def test_a_bias_that_hides_keys_shows_none_that_a_mask_hides(lowest):
    """As `transformers` writes padding: where it hides all that the mask allows, the future stays hidden."""
    layer, x = kt.layers.MultiHeadAttention(1, 4), vectors(1, 3, 4)
    bias = np.where(np.arange(3) == 0, np.float32(lowest), np.zeros((1, 1, 3, 3), "float32"))
    given = {"use_causal_mask": True, "position_bias": bias, "return_attention_scores": True}
    output, scores = numpy(layer(x, **given))
    np.testing.assert_allclose(scores[0, 0, 0], [1, 0, 0], atol=1e-6)
    assert (scores[0, 0, 1:, 0] == 0).all() and np.isfinite(output).all()
    other = numpy(layer(x + np.eye(3)[2][:, None].astype("float32"), **given))[0]
    np.testing.assert_allclose(other[:, :2], output[:, :2], atol=1e-6)


def test_attention_mask_is_not_rounded_to_sixteen_bits():
    layer = kt.layers.MultiHeadAttention(2, H, dtype="mixed_float16")
    mask = np.tril(np.full((T, T), 1e-12, "float32"))  # zero in float16
    _, scores = layer(vectors(B, T, D), attention_mask=mask, return_attention_scores=True)
    np.testing.assert_array_equal(numpy(scores) > 0, np.broadcast_to(mask > 0, (B, 2, T, T)))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_inputs_of_every_float_kind(policy):
    layer = kt.layers.MultiHeadAttention(2, H, dtype=policy)
    x = np.round(8 * vectors(B, T, D)) / 8  # the same numbers in all dtypes
    outputs = [layer(x.astype(dtype)) for dtype in ("float64", "float32", "float16")]
    outputs += [layer(x.astype("float32"), x.astype("float64"))]
    for output in outputs:
        assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
        np.testing.assert_array_equal(*(numpy(keras.ops.cast(y, "float32")) for y in (output, outputs[0])))
    assert layer(keras.Input((T, D))).dtype == layer.compute_dtype


def test_one_initializer_with_a_seed_draws_another_kernel_for_each_projection():
    def weights(seed):
        layer = kt.layers.MultiHeadAttention(
            2,
            4,
            use_gate=True,
            kernel_initializer=keras.initializers.GlorotUniform(seed=seed),
            bias_initializer=keras.initializers.RandomNormal(seed=seed),
        )
        layer.build((B, T, 8))
        assert layer.get_config()["kernel_initializer"]["config"]["seed"] == seed
        return [numpy(w).ravel() for w in layer.weights]

    first, again = weights(1), weights(1)
    for mine, same in zip(first, again, strict=True):
        np.testing.assert_array_equal(mine, same)
    for i, mine in enumerate(first):
        for other in first[i + 1 :]:
            assert mine.shape != other.shape or abs(mine - other).max() > 1e-3
    generator = keras.random.SeedGenerator(1)
    layer = kt.layers.MultiHeadAttention(2, 4, kernel_initializer=keras.initializers.GlorotUniform(seed=generator))
    layer.build((B, T, 8))
    assert abs(numpy(layer.query_dense.kernel) - numpy(layer.key_dense.kernel)).max() > 1e-3


def test_sizes_may_be_numpy_integers():
    size = np.int64
    layer = kt.layers.MultiHeadAttention(
        size(4),
        np.int32(3),
        value_dim=size(5),
        output_shape=(size(2), size(3)),
        attention_axes=size(1),
        sliding_window=size(2),
        num_key_value_heads=size(2),
        seed=size(7),
    )
    plain = kt.layers.MultiHeadAttention(
        *(4, 3, 5), output_shape=(2, 3), attention_axes=1, sliding_window=2, num_key_value_heads=2, seed=7
    )
    assert {**layer.get_config(), "name": None} == {**plain.get_config(), "name": None}
    json.dumps(layer.get_config())


def test_causal_window_sees_the_last_keys():
    layer = kt.layers.MultiHeadAttention(1, H, sliding_window=2)
    _, scores = layer(vectors(1, 5, D), use_causal_mask=True, return_attention_scores=True)
    seen = numpy(scores)[0, 0] > 0
    np.testing.assert_array_equal(seen, np.tril(np.ones((5, 5))) - np.tril(np.ones((5, 5)), -2) > 0)


def test_the_layer_leaves_its_inputs_masks_alone():
    x = keras.layers.Embedding(6, D, mask_zero=True)(np.array([[3, 1, 0]]))
    layer = kt.layers.MultiHeadAttention(2, H)
    first, second = layer(x, x), layer(x, x)
    np.testing.assert_array_equal(*numpy([first, second]))
    assert numpy(first._keras_mask).tolist() == [[True, True, False]]


def test_dropout_drops_probabilities_in_training_only():
    layer = kt.layers.MultiHeadAttention(1, H, dropout=0.5, seed=1)
    x = vectors(B, T, D)
    first, second = numpy([layer(x, x, training=True), layer(x, x, training=True)])
    assert abs(first - second).max() > 1e-3
    np.testing.assert_array_equal(*numpy([layer(x, x), layer(x, x)]))
    plain = kt.layers.MultiHeadAttention(1, H)
    plain.build(x.shape)
    plain.set_weights(layer.get_weights()[: len(plain.weights)])
    np.testing.assert_allclose(*numpy([layer(x, x), plain(x, x)]), atol=1e-6)


def test_regularizers_constraints_and_initializers_reach_every_projection():
    layer = kt.layers.MultiHeadAttention(
        2,
        H,
        use_gate=True,
        kernel_initializer=keras.initializers.RandomNormal(),
        bias_initializer="ones",
        kernel_regularizer=keras.regularizers.L2(0.5),
        bias_regularizer=keras.regularizers.L2(0.25),
        kernel_constraint="non_neg",
    )
    layer.build((B, T, D))
    assert len(layer.losses) == 10
    kernels = [w for w in layer.weights if w.name == "kernel"]
    squares = 0.5 * sum((numpy(w) ** 2).sum() for w in kernels) + 0.25 * (4 * 2 * H + D)
    np.testing.assert_allclose(sum(numpy(layer.losses)), squares, rtol=1e-5)
    assert all((numpy(w) == 1).all() for w in layer.weights if w.name == "bias")
    assert all(isinstance(w.constraint, keras.constraints.NonNeg) for w in kernels)
    assert abs(numpy(kernels[0]) - numpy(kernels[1])).max() > 1e-3  # one initializer, two draws


def test_config_keeps_every_argument():
    options = {
        "num_heads": 4,
        "key_dim": 3,
        "value_dim": 5,
        "dropout": 0.25,
        "use_bias": False,
        "output_shape": (2, 3),
        "attention_axes": (2,),
        "sliding_window": 2,
        "flash_attention": False,
        "num_key_value_heads": 2,
        "use_gate": True,
        "rotary": kt.layers.Rotary(base=50.0, fraction=0.5),
        "position_bias": kt.layers.AlibiBias(4),
        "qk_norm": "layer",
        "qk_norm_epsilon": 1e-3,
        "sinks": True,
        "soft_cap": 20.0,
        "scale": 0.5,
        "seed": 7,
        "kernel_initializer": keras.initializers.RandomNormal(stddev=0.125),
        "bias_initializer": keras.initializers.Constant(0.5),
        "kernel_regularizer": keras.regularizers.L2(0.5),
        "bias_regularizer": keras.regularizers.L1(0.25),
        "kernel_constraint": keras.constraints.MaxNorm(3),
        "bias_constraint": keras.constraints.NonNeg(),
        "name": "heads",
        "dtype": "mixed_bfloat16",
        "trainable": False,
    }
    assert_config_holds(kt.layers.MultiHeadAttention, options)


REFUSED = {
    "num_heads": ({"num_heads": 0}, ["num_heads", "0"]),
    "num_heads none": ({"num_heads": None}, ["num_heads", "None"]),
    "key_dim": ({"key_dim": -1}, ["key_dim", "-1"]),
    "key_dim float": ({"key_dim": 2.5}, ["key_dim", "2.5"]),
    "value_dim": ({"value_dim": 0}, ["value_dim", "0"]),
    "key/value heads": ({"num_key_value_heads": 3}, ["num_key_value_heads=3", "num_heads=4"]),
    "no key/value heads": ({"num_key_value_heads": 0}, ["num_key_value_heads", "0"]),
    "dropout": ({"dropout": 1.0}, ["dropout", "1.0"]),
    "window": ({"sliding_window": 0}, ["sliding_window", "0"]),
    "flash and dropout": ({"flash_attention": True, "dropout": 0.1}, ["flash_attention", "0.1"]),
    "axes": ({"attention_axes": "rows"}, ["attention_axes", "rows"]),
    "output_shape": ({"output_shape": 0}, ["output_shape", "0"]),
    "output_shape kind": ({"output_shape": "wide"}, ["output_shape", "wide"]),
}


@pytest.mark.parametrize("options, words", REFUSED.values(), ids=REFUSED)
def test_refused_arguments(options, words):
    with pytest.raises(ValueError) as error:
        kt.layers.MultiHeadAttention(**{"num_heads": 4, "key_dim": 3, **options})
    assert all(word in str(error.value) for word in words), error.value


def test_refused_calls():
    def layer(**options):
        return kt.layers.MultiHeadAttention(2, H, **options)

    for call, words in (
        (lambda: layer()(vectors(T, D)), ["query", "(5, 6)"]),
        (lambda: layer()(vectors(B, T, D), vectors(B, S, D), vectors(B, S + 1, D)), ["value", "key", "7", "8"]),
        (lambda: layer(attention_axes=3)(vectors(B, 3, 4, D)), ["attention_axes", "3"]),
        (lambda: layer(attention_axes=(1, 1))(vectors(B, 3, 4, D)), ["attention_axes", "1"]),
        (lambda: layer(attention_axes=0)(vectors(B, T, D)), ["attention_axes", "0"]),
        (
            lambda: layer()(vectors(B, T, D), vectors(B, S, D), attention_mask=np.ones((T, S + 1), bool)),
            ["attention_mask", "8", "7"],
        ),
        (lambda: layer()(vectors(B, T, D), attention_mask=np.ones((T,), bool)), ["attention_mask", "(5,)"]),
        *(
            (lambda shape=shape: layer()(vectors(B, T, D), attention_mask=np.ones(shape, bool)), ["fit the scores"])
            for shape in ((B + 1, T, T), (B, N + 1, T, T))
        ),
        (
            lambda: layer(flash_attention=True)(vectors(B, T, D), return_attention_scores=True),
            ["flash_attention", "scores"],
        ),
        (
            lambda: layer(flash_attention=True)(vectors(B, T, D), position_bias=np.zeros((1, 1, T, T))),
            ["flash_attention", "bias"],
        ),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert all(word in str(error.value) for word in words), error.value


def test_flash_attention_is_refused_where_there_is_no_kernel():
    options, call_options, words = {
        "tensorflow": ({}, {}, "TensorFlow"),
        "jax": ({"value_dim": H + 1}, {}, "3 and 4"),
        "torch": ({}, {"position_bias": np.zeros((1, 1, T, T))}, "bias"),
    }[keras.backend.backend()]
    layer = kt.layers.MultiHeadAttention(2, H, flash_attention=True, **options)
    with pytest.raises(ValueError, match=f"`flash_attention=True`.*{words}"):
        layer(vectors(B, T, D), **call_options)


def test_scores_can_be_captured_from_a_layer_that_insists_on_flash_attention():
    layer = kt.layers.MultiHeadAttention(2, H, flash_attention=True)
    x = vectors(B, T, D)
    with kt.ops.ScoresScope() as scope:
        layer(x)
    layer.flash_attention = None
    _, expected = layer(x, return_attention_scores=True)
    np.testing.assert_allclose(numpy(scope.records[0][1]), numpy(expected), atol=1e-6)


def test_lora_on_a_projection_saves_merged(tmp_path):
    inputs = keras.Input((None, D))
    model = keras.Model(inputs, kt.layers.MultiHeadAttention(2, H, name="heads")(inputs))
    layer = model.get_layer("heads")
    layer.query_dense.enable_lora(2)
    layer.value_dense.enable_lora(2)
    reference.randomize(layer)
    x = vectors(B, T, D)
    expected = run(model, x)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(run(loaded, x), expected, atol=1e-5)
