"""The coverage penalty against its equation in NumPy, over all texts of a small vocabulary."""

import functools
import itertools

import numpy as np
import pytest

import keras_transformer as kt
from tests import reference
from tests.generation import by_hand
from tests.generation.by_hand import new_texts
from tests.generation.models import stacked_gpt

SIZE, START, LENGTH = 5, 1, 4
SOURCES = [[3, 5, 4, 6], [6, 3], [4, 4, 5, 3, 6, 5]]


@functools.cache
def translator(pad_token_id=None):
    """A model of five target tokens that looks at single source tokens."""
    options = {"share_embeddings": "target", "pad_token_id": pad_token_id, "start_token_id": START}
    model = kt.models.transformer(7, SIZE, 2, 2, 8, 16, **options)
    reference.randomize(model, seed=1, stddev=0.5)
    return model


def worth_of(model, source, penalty, length, beginning=()):
    """`text -> penalty * sum_i log(min(sum_j p_ij, 1))` by the attention that the whole model tells of."""
    texts = list(itertools.product(range(SIZE), repeat=length - 1))  # nothing is read behind the last token
    targets = np.asarray([[START, *beginning, *text] for text in texts])
    inputs = {"encoder_token_ids": np.asarray([source] * len(texts)), "decoder_token_ids": targets}
    scores = kt.inspect.attention_scores(model, inputs)["decoder_block_1/cross_attention"]
    attention = dict(zip(texts, scores.astype("float64").mean(axis=1), strict=True))  # (T, S) for each
    real = [i for i, token in enumerate(source) if token != 0]

    def worth(text):
        written = attention[tuple([*text, *[0] * length][: length - 1])]
        covered = written[: len(beginning) + len(text)].sum(axis=0)  # a token is written where the one before is read
        return penalty * np.log(np.minimum(covered[real], 1.0)).sum()

    return worth


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("stop", [(), (3,)], ids=str)
def test_enough_beams_find_the_best_of_all_texts(stop, length_penalty):
    model, source, length = translator(), SOURCES[0], 3
    log_probs = by_hand.table(model, [START], SIZE, length, source)
    worth = worth_of(model, source, 0.4, length)
    expected = by_hand.all_texts(log_probs, SIZE, length, stop, length_penalty, worth)[:20]
    options = {"num_beams": 125, "num_return_sequences": 20, "early_stopping": "never", "stop_token_id": list(stop)}
    options |= {"coverage_penalty": 0.4, "length_penalty": length_penalty}
    result = kt.generate(model, [source], length, return_dict=True, **options)
    np.testing.assert_allclose(result["scores"], [score for score, _ in expected], atol=1e-4)
    assert new_texts(result, 0) == [text for _, text in expected]


@pytest.mark.parametrize(
    "options",
    [
        {"coverage_penalty": 0.2},
        {"coverage_penalty": 1.0, "length_penalty": 0.5, "early_stopping": True},
        {"coverage_penalty": 3.0, "early_stopping": "never"},
        {"coverage_penalty": 0.0},
    ],
    ids=str,
)
def test_few_beams_go_the_way_that_the_scores_tell(options):
    """Sources of several lengths in one batch, each as by hand and alone."""
    model = translator()
    told = {"num_beams": 2, "num_return_sequences": 2, "stop_token_id": 3, "return_dict": True, **options}
    result = kt.generate(model, SOURCES, LENGTH, **told)
    for i, source in enumerate(SOURCES):
        named = dict(options)
        worth = worth_of(model, source, named.pop("coverage_penalty"), LENGTH)
        log_probs = by_hand.table(model, [START], SIZE, LENGTH, source)
        expected = by_hand.beam_search(log_probs, LENGTH, 2, (3,), worth=worth, **named)
        mine = slice(2 * i, 2 * i + 2)
        np.testing.assert_allclose(result["scores"][mine], [score for score, _ in expected], atol=1e-4)
        assert new_texts(result, 0)[mine] == [text for _, text in expected]


def test_it_changes_the_text():
    told = {"num_beams": 2, "stop_token_id": 3}
    plain = kt.generate(translator(), SOURCES, LENGTH, **told)
    covering = kt.generate(translator(), SOURCES, LENGTH, coverage_penalty=3.0, **told)
    assert plain.shape != covering.shape or (plain != covering).any()


def test_what_the_model_masks_need_not_be_covered():
    """Also in the middle of a source; and a target that is begun already has attended."""
    model, source, beginning = translator(0), [3, 0, 5, 4], (4, 2)
    told = {"num_beams": 25, "early_stopping": "never", "stop_token_id": [], "allowed_token_ids": [1, 2, 3, 4]}
    told |= {"coverage_penalty": 0.5, "return_dict": True, "length_penalty": 0.0}
    result = kt.generate(model, [source, [3]], 2, decoder_inputs=[beginning, []], **told)
    worth = worth_of(model, source, 0.5, 2, beginning)
    log_probs = by_hand.table(model, [START, *beginning], SIZE, 2, source)
    texts = by_hand.all_texts(log_probs, SIZE, 2, (), 0.0)
    score, text = max((score + worth(text), text) for score, text in texts if 0 not in text)
    assert result["token_ids"][0].tolist() == [*beginning, *text]
    np.testing.assert_allclose(result["scores"][0], score, atol=1e-4)


def test_a_prefix_is_read_anew():
    """Its attention was not kept."""
    model, told = translator(), {"num_beams": 2, "stop_token_id": 3, "coverage_penalty": 1.0, "return_dict": True}
    prefix = kt.prefill(model, SOURCES)
    continued = kt.generate(model, [[4], [], [2, 4]], LENGTH, prefix=prefix, **told)
    whole = kt.generate(model, SOURCES, LENGTH, decoder_inputs=[[4], [], [2, 4]], **told)
    assert (continued["token_ids"] == whole["token_ids"]).all()
    np.testing.assert_allclose(continued["scores"], whole["scores"], atol=1e-5)


def test_models_without_cross_attention_to_look_at():
    for model, inputs, cache in ((stacked_gpt(), [[5, 6]], "auto"), (translator(), SOURCES, False)):
        with pytest.raises(ValueError, match="coverage_penalty.*encoder-decoder.*cache"):
            kt.generate(model, inputs, 3, num_beams=2, coverage_penalty=0.2, cache=cache)
    with pytest.raises(ValueError, match="coverage_penalty=-0.1"):
        kt.generate(translator(), SOURCES, 3, num_beams=2, coverage_penalty=-0.1)
    with pytest.raises(ValueError, match="coverage_penalty"):
        kt.generate(translator(), SOURCES, 3, sampler="sample", coverage_penalty=0.1)
