"""Targets that are begun: `decoder_inputs` stand behind the start token, and stay as they are."""

import numpy as np
import pytest
import torch

import keras_transformer as kt
from tests.generation import hf
from tests.generation.models import VOCABULARY_SIZE, greedy_by_hand, ragged, stacked_gpt, translator
from tests.generation.test_generate import Letters

SOURCES = ragged((5, 1, 9, 3))
BEGINNINGS = [[7, 8, 9], [], [4], [10, 0, 11, 12, 5]]  # 0 is the id that the model masks


def test_greedy_goes_on_where_the_target_ends():
    """With and without a cache."""
    model = translator()
    results = [
        kt.generate(model, SOURCES, 4, decoder_inputs=BEGINNINGS, cache=cache, return_dict=True)
        for cache in (True, False)
    ]
    for i, (source, beginning) in enumerate(zip(SOURCES, BEGINNINGS, strict=True)):
        expected = greedy_by_hand(model, [1, *beginning], 4, stop=[2], source=source)
        for result in results:
            assert result["lengths"][i] == len(expected) == len(result["log_probs"][i])
            row = result["token_ids"][i].tolist()
            assert row == beginning + expected + [0] * (len(row) - len(beginning) - len(expected))
    assert kt.generate(model, SOURCES, 0, decoder_inputs=BEGINNINGS)[3].tolist() == BEGINNINGS[3]


def test_arrays_keep_their_padding_and_one_beginning_is_for_all():
    model = translator()
    lists = kt.generate(model, SOURCES[:2], 4, decoder_inputs=[[7, 8], [9]], stop_token_id=[])
    array = np.asarray([[7, 8], [0, 9]])
    arrays = kt.generate(model, SOURCES[:2], 4, decoder_inputs=array, stop_token_id=[])
    assert (arrays[:, :2] == array).all()
    assert (arrays[0] == lists[0]).all() and (arrays[1, 2:] == lists[1, 1:5]).all()
    every = kt.generate(model, SOURCES[:2], 4, decoder_inputs=[[7, 8]] * 2)
    for one in ([7, 8], np.asarray([7, 8])):
        assert (kt.generate(model, SOURCES[:2], 4, decoder_inputs=one) == every).all()
    assert (kt.generate(model, SOURCES[:2], 4, decoder_inputs=[]) == kt.generate(model, SOURCES[:2], 4)).all()


@pytest.mark.parametrize("num_beams", [1, 3])
def test_as_transformers(num_beams):
    theirs, ours = hf.marian()
    told = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": 2, "pad_token_id": 0}
    options = {"num_beams": num_beams, "num_return_sequences": num_beams}
    sources, beginnings = [[5, 6, 7, 8], [9, 10]], [[5, 9, 4], [7]]
    result = kt.generate(ours, sources, 8, decoder_inputs=beginnings, return_dict=True, **options)
    for i, (source, beginning) in enumerate(zip(sources, beginnings, strict=True)):
        ids = torch.tensor([[1, *beginning]])
        ((texts, scores),) = hf.generate(theirs, [source], decoder_input_ids=ids, **told, **options)
        for k, text in enumerate(texts):
            text = text[: text.index(2) + 1] if 2 in text else text
            place = i * num_beams + k
            length = len(beginning) + result["lengths"][place]
            assert result["token_ids"][place, :length].tolist() == text
        if scores is not None:
            mine = result["scores"][i * num_beams : (i + 1) * num_beams]
            np.testing.assert_allclose(mine, scores.numpy(), rtol=1e-5, atol=1e-4)


def test_samples_and_streams():
    model = translator()
    told = {"decoder_inputs": BEGINNINGS, "temperature": 1.5, "seed": 5, "num_return_sequences": 2}
    drawn = kt.generate(model, SOURCES, 6, return_dict=True, **told)
    pieces = list(kt.stream(model, SOURCES, 6, **told))
    for i in range(8):
        front = BEGINNINGS[i // 2]
        new = [token for piece in pieces for token in piece[i]]
        assert drawn["token_ids"][i, : len(front) + len(new)].tolist() == front + new
        assert drawn["lengths"][i] == len(new) > 0


class Marking(Letters):
    """A tokenizer that marks where a text begins and ends."""

    def encode(self, texts):
        return [[1, *row, 2] for row in super().encode(texts)]


@pytest.mark.parametrize("tokenizer", [Letters(), Marking()])
def test_strings(tokenizer):
    """The beginning is part of the text, and of a stream only what is new; marks that are added are left out."""
    model, beginnings = translator(), Letters().encode(["ab", ""])
    told = {"tokenizer": tokenizer, "stop_token_id": [2], "bad_words_ids": [0, 1, 2]}
    texts = kt.generate(model, ["abc", "hello"], 4, decoder_inputs=["ab", ""], **told)
    sources = tokenizer.encode(["abc", "hello"])
    ids = kt.generate(model, sources, 4, decoder_inputs=beginnings, bad_words_ids=[0, 1, 2])
    assert texts == Letters().decode([ids[0].tolist(), ids[1, :4].tolist()])
    pieces = list(kt.stream(model, ["abc", "hello"], 4, decoder_inputs=["ab", ""], **told))
    assert ["ab" + "".join(piece[0] for piece in pieces), "".join(piece[1] for piece in pieces)] == texts
    assert kt.generate(model, ["abc", "hello"], 4, decoder_inputs="ab", **told)[0] == texts[0]


def test_bad_beginnings():
    model = translator()
    with pytest.raises(ValueError, match="decoder_inputs.*encoder-decoders"):
        kt.generate(stacked_gpt(), SOURCES, 2, decoder_inputs=BEGINNINGS)
    with pytest.raises(ValueError, match="`decoder_inputs` has 3 rows.*4"):
        kt.generate(model, SOURCES, 2, decoder_inputs=BEGINNINGS[:3])
    with pytest.raises(ValueError, match=rf"decoder_inputs\[1\].*{VOCABULARY_SIZE}"):
        kt.generate(model, SOURCES, 2, decoder_inputs=[[5], [VOCABULARY_SIZE], [5], [5]])
    with pytest.raises(ValueError, match=r"decoder_inputs\[0\].*integer"):
        kt.generate(model, SOURCES, 2, decoder_inputs=[[0.5], [5], [5], [5]])
    learned = translator(position="learned", max_sequence_length=10)
    with pytest.raises(ValueError, match="10"):
        kt.generate(learned, SOURCES, 4, decoder_inputs=[5] * 7)
    assert kt.generate(learned, SOURCES, 4, decoder_inputs=[5] * 6, stop_token_id=[]).shape == (4, 10)
