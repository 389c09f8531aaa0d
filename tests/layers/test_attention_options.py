"""What attention may do beyond the paper against NumPy and transformers: rotary, norms, sinks, caps, scale, biases."""

import functools

import keras
import numpy as np
import pytest
import torch
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss

import keras_transformer as kt
from keras_transformer.ops.cache import LooksBothWays
from tests import reference
from tests.backend import compiled, gradients, numpy, run, vectors, weight_gradients

B, T, D, N, K, H = 2, 5, 6, 4, 2, 4
LEFT_PADDED = np.array([np.arange(T), [-1, -1, 0, 1, 2]])
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 2}

OPTIONS = {
    "rotary": lambda: {"rotary": kt.layers.Rotary(base=50.0)},
    "interleaved, half of each head": lambda: {"rotary": kt.layers.Rotary(layout="interleaved", fraction=0.5)},
    "rms": lambda: {"qk_norm": "rms", "qk_norm_epsilon": 1e-3},
    "layer norm, rotary": lambda: {"qk_norm": "layer", "qk_norm_epsilon": 1e-2, "rotary": kt.layers.Rotary()},
    "norm of one's own": lambda: {"qk_norm": kt.layers.RMSNorm(1e-3, zero_centered=True)},
    "sinks": lambda: {"sinks": True},
    "rotary in a window": lambda: {"rotary": kt.layers.Rotary(), "sinks": True, "sliding_window": 2},
    "soft cap": lambda: {"soft_cap": 0.5},
    "scale": lambda: {"scale": 1.0},
    "everything": lambda: {
        "rotary": kt.layers.Rotary(),
        "position_bias": kt.layers.AlibiBias(N),
        "qk_norm": "rms",
        "sinks": True,
        "soft_cap": 2.0,
        "scale": 0.7,
        "use_gate": True,
        "use_bias": ("query", "value"),
    },
}


@functools.cache
def attention(name):
    """A layer with random weights, and the weights."""
    layer = kt.layers.MultiHeadAttention(N, H, num_key_value_heads=K, **OPTIONS[name]())
    layer.build((None, None, D))
    return layer, reference.randomize(layer)[layer.name]


