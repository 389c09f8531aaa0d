"""`RelativePositionBias` and `AlibiBias` against the papers' values and transformers, with and without a cache."""

import functools

import keras
import numpy as np
import pytest
import torch
from transformers import T5Config
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes
from transformers.models.t5.modeling_t5 import T5Attention

import keras_transformer as kt
from keras_transformer.generation.anatomy import foreign_layers
from keras_transformer.ops.relative import alibi_slopes, relative_buckets
from keras_transformer.testing.mask_trail import where_the_mask_ends
from tests import reference
from tests.backend import compiled, numpy, run, vectors
from tests.layers.configs import assert_config_holds

B, T, D, N, H = 2, 5, 6, 2, 3
LEFT_PADDED = np.array([np.arange(T), [-1, -1, 0, 1, 2]])


def test_buckets_of_t5():
    """B31: the relative position is key - query."""
    for bidirectional, expected in (
        (True, {-20: 10, -9: 8, -8: 8, -7: 7, -1: 1, 0: 0, 1: 17, 7: 23, 9: 24, 20: 26, 200: 31}),
        (False, {-200: 31, -20: 17, -15: 15, -7: 7, 0: 0, 5: 0}),
    ):
        found = numpy(relative_buckets(np.array(list(expected)), bidirectional=bidirectional))
        assert found.tolist() == list(expected.values())


@pytest.mark.parametrize("sizes", [(32, 128), (8, 20), (4, 5), (64, 256)], ids=str)
@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_equal_transformers(sizes, bidirectional):
    distance = np.arange(-300, 301)
    expected = T5Attention._relative_position_bucket(torch.tensor(distance), bidirectional, *sizes)
    assert numpy(relative_buckets(distance, *sizes, bidirectional)).tolist() == expected.tolist()


@pytest.mark.parametrize("decoder", [False, True])
def test_bias_equals_transformers(decoder):
    config = T5Config(d_model=D, d_kv=H, num_heads=N, is_decoder=decoder, relative_attention_num_buckets=8)
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    layer = kt.layers.RelativePositionBias(N, num_buckets=8, bidirectional=not decoder)
    layer.build()
    layer.embeddings.assign(theirs.relative_attention_bias.weight.detach().numpy())
    with torch.no_grad():
        np.testing.assert_array_equal(run(layer, vectors(B, T, D)), theirs.compute_bias(T, T))


def test_slopes_equal_transformers():
    for num_heads in (1, 2, 3, 4, 6, 8, 12, 20, 25):
        np.testing.assert_allclose(alibi_slopes(num_heads), _get_alibi_slopes(num_heads, None), rtol=1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "bfloat16"])
def test_alibi_is_float32(policy):
    """In 16 bits most distances above 2048 would be those of their neighbours."""
    layer = kt.layers.AlibiBias(2, dtype=policy)
    positions = np.arange(4090, 4097)[None]
    bias = layer.between(np.zeros((1, 1), "int32"), positions)
    assert keras.backend.standardize_dtype(bias.dtype) == "float32"
    np.testing.assert_array_equal(numpy(bias)[0, :, 0], -np.array([[2.0**-4], [2.0**-8]]) * positions)
    both = numpy(layer(np.zeros((1, 3, D))))
    assert both.shape == (1, 2, 3, 3) and (both == both.swapaxes(2, 3)).all()


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_learned_numbers_are_not_rounded(policy):
    layer = kt.layers.RelativePositionBias(2, dtype=policy)
    x = vectors(1, 3, D)
    layer.build(x.shape)
    layer.embeddings.assign(np.full(layer.embeddings.shape, 1 + 2.0**-20))
    block = kt.layers.EncoderBlock(2, 8, dtype=policy)
    block.build(x.shape)
    huge = 4096.0 + np.arange(3, dtype="float32") * np.ones((1, 2, 3, 1), "float32")
    expected = np.exp(np.arange(3)) / np.exp(np.arange(3)).sum()
    for weight in block.self_attention.query_dense.weights:
        weight.assign(np.zeros(weight.shape))

    def call(x):
        _, scores = block(x, position_bias=huge, return_attention_scores=True)
        return layer(x), keras.ops.cast(scores, "float32")

    bias, scores = run(call, x)
    assert bias.dtype == "float32" and (bias == 1 + 2.0**-20).all()
    np.testing.assert_allclose(scores[0, 0, 0], expected, atol=1e-2)


