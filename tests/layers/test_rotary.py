"""`Rotary` against the formulas and transformers: layouts, fractions, scalings, positions, refusals."""

import keras
import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama

import keras_transformer as kt
from keras_transformer.ops.rotary import rotary_frequencies
from tests.backend import numpy, run, vectors
from tests.layers.configs import assert_config_holds

B, T, N, H = 2, 6, 3, 8
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 3.0, "original_max_position_embeddings": 4}
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": YARN,
    "yarn, betas": {**YARN, "beta_fast": 16, "beta_slow": 2.0, "original_max_position_embeddings": 4096},
    "yarn, not truncated": {**YARN, "truncate": False, "factor": 32.0, "original_max_position_embeddings": 4096},
    "yarn, attention_factor": {**YARN, "attention_factor": 0.5},
    "yarn, mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn, one mscale": {**YARN, "mscale": 0.7},
    "llama3": LLAMA3,
    "llama3, other": {**LLAMA3, "factor": 2.0, "low_freq_factor": 0.5, "high_freq_factor": 16.0},
    "dynamic": DYNAMIC,
}


def config_of(base, dim, scaling=None, fraction=1.0):
    scaling = dict(scaling or {"rope_type": "default"})
    return LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        head_dim=dim,
        max_position_embeddings=scaling.get("original_max_position_embeddings", 128),
        rope_parameters={"rope_theta": base, "partial_rotary_factor": fraction, **scaling},
    )


@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_equal_transformers(name):
    scaling = SCALINGS[name]
    for base, dim, fraction in ((10000.0, 64, 1.0), (500000.0, 16, 1.0), (100.0, 32, 0.25)):
        for length in (3, 9, 500) if scaling is DYNAMIC else (None,):
            config = config_of(base, dim, scaling, fraction)
            expected, expected_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, seq_len=length)
            rows = None if length is None else np.array([length])
            found, factor = rotary_frequencies(int(dim * fraction), base, scaling, rows)
            np.testing.assert_allclose(numpy(found).ravel(), expected, rtol=2e-5)
            assert factor == pytest.approx(expected_factor)


@pytest.mark.parametrize("name", [None, *SCALINGS])
def test_heads_equal_transformers(name):
    """Each row by itself: transformers takes the longest of a batch for the length of all."""
    scaling, x = SCALINGS.get(name), vectors(1, T, N, H)
    theirs = modeling_llama.LlamaRotaryEmbedding(config_of(50.0, H, scaling))
    cos, sin = theirs(torch.tensor(x), torch.arange(T)[None])
    expected, _ = modeling_llama.apply_rotary_pos_emb(torch.tensor(x), torch.tensor(x), cos, sin, unsqueeze_dim=2)
    layer = kt.layers.Rotary(base=50.0, scaling=scaling)
    np.testing.assert_allclose(run(layer, x), expected, atol=1e-5)


def test_interleaved_equals_transformers():
    """GPT-J turns the first part of each head only."""
    x, turned = vectors(B, T, N, H), 4
    sin, cos = torch.chunk(modeling_gptj.create_sinusoidal_positions(T, turned)[None], 2, dim=-1)
    expected = modeling_gptj.apply_rotary_pos_emb(torch.tensor(x[..., :turned]), sin, cos)
    layer = kt.layers.Rotary(layout="interleaved", fraction=turned / H)
    found = run(layer, x)
    np.testing.assert_allclose(found[..., :turned], expected, atol=1e-5)
    np.testing.assert_array_equal(found[..., turned:], x[..., turned:])


def test_pairs_and_distances():
    """B56."""
    x = np.zeros((1, 4, 1, 4), "float32")
    x[..., 0] = 1
    positions = np.array([[1, 5, 13, 15]])
    half, interleaved = run(
        lambda x: [kt.layers.Rotary(layout=layout)(x, positions) for layout in ("half", "interleaved")], x
    )
    np.testing.assert_allclose(half[0, 0, 0], [np.cos(1), 0, np.sin(1), 0], atol=1e-6)
    np.testing.assert_allclose(interleaved[0, 0, 0], [np.cos(1), np.sin(1), 0, 0], atol=1e-6)
    query, key = vectors(1, 1, 1, H), vectors(1, 1, 1, H, seed=1)
    pairs = [[3, 5], [13, 15], [1003, 1005], [3, 6]]

    def scores(query, key):
        turn = kt.layers.Rotary(base=100.0).turn
        return [keras.ops.sum(turn(query, np.array([[a]])) * turn(key, np.array([[b]]))) for a, b in pairs]

    first, *same, other = run(scores, query, key)
    np.testing.assert_allclose(same, [first] * 2, atol=1e-3)
    assert abs(other - first) > 1e-2


def test_positions_are_counted_from_the_first_token():
    """Given, from the mask, or from the open scope; dynamic scaling goes by the length of each row."""
    x = vectors(B, T, N, H)
    real = np.array([[True] * T, [False, False, True, True, True, False]])
    positions = np.array([np.arange(T), [-1, -1, 0, 1, 2, -1]])

    def call(x):
        for scaling in (None, DYNAMIC):
            layer = kt.layers.Rotary(scaling=scaling)
            with kt.ops.DecodingScope(False, positions):
                inside = layer(x)
            alone = layer(x[1:, 2:5])
            yield layer(x, positions), layer(x, mask=real), inside, layer(x[:1]), alone

    for given, masked, inside, first, second in run(lambda x: list(call(x)), x):
        for found in (given, masked, inside):
            np.testing.assert_allclose(found[:1], first, atol=1e-6)
            np.testing.assert_allclose(found[1:, 2:5], second, atol=1e-6)