def turned(rotary):
    """Rotation of (B, T, N, H) as a product with complex numbers."""

    def turn(x):
        if rotary is None:
            return x
        dim = int(x.shape[-1] * rotary.fraction)
        part = x[..., :dim]
        if rotary.layout == "half":
            pairs = part[..., : dim // 2] + 1j * part[..., dim // 2 :]
        else:
            pairs = part[..., ::2] + 1j * part[..., 1::2]
        rates = rotary.base ** (-np.arange(0, dim, 2) / dim)
        pairs = pairs * np.exp(1j * np.arange(x.shape[1])[:, None, None] * rates)
        y = x.copy()
        if rotary.layout == "half":
            y[..., :dim] = np.concatenate([pairs.real, pairs.imag], -1)
        else:
            y[..., :dim:2], y[..., 1:dim:2] = pairs.real, pairs.imag
        return y

    return turn


def expected_of(name, x, mask):
    layer, weights = attention(name)
    options = layer.variants
    norms = {}
    for norm in ("query_norm", "key_norm") if options.qk_norm else ():
        given = weights[norm]
        if name == "norm of one's own":  # `randomize` has put the scale around 1
            given = {"scale": 1 + given["scale"]}
        norms[norm] = {**given, "epsilon": getattr(layer, norm).epsilon}
    bias = -np.abs(np.arange(T) - np.arange(T)[:, None]) * 2.0 ** -np.arange(2, 9, 2)[:, None, None]
    return reference.multi_head_attention(
        x.astype("float64"),
        x.astype("float64"),
        {**weights, **norms},
        mask,
        bias=0.0 if options.position_bias is None else bias,
        turn=turned(options.rotary),
        scale=options.scale,
        soft_cap=options.soft_cap,
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_layers_equal_numpy(name):
    layer, _ = attention(name)
    x = vectors(B, T, D)
    real = np.array([[True] * T, [False, True, True, True, False]])
    mask = real[:, None, None] & reference.causal_mask(T)
    if layer.sliding_window:
        mask = mask & ~np.tril(np.ones((T, T), bool), -layer.sliding_window)
    expected, expected_scores = expected_of(name, x, mask)
    output, (same, scores) = run(
        lambda x: [
            layer(x, x, value_mask=real, use_causal_mask=True, return_attention_scores=asked) for asked in (False, True)
        ],
        x,
    )
    has_key = mask.any(-1)[:, 0]
    for mine in (output, same):
        np.testing.assert_allclose(mine[has_key], expected[has_key], atol=1e-5)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_cache_changes_nothing(name):
    """Keys are kept as they are attended to; rows are of unequal length."""
    layer, _ = attention(name)

    def step(x, positions, cache):
        with kt.ops.DecodingScope(cache, positions, **({} if cache else {"length": T + 2})) as scope:
            y = layer(x, use_causal_mask=True)
        return y, scope.cache

    x, step = vectors(B, T, D), compiled(step)
    first, second = run(lambda x: (layer(x[:1], use_causal_mask=True), layer(x[1:, 2:], use_causal_mask=True)), x)
    # one step after the other; and several tokens onto a cache where a window or whatever there is may be in their way
    for cut in ((3, 1, 1), (3, 2)) if name in ("rotary in a window", "everything") else ((3, 1, 1),):
        outputs, cache, begin = [], None, 0
        for size in cut:
            piece = [keras.ops.convert_to_tensor(a[:, begin : begin + size]) for a in (x, LEFT_PADDED)]
            y, cache = step(*piece, cache)
            outputs.append(numpy(y))
            begin += size
        found = np.concatenate(outputs, axis=1)
        np.testing.assert_allclose(found[:1], first, atol=1e-5)
        np.testing.assert_allclose(found[1:, 2:], second, atol=1e-5)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_weight_has_a_gradient(name):
    layer, _ = attention(name)
    x = keras.ops.convert_to_tensor(vectors(B, T, D))
    weight = keras.ops.convert_to_tensor(vectors(B, T, D, seed=1))
    found = weight_gradients(layer, lambda: keras.ops.sum(weight * layer(x, use_causal_mask=True)))
    for path, gradient in found.items():
        assert np.isfinite(gradient).all()
        assert abs(gradient).max() > 1e-6 or path.endswith("key/bias"), path


@pytest.mark.parametrize("name", OPTIONS)
def test_files_and_sixteen_bits(name, tmp_path):
    layer, _ = attention(name)
    inputs = keras.Input((None, D))
    model = keras.Model(inputs, layer(inputs, use_causal_mask=True))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]
    layers = []
    for policy in ("mixed_float16", "bfloat16"):
        small = kt.layers.MultiHeadAttention.from_config({**layer.get_config(), "dtype": policy, "name": policy})
        small.build((None, None, D))
        small.set_weights(layer.get_weights())
        layers.append(small)

    def call(x):
        yield from (model(x), loaded(x))
        for small in layers:
            output = small(x, use_causal_mask=True)
            assert keras.backend.standardize_dtype(output.dtype) == small.compute_dtype
            yield keras.ops.cast(output, "float32")

    expected, from_file, *rounded = run(lambda x: list(call(x)), vectors(B, T, D))
    np.testing.assert_allclose(from_file, expected, atol=1e-6)
    for output in rounded:
        np.testing.assert_allclose(output, expected, atol=0.1)


def test_new_weights_come_behind_those_of_keras():
    layer, _ = attention("everything")
    folders = list(dict.fromkeys(weight.path.split("/")[1] for weight in layer.weights))
    plain = ["query", "key", "gate", "value", "attention_output"]
    assert folders == [*plain, "query_norm", "key_norm", "sinks"]
    assert [w.path.split("/")[-2] for w in layer.weights if w.name == "bias"] == ["query", "value"]
    learned = kt.layers.MultiHeadAttention(N, H, position_bias=kt.layers.RelativePositionBias(N, name="distances"))
    learned.build((None, None, D))
    assert [weight.path.split("/")[1] for weight in learned.weights][-1] == "distances"


def test_sinks_equal_gpt_oss():
    """Also where a query sees a single key, which would otherwise get all of its attention."""
    query, key, value, sinks = vectors(B, T, N, H), vectors(B, T, K, H, seed=1), vectors(B, T, K, H, seed=2), vectors(N)
    module = torch.nn.Module()
    module.sinks, module.num_key_value_groups, module.training = torch.tensor(sinks), N // K, False
    hidden = torch.tensor(np.where(reference.causal_mask(T), 0.0, -1e30).astype("float32"))[None, None]
    swapped = [torch.tensor(x).transpose(1, 2) for x in (query, key, value)]
    expected, expected_scores = modeling_gpt_oss.eager_attention_forward(module, *swapped, hidden, scaling=0.3)
    found, scores = run(
        lambda *x: kt.ops.attend(*x, causal=True, scale=0.3, sinks=keras.ops.array(sinks), return_scores=True),
        *(query, key, value),
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    alone = run(
        lambda *x: kt.ops.attend(*x, scale=0.3, sinks=keras.ops.array(sinks))[0], query, key[:, :1], value[:, :1]
    )
    np.testing.assert_allclose(alone[:, 0], found[:, 0], atol=1e-5)


def test_a_soft_cap_equals_gemma():
    query, key, value = vectors(B, T, N, H), vectors(B, T, K, H, seed=1), vectors(B, T, K, H, seed=2)
    module = torch.nn.Module()
    module.num_key_value_groups, module.training = N // K, False
    hidden = torch.tensor(np.where(reference.causal_mask(T), 0.0, -1e30).astype("float32"))[None, None]
    swapped = [torch.tensor(x).transpose(1, 2) for x in (query, key, value)]
    expected, _ = modeling_gemma2.eager_attention_forward(module, *swapped, hidden, scaling=2.0, softcap=1.5)
    found = run(lambda *x: kt.ops.attend(*x, causal=True, scale=2.0, soft_cap=1.5)[0], query, key, value)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_large_scores_in_sixteen_bits():
    """Scores near a thousand are capped, and share with a sink, in float32; nothing overflows, also in the gradient."""
    inputs = [keras.ops.cast(30 * vectors(B, T, N, H, seed=seed), "float16") for seed in range(3)]
    sinks = np.full(N, 20.0, "float32")
    exact = [numpy(keras.ops.cast(x, "float32")).astype("float64") for x in inputs]

    def call(*x):
        return kt.ops.attend(*x, causal=True, soft_cap=30.0, sinks=keras.ops.convert_to_tensor(sinks))[0]

    expected, _ = reference.attention(*exact, reference.causal_mask(T), soft_cap=30.0, sinks=sinks)
    found = run(lambda *x: keras.ops.cast(call(*x), "float32"), *inputs)
    assert abs(found - expected).max() <= 1e-2 * abs(expected).max()
    assert all(np.isfinite(x.astype("float32")).all() for x in gradients(call, *inputs))


def test_dynamic_scaling_goes_by_each_rows_length():
    """Padding is not counted: neither in a masked call nor in a scope that supplies positions only."""
    layer = kt.layers.MultiHeadAttention(2, H, rotary=kt.layers.Rotary(base=20.0, scaling=DYNAMIC))
    layer.build((None, None, D))
    reference.randomize(layer)
    x, real = vectors(B, T, D), LEFT_PADDED >= 0

    def call(x):
        with kt.ops.DecodingScope(False, LEFT_PADDED):
            inside = layer(x, use_causal_mask=True)
        masked = [
            layer(x, **masks, use_causal_mask=True)
            for masks in ({"query_mask": real}, {"value": x, "value_mask": real})
        ]
        return inside, *masked, layer(x[:1], use_causal_mask=True), layer(x[1:, 2:], use_causal_mask=True)

    *found, first, second = run(call, x)
    for mine in found:
        np.testing.assert_allclose(mine[:1], first, atol=1e-5)
        np.testing.assert_allclose(mine[1:, 2:], second, atol=1e-5)
    with pytest.raises(kt.ops.CannotCache, match="length of the text"), kt.ops.DecodingScope(None, LEFT_PADDED):
        layer(x, use_causal_mask=True)
    with pytest.raises(LooksBothWays), kt.ops.DecodingScope(None, LEFT_PADDED):
        layer(x)


def test_no_kernel_is_claimed():
    for options, word in (({"sinks": True}, "sinks"), ({"soft_cap": 2.0}, "caps")):
        layer = kt.layers.MultiHeadAttention(2, H, flash_attention=True, **options)
        with pytest.raises(ValueError, match=f"flash_attention=True.*({word}|TensorFlow)"):
            layer(vectors(B, T, D))


REFUSED = {
    "rotary": ({"rotary": "half"}, ["rotary", "Rotary", "half"]),
    "position_bias": ({"position_bias": keras.layers.Dense(2)}, ["position_bias", "PositionBias", "Dense"]),
    "qk_norm": ({"qk_norm": "batch"}, ["qk_norm", "'rms'", "batch"]),
    "qk_norm_epsilon": ({"qk_norm_epsilon": 0}, ["qk_norm_epsilon", "0"]),
    "soft_cap": ({"soft_cap": -1.0}, ["soft_cap", "-1.0"]),
    "scale": ({"scale": 0}, ["scale", "0"]),
    "use_bias": ({"use_bias": ("query", "output")}, ["use_bias", "attention_output", "'output'"]),
    "use_bias kind": ({"use_bias": "query"}, ["use_bias", "query"]),
}


@pytest.mark.parametrize("options, words", REFUSED.values(), ids=REFUSED)
def test_refused_arguments(options, words):
    with pytest.raises(ValueError) as error:
        kt.layers.MultiHeadAttention(**{"num_heads": 2, "key_dim": 4, **options})
    assert all(word in str(error.value) for word in words), error.value


def test_zero_centred_rms_norm():
    """The weight is kept around zero: fresh, the two forms give the same."""
    plain, centred = kt.layers.RMSNorm(), kt.layers.RMSNorm(zero_centered=True)
    x = vectors(B, T, D)
    np.testing.assert_allclose(run(centred, x), run(plain, x), atol=1e-6)
    centred.scale.assign(np.arange(D))
    plain.scale.assign(1 + np.arange(D))
    np.testing.assert_allclose(run(centred, x), run(plain, x), atol=1e-6)
    assert kt.layers.RMSNorm.from_config(centred.get_config()).zero_centered