def bias_of(kind, bidirectional=False):
    if kind == "alibi":
        return kt.layers.AlibiBias(N)
    return kt.layers.RelativePositionBias(N, 8, 6, bidirectional)


class Stack:
    """Two causal layers whose bias is shared, or is of each layer's own."""

    def __init__(self, kind, owned, windows=(None, None)):
        own = [bias_of(kind) if owned else None for _ in windows]
        self.shared = None if owned else bias_of(kind)
        self.blocks = [
            kt.layers.DecoderBlock(
                attention=kt.layers.MultiHeadAttention(N, H, sliding_window=window, position_bias=bias),
                intermediate_dim=8,
            )
            for window, bias in zip(windows, own, strict=True)
        ]
        for layer in self.blocks:
            layer.build((None, None, D))
            reference.randomize(layer)
        if self.shared is not None:
            self.shared.build()
            reference.randomize(self.shared)
        self.step = compiled(self._step)

    def __call__(self, x):
        options = {} if self.shared is None else {"position_bias": self.shared(x)}
        for layer in self.blocks:
            x = layer(x, **options)
        return x

    def _step(self, x, positions, cache):
        with kt.ops.DecodingScope(cache, positions, **({} if cache else {"length": T + 2})) as scope:
            y = self(x)
        return y, scope.cache

    def in_pieces(self, x, positions, cut):
        outputs, cache, begin = [], None, 0
        for size in cut:
            piece = [keras.ops.convert_to_tensor(a[:, begin : begin + size]) for a in (x, positions)]
            y, cache = self.step(*piece, cache)
            outputs.append(numpy(y))
            begin += size
        return np.concatenate(outputs, axis=1)


stack = functools.cache(Stack)


@pytest.mark.parametrize(
    "kind, owned, windows",
    [("alibi", False, (None, None)), ("alibi", True, (3, None)), ("relative", True, (3, None))],
    ids=str,
)
def test_a_cache_changes_nothing(kind, owned, windows):
    """With rows of unequal length, and rings; the invariants' table has a relative bias that is shared."""
    model, x = stack(kind, owned, windows), vectors(B, T, D)
    first, second = run(lambda x: (model(x[:1]), model(x[1:, 2:])), x)
    for cut in ((3, 1, 1), (3, 2)):
        found = model.in_pieces(x, LEFT_PADDED, cut)
        np.testing.assert_allclose(found[:1], first, atol=1e-5)
        np.testing.assert_allclose(found[1:, 2:], second, atol=1e-5)


