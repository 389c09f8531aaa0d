"""What builders make of options and layers that are meant for all of their blocks."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.backend import predict

SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
IDS, TARGETS = np.array([[5, 6, 7, 8]]), np.array([[1, 2, 3]])


def blocks_of(model):
    parts = [model, *(x for x in model.layers if isinstance(x, keras.Model))]
    return [x for part in parts for x in part.layers if isinstance(x, (kt.layers.EncoderBlock, kt.layers.DecoderBlock))]


def attention(**options):
    return kt.layers.MultiHeadAttention(2, 4, **options)


BUILDERS = {
    "gpt": lambda **options: kt.models.gpt(None, 20, 16, **SIZES, **options),
    "bert": lambda **options: kt.models.bert(None, 20, 16, **SIZES, **options),
    "llama": lambda **options: kt.models.llama("tiny", vocabulary_size=20, **SIZES, **options),
    "t5": lambda **options: kt.models.t5(None, 20, key_dim=4, **SIZES, **options),
    "bart": lambda **options: kt.models.bart(None, 20, max_sequence_length=16, **SIZES, **options),
    "transformer": lambda **options: kt.models.transformer(20, 20, **SIZES, **options),
}
ENCODER_DECODERS = ("t5", "bart", "transformer")


@pytest.mark.parametrize("name", BUILDERS)
def test_dropout_of_the_feed_forward_networks_reaches_them(name):
    rates = [block.feed_forward.dropout for block in blocks_of(BUILDERS[name](feed_forward_dropout=0.3))]
    assert len(rates) >= 2 and set(rates) == {0.3}
    made = kt.layers.FeedForward(12, dropout=0.2)
    assert {x.feed_forward.dropout for x in blocks_of(BUILDERS[name](feed_forward=made))} == {0.2}
    with pytest.raises(ValueError, match="`feed_forward_dropout`.*give it to the layer `feed_forward`.*=0.3"):
        BUILDERS[name](feed_forward=made, feed_forward_dropout=0.3)


@pytest.mark.parametrize("name", BUILDERS)
def test_every_block_has_kernels_of_its_own_from_a_seeded_pattern(name):
    first = keras.initializers.GlorotUniform(seed=1)
    made = {"attention": attention(kernel_initializer=first), "feed_forward": kt.layers.FeedForward(12)}
    made["feed_forward"] = kt.layers.FeedForward(12, kernel_initializer=first)
    model, again = (BUILDERS[name](**made, seed=3) for _ in range(2))
    blocks = blocks_of(model)
    for path in ("self_attention.query_dense", "feed_forward.intermediate_dense"):
        owner, dense = path.split(".")
        kernels = [np.ravel(np.array(getattr(getattr(block, owner), dense).kernel)) for block in blocks]
        assert len(kernels) >= 2 and len({x.tobytes() for x in kernels}) == len(kernels)
    for mine, theirs in zip(blocks, blocks_of(again), strict=True):
        np.testing.assert_array_equal(mine.self_attention.query_dense.kernel, theirs.self_attention.query_dense.kernel)


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_attention_of_an_encoder_decoder_given_as_a_layer(name, tmp_path):
    """Beside it, cross-attention is one that the numbers make, or given as well; the encoder has none."""
    for options in ({}, {"cross_attention": attention(use_bias=False)}):
        model = BUILDERS[name](attention=attention(qk_norm="rms"), seed=3, **options)
        blocks = blocks_of(model)
        assert len(blocks) == 4 and all(block.self_attention.variants.query_norm is not None for block in blocks)
        cross = [x.cross_attention for x in blocks if isinstance(x, kt.layers.DecoderBlock)]
        assert len(cross) == 2 and cross[0] is not cross[1]
        assert all((x.num_heads, x.key_dim, x.variants.query_norm) == (2, 4, None) for x in cross)
        assert not options or not any(x.use_bias for x in cross)
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_allclose(*(predict(x, [IDS, TARGETS]) for x in (model, loaded)), atol=1e-6)


def test_sizes_that_a_given_layer_has_itself_are_refused():
    with pytest.raises(ValueError, match="`key_dim`.*give it to the layer `attention`.*key_dim=32"):
        kt.layers.EncoderBlock(attention=attention(), intermediate_dim=8, key_dim=32)
    with pytest.raises(ValueError, match="`key_dim`"):
        kt.models.gpt(None, 20, 16, **SIZES, attention=attention(), key_dim=4)


def test_the_norm_of_the_blocks_is_that_of_the_embeddings():
    model = kt.models.bert(None, 20, 16, **SIZES, norm="rms")
    assert isinstance(model.get_layer("embedding_norm"), kt.layers.RMSNorm)


@pytest.mark.parametrize("name", BUILDERS)
def test_seeds_may_be_numpy_integers(name):
    for mine, theirs in zip(
        BUILDERS[name](seed=np.int64(3)).get_config()["layers"], BUILDERS[name](seed=3).get_config()["layers"]
    ):
        assert mine["config"].get("seed") == theirs["config"].get("seed")


@pytest.mark.parametrize("head", ["language_model", "masked_lm"])
def test_a_tied_head_has_as_many_logits_as_the_table_has_rows(head):
    model = kt.models.gpt(None, 20, 16, **SIZES)
    with pytest.raises(ValueError, match="each of the 20 rows.*num_classes=10"):
        kt.models.with_head(model, head, num_classes=10)
    assert kt.models.with_head(model, head, num_classes=20).output_shape == (None, None, 20)
    assert kt.models.with_head(model, head, num_classes=10, tie=False).output_shape == (None, None, 10)


def test_a_decoder_that_is_quantised_in_part_is_read_back(tmp_path):
    model = kt.models.transformer(20, 20, **SIZES)
    model.quantize("int8", filters=lambda layer: "self_attention" in (layer.path or ""))
    blocks = blocks_of(model)
    assert all(x.self_attention.query_dense.quantization_mode == "int8" for x in blocks)
    expected = predict(model, [IDS, TARGETS])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(predict(loaded, [IDS, TARGETS]), expected, atol=1e-6)
