"""`kt.models.bart` against transformers with the same weights, and its forms mBART (norms first, B34) and Marian."""

import functools

import numpy as np
import pytest
import torch
import transformers

import keras_transformer as kt
from keras_transformer.convert import bart as table
from keras_transformer.convert import marian
from keras_transformer.models.sizes import SIZES
from tests.backend import predict
from tests.models import encoder_decoders as both

VOCABULARY_SIZE = 19
SOURCES = [[0, 5, 6, 7, 8, 9, 10, 2], [0, 9, 10, 2], [2]]
TARGETS = [[2, 0, 4, 5, 6, 7, 8], [2, 0, 9], [2]]
FORMS = ["bart", "bart, scaled", "mbart", "marian"]
KINDS = {
    "mbart": (transformers.MBartConfig, transformers.MBartForConditionalGeneration),
    "marian": (transformers.MarianConfig, transformers.MarianMTModel),
}


@functools.cache
def pair(form="bart"):
    """`(theirs, ours)` with the same weights, an odd number of heads, and another size for each side."""
    config, kind = KINDS.get(form, (transformers.BartConfig, transformers.BartForConditionalGeneration))
    config = config(
        vocab_size=VOCABULARY_SIZE,
        max_position_embeddings=16,
        d_model=15,
        encoder_layers=2 if form == "bart" else 1,
        decoder_layers=2 if form == "mbart" else 1,
        encoder_attention_heads=3,
        decoder_attention_heads=5,
        encoder_ffn_dim=20,
        decoder_ffn_dim=24,
        scale_embedding=form != "bart",
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1 if form == "marian" else 2,
        forced_eos_token_id=None,
        attn_implementation="eager",
    )
    theirs = both.randomized(kind(config))
    if form == "marian":  # whose sinusoids are no weights, and whose bias is
        for side in (theirs.model.encoder, theirs.model.decoder):
            side.embed_positions.weight.data = side.embed_positions.create_weight()
        theirs.final_logits_bias.copy_(torch.arange(VOCABULARY_SIZE) / 9)
    return theirs, both.copied(theirs, module_of(form), kt.models.bart)


def module_of(form):
    return marian if form == "marian" else table


@pytest.mark.parametrize("form", FORMS)
def test_equal_to_transformers(form):
    both.assert_equal_forward(*pair(form), SOURCES, TARGETS, states_too=form == "mbart")


@pytest.mark.parametrize("form", FORMS)
def test_tensors_go_back_bit_for_bit(form):
    both.assert_goes_back(*pair(form), module_of(form))


def test_a_bias_of_the_logits_is_not_thrown_away():
    """`final_logits_bias` is zeros in every BART; anything else would be lost without a word."""
    theirs, ours = pair()
    tensors = both.state(theirs)
    assert tensors["final_logits_bias"].shape == (1, VOCABULARY_SIZE)
    tensors["final_logits_bias"][0, 3] = 0.5
    with pytest.raises(ValueError, match="no place for.*final_logits_bias"):
        both.load(ours, tensors, table)


@pytest.mark.parametrize("form", ["bart", "marian"])
def test_the_texts_of_transformers(form):
    both.assert_same_texts(*pair(form), SOURCES[:2], num_beams=1, pad_is_written=False)


def test_positions_are_two_rows_further_and_targets_start_with_the_stop_token():
    """B34."""
    _, model = pair()
    tables = {w.path: tuple(w.shape) for w in model.weights if "position_embeddings" in w.path}
    assert tables == {f"{side}_embedding/position_embeddings": (18, 15) for side in ("encoder", "decoder")}
    card = kt.layers.read_card(model)
    assert (card["start_token_id"], card["stop_token_id"], card["pad_token_id"]) == (2, 2, 1)
    labels = [[0, 8, 2, -100, -100, -100]]
    shifted = kt.shift_right(labels, start_token_id=card["start_token_id"], pad_token_id=card["pad_token_id"])
    assert shifted.tolist() == [[2, 0, 8, 2, 1, 1]]
    with pytest.raises(ValueError, match="17.*max_sequence_length=16"):
        predict(model, [np.full((1, 17), 5), np.array([[2]])])


def test_every_weight_learns():
    sizes = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 12, "max_sequence_length": 8}
    model = kt.models.bart("tiny", VOCABULARY_SIZE, **sizes)
    both.assert_every_weight_learns(model, SOURCES, [row[1:] + [2] for row in TARGETS], 1)


PUBLISHED = {"base": 139_420_416, "large": 406_291_456}


def by_formula(num_layers, hidden_dim, num_heads, intermediate_dim):
    attention = 4 * (hidden_dim + 1) * hidden_dim
    network = 2 * hidden_dim * intermediate_dim + intermediate_dim + hidden_dim
    blocks = num_layers * (3 * attention + 2 * network + 5 * 2 * hidden_dim)
    return blocks + (50265 + 2 * (1024 + 2) + 2 * 2) * hidden_dim


def test_published_numbers_of_parameters():
    """Of all sizes by a formula, which is what is counted at one layer."""
    assert {size: by_formula(**SIZES["bart"][size]) for size in PUBLISHED} == PUBLISHED
    for size in ("base",):
        assert both.count(kt.models.bart, size) == by_formula(**{**SIZES["bart"][size], "num_layers": 1})


def test_sinusoidal_positions_have_no_table():
    model = kt.models.bart("tiny", VOCABULARY_SIZE, position="sinusoidal", num_layers=1, norm_placement="sandwich")
    assert not any("position_embeddings" in w.path for w in model.weights)
    assert np.isfinite(predict(model, [np.array([[3, 4, 5]]), np.array([[2, 5, 6]])])).all()


@pytest.mark.parametrize(
    "options, words",
    [
        ({"size": "huge"}, ["'huge'", "'base'", "'large'"]),
        ({"num_heads": 3}, ["num_heads=3", "hidden_dim=32"]),
        ({"num_decoder_layers": 0}, ["num_decoder_layers", "0"]),
        ({"max_sequence_length": None}, ["max_sequence_length"]),
        ({"pad_token_id": 19}, ["pad_token_id", "19"]),
        ({"norm_placement": "first"}, ["norm_placement", "'first'"]),
        ({"position": "rotary"}, ["position", "'rotary'"]),
    ],
    ids=str,
)
def test_refused_arguments(options, words):
    with pytest.raises(ValueError) as error:
        kt.models.bart(**{"size": "tiny", "vocabulary_size": VOCABULARY_SIZE, **options})
    assert all(word in str(error.value) for word in words), error.value
