"""`prefix_allowed_tokens_fn`: what may come next is asked after every token."""

import warnings

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.generation import hf
from tests.generation.models import VOCABULARY_SIZE, Traced, ragged, stacked_gpt, translator

STOP = 2


def two_thirds(row, token_ids):
    """A third of the vocabulary is banned, another one for each text and row."""
    return [token for token in range(hf.VOCABULARY_SIZE) if (token + int(sum(token_ids)) + row) % 3]


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize(("kind", "cache"), [("gpt2", True), ("gpt2", False), ("marian", True)])
def test_as_transformers(kind, num_beams, cache):
    theirs, ours = getattr(hf, kind)()
    rows = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
    told = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": STOP, "pad_token_id": 0}
    options = {"num_beams": num_beams, "num_return_sequences": num_beams}
    result = kt.generate(
        ours,
        rows,
        8,
        stop_token_id=STOP,
        cache=cache,
        return_dict=True,
        prefix_allowed_tokens_fn=two_thirds,
        **options,
    )
    for i, row in enumerate(rows):
        ((texts, scores),) = hf.generate(
            theirs, [row], prefix_allowed_tokens_fn=lambda _, ids, i=i: two_thirds(i, ids), **told, **options
        )
        for k, text in enumerate(texts):
            text = text[: text.index(STOP) + 1] if STOP in text else text
            place = i * num_beams + k
            start = 0 if kind == "marian" else len(row)
            end = start + result["lengths"][place]
            assert result["token_ids"][place, start:end].tolist() == text
        if scores is not None:
            mine = result["scores"][i * num_beams : (i + 1) * num_beams]
            np.testing.assert_allclose(mine, scores.numpy(), rtol=1e-5, atol=1e-4)


def test_it_is_asked_once_for_each_text_that_is_still_written():
    model, prompts = stacked_gpt(), ragged((5, 2, 7))
    asked = []

    def anything(row, token_ids):
        assert token_ids.dtype == np.int32 and token_ids.ndim == 1
        asked.append((row, tuple(token_ids.tolist())))
        return range(VOCABULARY_SIZE)

    free = kt.generate(model, prompts, 6)
    stop = int(free[0, 5 + 2])
    result = kt.generate(
        model, prompts, 6, stop_token_id=stop, batch_size=2, return_dict=True, prefix_allowed_tokens_fn=anything
    )
    assert (result["token_ids"] == kt.generate(model, prompts, 6, stop_token_id=stop)).all()
    expected = [
        (i, tuple(result["token_ids"][i, : len(prompt) + n].tolist()))
        for i, prompt in enumerate(prompts)
        for n in range(result["lengths"][i])
    ]
    assert sorted(asked) == sorted(expected)


def test_samples_are_drawn_from_what_is_allowed():
    """As with the same ids allowed throughout; the samples of a row share its index."""
    model, prompts = stacked_gpt(), ragged((5, 2))
    allowed = {0: [4, 5, 9], 1: [7, 8]}
    told = {"temperature": 2.0, "seed": 3, "num_return_sequences": 3}
    rows = kt.generate(model, prompts, 6, prefix_allowed_tokens_fn=lambda row, _: allowed[row], **told)
    first = kt.generate(model, prompts, 6, allowed_token_ids=allowed[0], **told)
    assert (rows[:3] == first[:3]).all() and len(set(map(tuple, rows.tolist()))) > 3
    assert set(rows[3:, 2:8].ravel().tolist()) == {7, 8}


def test_the_prefix_of_a_target_and_a_stream():
    model, sources = translator(), ragged((4, 3))
    texts = []

    def like_the_second(row, token_ids):
        texts.append(token_ids.tolist())
        return [token_ids[1]] if len(token_ids) > 1 else [9]

    result = kt.generate(
        model, sources, 3, decoder_inputs=[[7], []], stop_token_id=[], prefix_allowed_tokens_fn=like_the_second
    )
    assert result.tolist() == [[7, 7, 7, 7], [9, 9, 9, 0]]
    assert [1, 7] in texts and [1] in texts
    pieces = list(kt.stream(stacked_gpt(), ragged((3,)), 4, prefix_allowed_tokens_fn=lambda row, ids: [len(ids)]))
    assert pieces == [[[3]], [[4]], [[5]], [[6]]]