@pytest.mark.parametrize("kind", ["alibi", "relative"])
def test_the_bias_is_added(kind):
    """Given to the call, given to the layer, and both at once."""
    x, bias = vectors(B, T, D), bias_of(kind, bidirectional=True)
    bias.build()
    reference.randomize(bias)
    owner = kt.layers.MultiHeadAttention(N, H, position_bias=bias)
    plain = kt.layers.MultiHeadAttention(N, H)
    for layer in (owner, plain):
        layer.build(x.shape)
    weights = reference.randomize(owner)[owner.name]
    plain.set_weights(owner.get_weights()[: len(plain.weights)])
    real = np.array([[True] * T, [False, True, True, True, False]])
    added = run(bias, x)
    assert added.shape == (1, N, T, T) and abs(added - added.swapaxes(2, 3)).max() > 1e-3 or kind == "alibi"
    mask = real[:, None, None]
    expected, twice = (reference.multi_head_attention(x, x, weights, mask, bias=factor * added)[0] for factor in (1, 2))
    found = run(
        lambda x: (
            owner(x, x, value_mask=real),
            plain(x, x, value_mask=real, position_bias=bias(x)),
            owner(x, x, value_mask=real, position_bias=bias(x)),
        ),
        x,
    )
    for mine, theirs in zip(found, (expected, expected, twice), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_an_encoder_over_padded_rows_in_a_scope():
    x, bias = vectors(B, T, D), bias_of("relative", bidirectional=True)
    block = kt.layers.EncoderBlock(N, 8)
    block.build((None, None, D))
    bias.build()
    reference.randomize(block)
    reference.randomize(bias)

    def inside(x):
        with kt.ops.DecodingScope(False, LEFT_PADDED):
            return block(x, position_bias=bias(x))

    found, alone = run(lambda x: (inside(x), block(x[1:, 2:], position_bias=bias(x[1:, 2:]))), x)
    np.testing.assert_allclose(found[1:, 2:], alone, atol=1e-5)


def test_what_does_not_follow_the_cache_is_refused():
    x, positions = vectors(B, T, D), np.tile(np.arange(T), (B, 1))
    shared = bias_of("alibi")
    ring, plain = (kt.layers.MultiHeadAttention(N, H, sliding_window=window) for window in (2, None))
    for attention, bias in ((ring, shared), (plain, lambda x: np.zeros((1, 1, T - 1, T - 1), "float32"))):
        attention.build(x.shape)

        def call(x, attention=attention, bias=bias):
            return attention(x, position_bias=bias(x), use_causal_mask=True)

        with pytest.raises(kt.ops.CannotCache, match="position_bias"):
            with kt.ops.DecodingScope(None, positions[:, :-1], T) as scope:
                call(x[:, :-1])  # refuses the window
            with kt.ops.DecodingScope(scope.cache, positions[:, -1:]):
                call(x[:, -1:])


def test_keys_of_another_sequence_have_no_distance():
    x, states = vectors(B, T, D), vectors(B, 3, D)
    for options in ({"position_bias": kt.layers.AlibiBias(N)}, {"rotary": kt.layers.Rotary()}):
        layer = kt.layers.MultiHeadAttention(N, 4, **options)
        with pytest.raises(ValueError, match="cross_attention.*rotary"):
            kt.layers.DecoderBlock(N, 8, cross_attention=layer)
        with pytest.raises(kt.ops.CannotCache, match="not the tokens' own"):
            with kt.ops.DecodingScope(None, np.tile(np.arange(T), (B, 1))):
                layer(x, states)


def test_a_bias_in_the_graph_of_a_model():
    """The mask goes on to the blocks and not to the bias, and nothing keeps the model from a cache."""
    ids = keras.Input((None,), dtype="int32")
    table = kt.layers.PositionalEmbedding(20, 16, position=None)
    x = table(ids)
    bias = kt.layers.RelativePositionBias(N, 8, 20, bidirectional=False)(x)
    assert bias.shape == (None, N, None, None) and getattr(bias, "_keras_mask", None) is None
    block = kt.layers.DecoderBlock(N, 24)
    model = keras.Model(ids, table(block(x, position_bias=bias), reverse=True))
    assert not foreign_layers(model)
    lost = keras.Model(ids, block(x * 2.0, position_bias=bias))
    assert "ends at 'multiply" in where_the_mask_ends(lost, np.array([[3, 4, 0]]))


def test_one_bias_belongs_to_one_layer():
    bias = kt.layers.RelativePositionBias(2)
    owner = kt.layers.MultiHeadAttention(2, 3, position_bias=bias, name="first")
    with pytest.raises(ValueError, match="position_bias.*first"):
        kt.layers.MultiHeadAttention(2, 3, position_bias=bias)
    with pytest.raises(ValueError, match="as many heads.*2 and num_heads=4"):
        kt.layers.MultiHeadAttention(4, 3, position_bias=kt.layers.AlibiBias(2))
    assert owner.variants.position_bias is bias


def test_configs_keep_every_argument():
    options = {
        "num_buckets": 8,
        "max_distance": 20,
        "bidirectional": False,
        "embeddings_initializer": keras.initializers.Constant(0.5),
    }
    assert_config_holds(kt.layers.RelativePositionBias, {"num_heads": 3, "name": "bias", "dtype": "float16", **options})
    assert_config_holds(kt.layers.AlibiBias, {"num_heads": 3, "name": "bias", "dtype": "float16"})


@pytest.mark.parametrize(
    "options",
    [{"num_heads": 0}, {"num_buckets": 7}, {"num_buckets": 2}, {"max_distance": 8}, {"max_distance": 0}],
    ids=str,
)
def test_refused_arguments(options):
    (name, value), *_ = options.items()
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        kt.layers.RelativePositionBias(**{"num_heads": 2, **options})
