"""Which keys an attention layer uses while a decoding scope is open, and what it refuses to keep in a cache."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.ops.cache import LooksBothWays
from tests import reference
from tests.backend import numpy, run, vectors

B, T, S, D = 2, 4, 3, 6
POSITIONS = np.tile(np.arange(T), (B, 1))
FIRST, REST = slice(0, T - 1), slice(T - 1, T)


def attention(**options):
    layer = kt.layers.MultiHeadAttention(2, 3, **options)
    layer.build((None, None, D))
    reference.randomize(layer)
    return layer


def in_two_pieces(function, positions=POSITIONS, **start):
    """Outputs of `function(piece)` over all tokens but the last, then over the last."""
    with kt.ops.DecodingScope(None, positions[:, FIRST], T, **start) as scope:
        first = function(FIRST)
    with kt.ops.DecodingScope(scope.cache, positions[:, REST]):
        return keras.ops.concatenate([first, function(REST)], axis=1)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("length", [1, T])
@pytest.mark.parametrize("masked", [False, True])
def test_keys_made_of_the_tokens_look_both_ways(masked, length, dtype):
    """Not causal, and the value is the normed query: no encoder's states, however many tokens there are."""
    layer, norm = kt.layers.MultiHeadAttention(2, 3, dtype=dtype), kt.layers.RMSNorm()
    x = vectors(B, length, D)
    mask = {"value_mask": np.ones((B, length), bool)} if masked else {}
    for inputs in ((x,), (x, x), (x, norm(x))):
        with (
            pytest.raises(LooksBothWays, match="both ways.*encoder_positions"),
            kt.ops.DecodingScope(None, POSITIONS[:, :length]),
        ):
            layer(*inputs, **(mask if len(inputs) > 1 else {}))


def test_keys_that_grow_with_the_text_are_no_encoders_states():
    """Given `encoder_positions` as many as tokens, only the next step can tell."""
    layer, norm, x = attention(), kt.layers.RMSNorm(), vectors(B, T, D)
    with pytest.raises(LooksBothWays):
        in_two_pieces(lambda piece: layer(x[:, piece], norm(x[:, piece])), encoder_positions=POSITIONS[:, FIRST])
    pooled = keras.layers.AveragePooling1D(2, padding="same")  # 3 tokens give 2 keys, 1 gives 1
    with pytest.raises(LooksBothWays):
        in_two_pieces(lambda piece: layer(x[:, piece], pooled(x[:, piece])))


@pytest.mark.parametrize("length", [1, S, S + 2])
def test_cross_attention_is_kept(length):
    layer, x, states = attention(), vectors(B, T, D), vectors(B, length, D)
    positions = np.zeros((B, length), "int32")
    positions[1, 1:] = -1
    for given, mask in ((None, None), (np.zeros_like(positions), None), (positions, positions >= 0)):
        if given is None and length == S:
            continue  # as many states as tokens in the first piece: refused, see below
        found, expected = run(
            lambda x, states, given=given, mask=mask: (
                in_two_pieces(lambda piece: layer(x[:, piece], states), encoder_positions=given),
                layer(x, states, value_mask=mask),
            ),
            *(x, states),
        )
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_as_many_states_as_tokens():
    """A bare layer cannot know whose they are unless it is told; a block knows."""
    x, states = vectors(B, T, D), vectors(B, T - 1, D)
    layer = attention()
    with pytest.raises(LooksBothWays, match="encoder_positions"):
        in_two_pieces(lambda piece: layer(x[:, piece], states))
    block = kt.layers.DecoderBlock(2, 8)
    block.build((None, None, D), (None, None, D))
    reference.randomize(block)
    found, expected = run(
        lambda x, states: (in_two_pieces(lambda piece: block(x[:, piece], states)), block(x, states)), x, states
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_causal_attention_whose_value_is_not_its_query():
    """Normed keys join the cache as the tokens' own; keys of another number cannot."""
    layer, norm, x = attention(), kt.layers.RMSNorm(), vectors(B, T, D)
    found, expected = run(
        lambda x: (
            in_two_pieces(lambda piece: layer(x[:, piece], norm(x[:, piece]), use_causal_mask=True)),
            layer(x, norm(x), use_causal_mask=True),
        ),
        x,
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with (
        pytest.raises(kt.ops.CannotCache, match="use_causal_mask=True.* 3 keys for 4 tokens"),
        kt.ops.DecodingScope(None, POSITIONS),
    ):
        layer(x, vectors(B, S, D), use_causal_mask=True)


def test_encoder_positions_of_another_number_are_refused():
    layer, x = attention(), vectors(B, T, D)
    with (
        pytest.raises(kt.ops.CannotCache, match="3 keys.*2"),
        kt.ops.DecodingScope(None, POSITIONS, encoder_positions=np.zeros((B, 2), "int32")),
    ):
        layer(x, vectors(B, S, D))


@pytest.mark.parametrize("name", ["attention_mask", "position_bias"])
@pytest.mark.parametrize("causal", [True, False])
def test_what_is_fixed_to_one_call_is_refused(causal, name):
    """A bias that fits to the first tokens may be one that follows the cache; those behind them tell."""
    layer, x = attention(), vectors(B, T, D)
    inputs, fixed = ((x,), np.ones((1, 1, T, T))) if causal else ((x, vectors(B, S, D)), np.ones((1, 1, T, S)))
    start = {"length": T + 1} if causal else {}
    with pytest.raises(kt.ops.CannotCache, match=name):
        with kt.ops.DecodingScope(None, POSITIONS, **start) as scope:
            layer(*inputs, use_causal_mask=causal, **{name: fixed})
        with kt.ops.DecodingScope(scope.cache, POSITIONS[:, :1] + T):
            layer(x[:, :1], use_causal_mask=True, **{name: fixed})


def test_an_encoder_that_runs_over_padded_rows():
    """The scope supplies positions only: padding is hidden wherever the keys are those of the tokens."""
    layer, norm, x = attention(), kt.layers.RMSNorm(), vectors(B, T, D)
    real = np.array([[True] * 4, [False, True, True, False]])
    positions = np.where(real, np.maximum(np.cumsum(real, 1) - 1, 0), -1)

    def inside(x):
        with kt.ops.DecodingScope(False, positions):
            return layer(x), layer(x, norm(x)), layer(x, use_causal_mask=True), layer(x, x[:, :2])

    def outside(x):
        masks = {"value_mask": real}
        return layer(x, x, **masks), layer(x, norm(x), **masks), layer(x, x, use_causal_mask=True, **masks)

    found, expected = run(lambda x: (inside(x), (*outside(x), layer(x, x[:, :2]))), x)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine[real], theirs[real], atol=1e-5)
    assert abs(found[0] - numpy(layer(x)))[1].max() > 1e-3
