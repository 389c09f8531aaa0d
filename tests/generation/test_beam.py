"""Beam search against brute force over all texts, and against `transformers`."""

import functools
import itertools

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import reference
from tests.backend import numpy
from tests.generation import hf

SIZE = 5


@functools.cache
def small(cached):
    """A model of five tokens with strong opinions; with a layer that mixes positions it is decoded in full."""
    ids = keras.Input((None,), dtype="int32")
    table = kt.layers.PositionalEmbedding(SIZE, 8, pad_token_id=None)
    x = table(ids)
    if not cached:
        x = keras.layers.LSTM(8, return_sequences=True)(x)
    model = keras.Model(ids, keras.layers.Dense(SIZE)(kt.layers.DecoderBlock(2, 16)(x)))
    reference.randomize(model, stddev=0.8)
    return model


def all_texts(model, prompt, length, stop, length_penalty):
    """`(score, text)` of every text of at most `length` tokens that ends with a stop token or is of full length."""
    texts = list(itertools.product(range(SIZE), repeat=length))
    logits = numpy(model(np.asarray([[*prompt, *text] for text in texts]))).astype("float64")[:, len(prompt) - 1 : -1]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = {}
    for text, rows in zip(texts, log_probs, strict=True):
        end = next((i + 1 for i, token in enumerate(text) if token in stop), length)
        total = sum(rows[i, token] for i, token in enumerate(text[:end]))
        found[text[:end]] = total / end**length_penalty
    return sorted(((score, text) for text, score in found.items()), reverse=True)


@pytest.mark.filterwarnings("ignore:generate")
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("stop", [(), (3,), (1, 3)], ids=str)
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_enough_beams_find_the_best_of_all_texts(cached, stop, length_penalty):
    """B22: in exact order, with exact scores; there are more beams than tokens."""
    prompt, length = [2, 4], 3
    expected = all_texts(small(cached), prompt, length, stop, length_penalty)[:20]
    options = {"num_beams": 125, "num_return_sequences": 20, "early_stopping": "never", "stop_token_id": list(stop)}
    result = kt.generate(small(cached), [prompt], length, length_penalty=length_penalty, return_dict=True, **options)
    np.testing.assert_allclose(result["scores"], [score for score, _ in expected], atol=1e-4)
    texts = [tuple(row[2 : 2 + n].tolist()) for row, n in zip(result["token_ids"], result["lengths"], strict=True)]
    assert texts == [text for _, text in expected]


@pytest.mark.parametrize("num_beams", [1, 2, 5])
def test_beams_are_distinct_and_one_is_greedy(num_beams):
    model, prompts = small(True), [[2, 4], [1], [0, 3, 3]]
    options = {"sampler": "beam", "num_beams": num_beams, "num_return_sequences": num_beams, "return_dict": True}
    result = kt.generate(model, prompts, 6, stop_token_id=3, **options)
    for i, prompt in enumerate(prompts):
        mine = slice(i * num_beams, (i + 1) * num_beams)
        scores = result["scores"][mine]
        assert np.isfinite(scores).all() and (np.diff(scores) <= 0).all()
        assert len({tuple(row) for row in result["token_ids"][mine].tolist()}) == num_beams
        alone = kt.generate(model, [prompt], 6, stop_token_id=3, **options)
        np.testing.assert_allclose(alone["scores"], scores, atol=1e-5)
        assert (result["token_ids"][mine, : alone["token_ids"].shape[1]] == alone["token_ids"]).all()
    if num_beams == 1:
        greedy = kt.generate(model, prompts, 6, stop_token_id=3)
        assert (greedy == result["token_ids"]).all()


def test_fewer_texts_than_were_asked_for():
    result = kt.generate(small(True), [[2]], 1, num_beams=8, num_return_sequences=8, return_dict=True)
    assert result["lengths"] == [1] * 5 + [0] * 3
    assert np.isfinite(result["scores"]).tolist() == [True] * 5 + [False] * 3


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_beams_without_a_way_on_are_no_texts(early_stopping):
    """With one allowed token there is one text, however many steps the other beams have been dead for."""
    options = {"num_beams": 2, "num_return_sequences": 2, "allowed_token_ids": [4], "early_stopping": early_stopping}
    result = kt.generate(small(True), [[2]], 6, return_dict=True, stop_token_id=[], **options)
    assert result["lengths"] == [6, 0] and result["token_ids"][0].tolist() == [2, 4, 4, 4, 4, 4, 4]
    assert np.isfinite(result["scores"][0]) and result["scores"][1] == -np.inf


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 1},
        {"num_beams": 3},
        {"num_beams": 4, "length_penalty": 0.6, "early_stopping": True},
        {"num_beams": 4, "length_penalty": 2.0, "early_stopping": "never"},
        {"num_beams": 4, "length_penalty": -1.0},
        {"num_beams": 3, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["gpt2", "marian"])
def test_as_transformers(kind, options):
    """Token for token, each row alone there and all in one batch here."""
    theirs, ours = getattr(hf, kind)()
    stop = 2
    rows = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
    count = options["num_beams"]
    told = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": stop, "pad_token_id": 0}
    expected = hf.generate(theirs, rows, num_return_sequences=count, **told, **options)
    sampler = {"sampler": "beam"} if count > 1 else {}
    result = kt.generate(
        ours, rows, 12, stop_token_id=stop, return_dict=True, num_return_sequences=count, **sampler, **options
    )
    for i, (texts, scores) in enumerate(expected):
        for k, text in enumerate(texts):
            text = text[: text.index(stop) + 1] if stop in text else text
            place = i * count + k
            length = result["lengths"][place]
            start = 0 if kind == "marian" else len(rows[i])
            assert result["token_ids"][place, start : start + length].tolist() == text
        if scores is not None:
            mine = result["scores"][i * count : (i + 1) * count]
            np.testing.assert_allclose(mine, scores.numpy(), rtol=1e-5, atol=1e-4)
