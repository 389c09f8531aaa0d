"""Beam search against brute force over all texts, and against `transformers`."""

import functools

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import reference
from tests.generation import by_hand, hf
from tests.generation.by_hand import new_texts
from tests.generation.models import ragged, stacked_gpt, translator

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


@pytest.mark.filterwarnings("ignore:generate")
@pytest.mark.parametrize("cached, stop", [(True, ()), (False, (3,)), (True, (1, 3))], ids=str)
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
def test_enough_beams_find_the_best_of_all_texts(cached, stop, length_penalty):
    """B22: in exact order, with exact scores; there are more beams than tokens."""
    prompt, length = [2, 4], 3
    log_probs = by_hand.table(small(cached), prompt, SIZE, length)
    expected = by_hand.all_texts(log_probs, SIZE, length, stop, length_penalty)[:20]
    options = {"num_beams": 125, "num_return_sequences": 20, "early_stopping": "never", "stop_token_id": list(stop)}
    result = kt.generate(small(cached), [prompt], length, length_penalty=length_penalty, return_dict=True, **options)
    np.testing.assert_allclose(result["scores"], [score for score, _ in expected], atol=1e-4)
    assert new_texts(result, 2) == [text for _, text in expected]


@pytest.mark.parametrize("stop", [(), (3,)], ids=str)
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_all_texts_of_four_tokens_in_order(stop, length_penalty):
    """Every text that there is, two prompts of different length in one batch."""
    prompts, length = [[2, 4], [1, 0, 3]], 4
    options = {"num_beams": 625, "early_stopping": "never", "stop_token_id": list(stop)}
    count = 625 if not stop else sum(4**n for n in range(4)) + 4**4  # those that stop after n + 1 tokens, and the rest
    options |= {"num_return_sequences": count, "length_penalty": length_penalty, "return_dict": True}
    result = kt.generate(small(True), prompts, length, **options)
    texts = new_texts(result, [2] * count + [3] * count)
    for i, prompt in enumerate(prompts):
        mine = slice(i * count, (i + 1) * count)
        log_probs = by_hand.table(small(True), prompt, SIZE, length)
        expected = {text: score for score, text in by_hand.all_texts(log_probs, SIZE, length, stop, length_penalty)}
        assert len(set(texts[mine])) == len(expected) == count
        scores = np.asarray([expected[text] for text in texts[mine]])
        np.testing.assert_allclose(result["scores"][mine], scores, atol=1e-4)
        assert (np.diff(scores) < 1e-5).all()  # some are equal in float32


@pytest.mark.filterwarnings("ignore:generate")
@pytest.mark.parametrize("cached, early_stopping", [(True, True), (False, False), (True, "never"), (False, True)])
@pytest.mark.parametrize("length_penalty", [-1.0, 0.5, 2.0])
def test_few_beams_as_by_hand(cached, early_stopping, length_penalty):
    """All rules of stopping; each of several prompts in one batch as by itself."""
    prompts, length = [[2, 4], [1], [0, 3, 3]], 4
    options = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    told = {"num_beams": 3, "num_return_sequences": 3, "stop_token_id": [1, 3], "return_dict": True}
    result = kt.generate(small(cached), prompts, length, **told, **options)
    texts = new_texts(result, [len(prompt) for prompt in prompts for _ in range(3)])
    for i, prompt in enumerate(prompts):
        log_probs = by_hand.table(small(cached), prompt, SIZE, length)
        expected = by_hand.beam_search(log_probs, length, 3, (1, 3), **options)
        np.testing.assert_allclose(result["scores"][3 * i : 3 * i + 3], [score for score, _ in expected], atol=1e-4)
        assert texts[3 * i : 3 * i + 3] == [text for _, text in expected]


@pytest.mark.parametrize(("kind", "cache"), [("decoder", False), ("encoder-decoder", True)])
def test_a_row_alone_is_the_row_in_any_batch_and_order(kind, cache):
    model, rows, fronts = stacked_gpt(), ragged((5, 1, 9, 3)), ragged((5, 1, 9, 3))
    options = {"num_beams": 4, "num_beam_groups": 2, "length_penalty": 0.6}
    if kind == "encoder-decoder":
        model, fronts = translator(), [[5], [], [6, 7, 8], [9]]
        options |= {"coverage_penalty": 0.3} if cache else {}

    def write(order, batch_size):
        if kind == "encoder-decoder":
            options["decoder_inputs"] = [fronts[i] for i in order]
        told = {"batch_size": batch_size, "cache": cache, "stop_token_id": [4, 7], "return_dict": True}
        result = kt.generate(model, [rows[i] for i in order], 5, num_return_sequences=4, **told, **options)
        texts = new_texts(result, [len(fronts[i]) for i in order for _ in range(4)])
        return {i: (texts[4 * n : 4 * n + 4], result["scores"][4 * n : 4 * n + 4]) for n, i in enumerate(order)}

    together, alone = write([0, 1, 2, 3], 4), write([2, 0, 3, 1], 1)
    for i in range(4):
        assert together[i][0] == alone[i][0]
        np.testing.assert_allclose(together[i][1], alone[i][1], atol=1e-5)


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
    "kind, options",
    [
        ("gpt2", {"num_beams": 1}),
        ("gpt2", {"num_beams": 4, "length_penalty": 0.6, "early_stopping": True}),
        ("gpt2", {"num_beams": 4, "length_penalty": -1.0}),
        ("gpt2", {"num_beams": 3, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2}),
        ("marian", {"num_beams": 1}),
        ("marian", {"num_beams": 3}),
        ("marian", {"num_beams": 4, "length_penalty": 2.0, "early_stopping": "never"}),
        ("marian", {"num_beams": 3, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2}),
    ],
    ids=str,
)
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
