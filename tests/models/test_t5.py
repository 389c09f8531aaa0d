"""`kt.models.t5` against transformers with the same weights, in all its forms (B31)."""

import functools

import keras
import numpy as np
import pytest
import torch
import transformers

import keras_transformer as kt
from keras_transformer.convert import t5 as table
from keras_transformer.models.sizes import SIZES
from tests.backend import numpy, predict
from tests.models import encoder_decoders as both

VOCABULARY_SIZE = 19
# The end is 15 tokens from the beginning, where the last bucket begins at 10.
SOURCES = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 4, 3], [9, 10], [3]]
TARGETS = [[0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17], [0, 0, 9], [0]]
FORMS = [("relu", True), ("gated-gelu", False)]


@functools.cache
def pair(network="relu", tied=True):
    """`(theirs, ours)` with the same weights; 0 is padding and starts, 1 stops."""
    config = transformers.T5Config(
        vocab_size=VOCABULARY_SIZE,
        d_model=12,
        d_kv=5,
        d_ff=20,
        num_layers=2,
        num_decoder_layers=1 if network == "relu" else 2,
        num_heads=3,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=10,
        feed_forward_proj=network,
        tie_word_embeddings=tied,
        decoder_start_token_id=0,
        attn_implementation="eager",
    )
    theirs = transformers.T5ForConditionalGeneration(config)
    if not tied:
        theirs.lm_head.weight = torch.nn.Parameter(torch.zeros(VOCABULARY_SIZE, 12))
    return both.randomized(theirs), both.copied(theirs, table, kt.models.t5)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_equal_to_transformers(form):
    """Texts longer than the last distance; a start token that is padding, and the same id in the middle of a text."""
    both.assert_equal_forward(*pair(*form), SOURCES, TARGETS, states_too=form == FORMS[0])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_tensors_go_back_bit_for_bit(form):
    both.assert_goes_back(*pair(*form), table)


def test_a_head_of_its_own_is_not_thrown_away():
    tied, own_head = pair(*FORMS[0]), pair(*FORMS[1])
    tensors = both.state(tied[0])
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
    with pytest.raises(ValueError, match="'lm_head.weight' is not 'shared.weight'"):
        both.load(tied[1], tensors, table)
    tensors = both.state(own_head[0])
    del tensors["lm_head.weight"]
    with pytest.raises(ValueError, match="no tensor 'lm_head.weight'"):
        both.load(own_head[1], tensors, table)


def test_the_beams_of_transformers():
    both.assert_same_texts(*pair(), SOURCES[:2], num_beams=3, pad_is_written=True)


def test_one_table_of_distances_for_each_side():
    """B31: shared by the side's layers, none in cross-attention, and no scale on the scores."""
    _, model = pair("gated-gelu", False)
    tables = [w.path for w in model.weights if "position_bias" in w.path]
    assert tables == ["encoder_position_bias/embeddings", "decoder_position_bias/embeddings"]
    sides = [model.get_layer(side) for side in ("encoder", "decoder")]
    biases = [side.get_layer(f"{side.name}_position_bias") for side in sides]
    assert [bias.bidirectional for bias in biases] == [True, False]
    for side in sides:
        for i in range(2):
            block = side.get_layer(f"{side.name}_block_{i}")
            attentions = [block.self_attention, *([block.cross_attention] if side.name == "decoder" else [])]
            assert all(x.variants.scale == 1.0 and x.variants.position_bias is None for x in attentions)
    assert not any("bias" in w.name or w.name == "beta" for w in model.weights if "position_bias" not in w.path)


def test_targets_are_masked_unless_they_start_with_padding():
    ids = {"encoder_token_ids": np.array([[5, 6, 0]]), "decoder_token_ids": np.array([[2, 5, 0]])}
    for start, expected in ((0, None), (2, [[True, True, False]])):
        model = kt.models.t5("tiny", VOCABULARY_SIZE, num_layers=1, start_token_id=start)
        mask = kt.training.tokens.implicit_mask(model(ids))
        assert expected is None and mask is None or numpy(mask).tolist() == expected
        assert kt.layers.read_card(model)["start_token_id"] == start


def test_every_weight_learns():
    sizes = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 12, "relative_buckets": 8}
    model = kt.models.t5("tiny", VOCABULARY_SIZE, **sizes, gated=True, tie_embeddings=False)
    both.assert_every_weight_learns(model, SOURCES, [row[1:] + [1] for row in TARGETS], 0)


PUBLISHED = {
    "small": 60_506_624,
    "base": 222_903_552,
    "large": 737_668_096,
    "3b": 2_851_598_336,
    "11b": 11_307_321_344,
    "v1_1_small": 76_961_152,
    "v1_1_base": 247_577_856,
    "v1_1_large": 783_150_080,
    "v1_1_xl": 2_849_757_184,
    "v1_1_xxl": 11_135_332_352,
}


def by_formula(num_layers, hidden_dim, num_heads, intermediate_dim, key_dim, gated=False, tie_embeddings=True):
    attention, network = 4 * hidden_dim * num_heads * key_dim, (2 + gated) * hidden_dim * intermediate_dim
    blocks = num_layers * (3 * attention + 2 * network + 5 * hidden_dim)
    return blocks + (2 - tie_embeddings) * 32128 * hidden_dim + 2 * (32 * num_heads + hidden_dim)


def test_published_numbers_of_parameters():
    """Of all sizes by a formula, which is what is counted at one layer."""
    assert {size: by_formula(**SIZES["t5"][size]) for size in PUBLISHED} == PUBLISHED
    for size in ("small", "v1_1_small"):
        assert both.count(kt.models.t5, size) == by_formula(**{**SIZES["t5"][size], "num_layers": 1})


def test_options_reach_every_projection():
    initializer = keras.initializers.RandomNormal(stddev=0.1, seed=1)
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "key_dim": 4, "intermediate_dim": 8}
    model = kt.models.t5(None, 9, **sizes, kernel_initializer=initializer, norm_placement="sandwich", seed=3)
    kernels = [numpy(w) for w in model.weights if w.name == "kernel"]
    assert all(0.05 < x.std() < 0.2 for x in kernels)
    assert len({float(x.ravel()[0]) for x in kernels}) == len(kernels)
    assert "encoder_block_0/self_attention_output_norm/scale" in [w.path for w in model.weights]
    assert np.isfinite(predict(model, [np.array([[3, 4]]), np.array([[0, 5]])])).all()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"size": "huge"}, ["'huge'", "'small'", "'v1_1_xxl'"]),
        ({"size": None, "num_layers": 1}, ["hidden_dim", "key_dim"]),
        ({"num_layers": 0}, ["num_layers", "0"]),
        ({"vocabulary_size": 0}, ["vocabulary_size", "0"]),
        ({"pad_token_id": None}, ["pad_token_id", "None"]),
        ({"stop_token_id": 19}, ["stop_token_id", "19"]),
        ({"relative_buckets": 7}, ["num_buckets", "7"]),
        ({"dropout": 1.0}, ["dropout", "1.0"]),
    ],
    ids=str,
)
def test_refused_arguments(options, words):
    with pytest.raises(ValueError) as error:
        kt.models.t5(**{"size": "tiny", "vocabulary_size": VOCABULARY_SIZE, **options})
    assert all(word in str(error.value) for word in words), error.value