def test_dynamic_scaling_waits_for_the_original_length():
    x = vectors(1, T, N, H)
    plain, dynamic, short = run(
        lambda x: [
            kt.layers.Rotary()(x),
            kt.layers.Rotary(scaling=DYNAMIC)(x),
            kt.layers.Rotary(scaling=DYNAMIC)(x[:, :4]),
        ],
        x,
    )
    np.testing.assert_allclose(short, plain[:, :4], atol=1e-6)
    assert abs(dynamic[:, :4] - short).max() > 1e-3


def test_dynamic_scaling_is_refused_by_a_cache():
    layer, x, positions = kt.layers.Rotary(scaling=DYNAMIC), vectors(1, T, N, H), np.arange(T)[None]
    with pytest.raises(kt.ops.CannotCache, match="depend on the length"), kt.ops.DecodingScope(None, positions):
        layer(x)


@pytest.mark.parametrize("policy", ["mixed_float16", "bfloat16"])
def test_angles_are_float32(policy):
    """In 16 bits neighbouring positions above 2048 are one number; here they turn by their own angles."""
    positions = np.array([[4000, 4001, 100003]])
    x = np.zeros((1, 3, 1, 2), "float32")
    x[..., 0] = 1
    layer = kt.layers.Rotary(dtype=policy)
    output = layer(x, positions)
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype == policy.removeprefix("mixed_")
    found = numpy(keras.ops.cast(output, "float32"))[0, :, 0]
    np.testing.assert_allclose(found, np.stack([np.cos(positions[0]), np.sin(positions[0])], -1), atol=8e-3)
    assert numpy(layer(x, positions.astype("float32"))).tolist() == numpy(output).tolist()


def test_it_keeps_the_mask_and_has_no_weights(tmp_path):
    inputs = keras.Input((None, 2, 4))
    layer = kt.layers.Rotary(scaling=YARN)
    model = keras.Model(inputs, layer(inputs))
    assert model.output.shape == (None, None, 2, 4) and not model.weights
    x = vectors(1, 3, 2, 4)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(run(loaded, x), run(layer, x), atol=1e-6)
    masked = keras.layers.Masking()(np.ones((2, 3, 4), "float32"))
    heads = kt.layers.FeedForward(4)(masked)
    assert layer.compute_mask(heads, heads._keras_mask) is heads._keras_mask


def test_config_keeps_every_argument():
    scaling = {**YARN, "truncate": False}
    options = {"base": 100.0, "layout": "interleaved", "fraction": 0.5, "scaling": scaling, "dtype": "float16"}
    assert_config_holds(kt.layers.Rotary, {**options, "name": "turn"})


def test_spellings_of_one_scaling():
    spelled = [
        {"type": "linear", "factor": 2.0},
        {"type": "linear", "rope_type": "linear", "factor": 2.0, "rope_theta": 50.0, "partial_rotary_factor": 0.5},
        {"rope_type": "linear", "factor": 2.0, "attention_factor": None},
    ]
    layers = [kt.layers.Rotary(50.0, fraction=0.5, scaling=scaling) for scaling in spelled]
    assert all(layer.scaling == {"rope_type": "linear", "factor": 2.0} for layer in layers)
    assert kt.layers.Rotary(scaling={"rope_type": "default", "rope_theta": 10000.0}).scaling is None


REFUSED = {
    "base": ({"base": 0}, ["base", "0"]),
    "layout": ({"layout": "quarter"}, ["layout", "half", "quarter"]),
    "fraction": ({"fraction": 1.5}, ["fraction", "1.5"]),
    "no dict": ({"scaling": 2.0}, ["scaling", "2.0"]),
    "type": ({"scaling": {"rope_type": "longrope", "factor": 2.0}}, ["rope_type", "longrope", "'yarn'"]),
    "two types": ({"scaling": {"rope_type": "linear", "type": "dynamic", "factor": 2.0}}, ["rope_type", "dynamic"]),
    "missing": ({"scaling": {"rope_type": "yarn", "factor": 2.0}}, ["original_max_position_embeddings"]),
    "unknown": ({"scaling": {"rope_type": "linear", "factor": 2.0, "beta_fast": 3}}, ["unknown", "beta_fast"]),
    "value": ({"scaling": {"rope_type": "linear", "factor": -2.0}}, ["factor", "-2.0"]),
    "truncate": ({"scaling": {**YARN, "truncate": 1}}, ["truncate", "1"]),
    "order": ({"scaling": {**LLAMA3, "low_freq_factor": 4.0}}, ["low_freq_factor", "high_freq_factor"]),
    "base twice": ({"scaling": {**YARN, "rope_theta": 500.0}}, ["rope_theta", "base", "500.0"]),
    "fraction twice": ({"scaling": {**YARN, "partial_rotary_factor": 0.5}}, ["partial_rotary_factor", "fraction"]),
}


@pytest.mark.parametrize("options, words", REFUSED.values(), ids=REFUSED)
def test_refused_arguments(options, words):
    with pytest.raises(ValueError) as error:
        kt.layers.Rotary(**options)
    assert all(word in str(error.value) for word in words), error.value


def test_refused_calls():
    with pytest.raises(ValueError, match="even number of features.*5 of 5"):
        kt.layers.Rotary()(vectors(1, 2, 1, 5))
    with pytest.raises(ValueError, match="even number.*3 of 6 with fraction=0.5"):
        kt.layers.Rotary(fraction=0.5)(vectors(1, 2, 1, 6))
    with pytest.raises(ValueError, match=r"heads.*\(1, 2, 4\)"):
        kt.layers.Rotary()(vectors(1, 2, 4))