@pytest.mark.parametrize("cache", [True, False])
def test_where_nothing_is_allowed_a_row_ends_and_a_beam_drops_out(cache):
    model, prompts = stacked_gpt(), [[5, 6], [7]]

    def at_most(row, token_ids):
        return [] if len(token_ids) == 4 and row == 0 else [8, 9]

    result = kt.generate(model, prompts, 4, cache=cache, return_dict=True, prefix_allowed_tokens_fn=at_most)
    assert result["lengths"] == [2, 4]

    def after_nine(row, token_ids):
        return [8, 9] if token_ids[-1] != 9 else []

    result = kt.generate(
        model, prompts, 4, cache=cache, return_dict=True, num_beams=4, prefix_allowed_tokens_fn=after_nine
    )
    assert result["lengths"] == [4, 4] and np.isfinite(result["scores"]).all()
    assert (result["token_ids"][0, 2:5] == 8).all() and (result["token_ids"][1, 1:4] == 8).all()


def test_other_answers_compile_nothing():
    """On torch nothing is compiled: there are the forwards to count."""
    ids = keras.Input((None,), dtype="int32")
    table = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None)
    model = keras.Model(ids, table(kt.layers.DecoderBlock(2, 32)(Traced()(table(ids))), reverse=True))
    kt.generate(model, [[5, 6]], 4, prefix_allowed_tokens_fn=lambda row, ids: [3])
    del Traced.TRACES[:]
    for count in (1, 5, VOCABULARY_SIZE):
        kt.generate(model, [[5, 6, 8]], 6, prefix_allowed_tokens_fn=lambda row, ids, count=count: range(count))
    assert len(Traced.TRACES) == (18 if keras.config.backend() == "torch" else 0)


def test_a_model_whose_vocabulary_is_not_known():
    """The mask grows with the ids; what it does not reach is banned."""

    def likes_high_ids(token_ids):
        logits = np.tile(np.arange(600.0, dtype="float32"), (*token_ids.shape, 1))
        return keras.ops.convert_to_tensor(logits)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for num_beams in (1, 2):
            texts = kt.generate(
                likes_high_ids,
                [[1]],
                3,
                num_beams=num_beams,
                prefix_allowed_tokens_fn=lambda row, ids: [2, 3] if len(ids) == 1 else [300 * (len(ids) - 1), 5],
            )
            assert texts.tolist() == [[1, 3, 300, 5]]  # 600 is no id of the model


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda row, ids: [VOCABULARY_SIZE], rf"prefix_allowed_tokens_fn.*{VOCABULARY_SIZE - 1}"),
        (lambda row, ids: [-1], "prefix_allowed_tokens_fn"),
        (lambda row, ids: None, "None"),
        (lambda row, ids: [0.5], "integer"),
        ([3, 4], "must be a function"),
    ],
)
def test_bad_answers_and_functions(function, message):
    with pytest.raises(ValueError, match=message):
        kt.generate(stacked_gpt(), [[5, 6]], 2, prefix_allowed_tokens_fn=function)


def test_with_other_strategies():
    """Contrastive search asks as well; drafts of several tokens cannot."""
    options = {"prefix_allowed_tokens_fn": lambda row, ids: [len(ids), 20]}
    texts = kt.generate(stacked_gpt(), [[5, 6, 7]], 4, penalty_alpha=1.0, top_k=2, **options)
    assert all(token in (3 + n, 20) for n, token in enumerate(texts[0, 3:].tolist()))
    with pytest.raises(ValueError, match="prefix_allowed_tokens_fn.*prompt_lookup_num_tokens"):
        kt.generate(stacked_gpt(), [[5, 6, 7]], 4, prompt_lookup_num_tokens=3, **options)
