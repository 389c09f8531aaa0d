"""What blocks may do beyond the paper against NumPy: parallel sublayers, layer scale, stochastic depth, shared bias."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import reference
from tests.backend import numpy, run, vectors, weight_gradients

B, T, D, F = 2, 5, 8, 12
BLOCKS = {"encoder": kt.layers.EncoderBlock, "decoder": kt.layers.DecoderBlock}


def built(kind="encoder", **options):
    layer = BLOCKS[kind](2, F, **options)
    layer.build((None, None, D))
    return layer, reference.randomize(layer)[layer.name]


def mask_of(kind):
    return None if kind == "encoder" else reference.causal_mask(T)


@pytest.mark.parametrize("kind", BLOCKS)
def test_parallel_sublayers(kind):
    layer, weights = built(kind, norm_placement="pre", parallel=True)
    x = vectors(B, T, D).astype("float64")
    first, second = (reference.norm(x, weights[f"{name}_norm"]) for name in ("self_attention", "feed_forward"))
    attended, expected_scores = reference.multi_head_attention(first, first, weights["self_attention"], mask_of(kind))
    expected = x + attended + reference.feed_forward(second, weights["feed_forward"])
    output, (same, scores, *_) = run(
        lambda x: (layer(x), layer(x, return_attention_scores=True)[:2]), x.astype("float32")
    )
    for mine in (output, same):
        np.testing.assert_allclose(mine, expected, atol=1e-5)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    folders = list(dict.fromkeys(weight.path.split("/")[1] for weight in layer.weights))
    assert folders == ["self_attention", "self_attention_norm", "feed_forward", "feed_forward_norm"]


@pytest.mark.parametrize("kind", BLOCKS)
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_layer_scale(placement, kind):
    """It multiplies what is added to x, behind the norm there; the dropout before it is off at inference."""
    layer, weights = built(kind, norm_placement=placement, layer_scale=0.1, dropout=0.2)
    scales = {name: weights[f"{name}_layer_scale"]["scale"] for name in ("self_attention", "feed_forward")}

    def scaled(y, name):
        return y * scales[name]

    def add(x, sublayer, name):
        norm = weights[f"{name}_norm"]
        if placement == "post":
            return reference.norm(x + scaled(sublayer(x), name), norm)
        y = sublayer(reference.norm(x, norm))
        if placement == "sandwich":
            y = reference.norm(y, weights[f"{name}_output_norm"])
        return x + scaled(y, name)

    x = vectors(B, T, D).astype("float64")
    attend = lambda y: reference.multi_head_attention(y, y, weights["self_attention"], mask_of(kind))[0]  # noqa: E731
    expected = add(x, attend, "self_attention")
    expected = add(expected, lambda y: reference.feed_forward(y, weights["feed_forward"]), "feed_forward")
    np.testing.assert_allclose(run(layer, x.astype("float32")), expected, atol=1e-5)
    fresh = kt.layers.EncoderBlock(2, F, layer_scale=0.25)
    fresh.build((None, None, D))
    assert all((numpy(w) == 0.25).all() for w in fresh.weights if "layer_scale" in w.path)


def test_stochastic_depth_drops_branches_of_whole_rows():
    """A row has each branch in full, scaled, or not at all, and in the mean what it has at inference."""
    rate, rows = 0.4, 64
    layer, weights = built(norm_placement="pre", parallel=True, stochastic_depth=rate, seed=3)
    x = np.repeat(vectors(1, T, D), rows, axis=0)
    first, second = (reference.norm(x, weights[f"{name}_norm"]) for name in ("self_attention", "feed_forward"))
    attended = reference.multi_head_attention(first, first, weights["self_attention"])[0][0]
    fed = reference.feed_forward(second, weights["feed_forward"])[0]
    training, inference = numpy([layer(x, training=True), layer(x)])
    np.testing.assert_allclose(inference[0], x[0] + attended + fed, atol=1e-5)
    kept = np.zeros((2, 2), int)
    for row in training:
        differences = {
            (a, b): abs(row - x[0] - (a * attended + b * fed) / (1 - rate)).max() for a in (0, 1) for b in (0, 1)
        }
        found = min(differences, key=differences.get)
        assert differences[found] < 1e-4
        kept[found] += 1
    assert (kept > 0).all()  # the two branches are dropped apart
    for share in (kept[1].sum() / rows, kept[:, 1].sum() / rows):
        assert abs(share - (1 - rate)) < 0.25
    again = kt.layers.EncoderBlock.from_config(layer.get_config())
    again.build((None, None, D))
    again.set_weights(layer.get_weights())
    np.testing.assert_allclose(numpy(again(x, training=True)), training, atol=1e-6)


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_position_bias_is_given_on(kind):
    layer, weights = built(kind)
    x, bias = vectors(B, T, D), vectors(1, 2, T, T)

    def attend(y):
        return reference.multi_head_attention(y, y, weights["self_attention"], mask_of(kind), bias=bias)[0]

    expected = reference.residual(x, attend, weights, "self_attention", "post")
    expected = reference.residual(
        expected, lambda y: reference.feed_forward(y, weights["feed_forward"]), weights, "feed_forward", "post"
    )
    np.testing.assert_allclose(run(lambda x, bias: layer(x, position_bias=bias), x, bias), expected, atol=1e-5)


def test_a_block_with_another_attention_needs_no_bias():
    layer = kt.layers.EncoderBlock(attention=keras.layers.MultiHeadAttention(2, 4), intermediate_dim=F)
    assert layer(vectors(B, T, D)).shape == (B, T, D)


@pytest.mark.parametrize("policy", ["mixed_float16", "bfloat16"])
@pytest.mark.parametrize("kind", BLOCKS)
def test_dtypes_of_the_inputs(kind, policy):
    """A block casts x itself: what belongs to the scores stays as it is."""
    options = {"norm_placement": "pre", "parallel": True, "layer_scale": 0.5, "stochastic_depth": 0.1}
    layer = BLOCKS[kind](2, F, dtype=policy, **options)
    layer.build((None, None, D))
    x = np.round(8 * vectors(B, T, D)) / 8
    cross = kt.layers.DecoderBlock(2, F, dtype=policy)
    cross.build((None, None, D), (None, None, D))

    def call(*inputs):
        outputs = [*map(layer, inputs), cross(inputs[1], inputs[0])]
        assert {keras.backend.standardize_dtype(output.dtype) for output in outputs} == {layer.compute_dtype}
        return [keras.ops.cast(output, "float32") for output in outputs[:-1]]

    first, *others = run(call, *(x.astype(dtype) for dtype in ("float64", "float32", "float16")))
    for other in others:
        np.testing.assert_array_equal(other, first)


def test_every_weight_has_a_gradient():
    layer, _ = built("decoder", norm_placement="pre", parallel=True, layer_scale=0.5)
    x, weight = (keras.ops.convert_to_tensor(vectors(B, T, D, seed=seed)) for seed in (0, 1))
    for path, gradient in weight_gradients(layer, lambda: keras.ops.sum(weight * layer(x))).items():
        assert abs(gradient).max() > 1e-6 or path.endswith("key/bias"), path


def test_files(tmp_path):
    """Also a norm around zero as the pattern of all."""
    inputs = keras.Input((None, D))
    options = {"layer_scale": 0.3, "stochastic_depth": 0.2, "norm": kt.layers.RMSNorm(1e-4, zero_centered=True)}
    x = kt.layers.DecoderBlock(2, F, norm_placement="pre", parallel=True, **options)(inputs)
    model = keras.Model(inputs, kt.layers.EncoderBlock(2, F, norm_placement="sandwich", **options)(x))
    reference.randomize(model)
    x = vectors(B, T, D)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(run(loaded, x), run(model, x), atol=1e-6)
    for layer, original in zip(loaded.layers, model.layers, strict=True):
        assert layer.get_config() == original.get_config()
    assert loaded.layers[1].self_attention_norm.zero_centered


def test_refusals():
    for options, words in (
        ({"layer_scale": 0}, ["layer_scale", "0"]),
        ({"stochastic_depth": 1.0}, ["stochastic_depth", "1.0"]),
        ({"parallel": True}, ["parallel=True", "'post'"]),
        ({"use_bias": ("query",)}, ["use_bias", "query"]),
    ):
        with pytest.raises(ValueError) as error:
            kt.layers.EncoderBlock(2, F, **options)
        assert all(word in str(error.value) for word in words), error.value
    options = {"norm_placement": "pre", "parallel": True}
    with pytest.raises(ValueError, match="parallel=True.*no cross-attention"):
        kt.layers.DecoderBlock(2, F, cross_attention=kt.layers.MultiHeadAttention(2, 4), **options)
    with pytest.raises(ValueError, match="parallel=True.*no cross-attention"):
        kt.layers.DecoderBlock(2, F, **options)(vectors(B, T, D), vectors(B, 3, D))
