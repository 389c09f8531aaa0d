"""Diverse beam search against the same steps in plain Python."""

import numpy as np
import pytest

import keras_transformer as kt
from tests.generation import by_hand
from tests.generation.by_hand import new_texts
from tests.generation.test_beam import SIZE, small

PROMPT, LENGTH = [2, 4], 4


@pytest.mark.filterwarnings("ignore:generate")
@pytest.mark.parametrize("cached, stop", [(True, ()), (False, (3,)), (True, (1, 3))], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 2, "num_beam_groups": 2},
        {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.7},
        {"num_beams": 6, "num_beam_groups": 2, "diversity_penalty": 5.0, "length_penalty": 2.0},
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.2, "early_stopping": True},
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.0, "early_stopping": "never"},
        {"num_beams": 4, "num_beam_groups": 1},
    ],
    ids=str,
)
def test_equal_to_the_same_by_hand(cached, stop, options):
    log_probs = by_hand.table(small(cached), PROMPT, SIZE, LENGTH)
    told = {"diversity_penalty": 0.5, **options}
    num_groups = told.pop("num_beam_groups")
    expected = by_hand.beam_search(log_probs, LENGTH, told.pop("num_beams"), stop, num_groups=num_groups, **told)
    count = len(expected)
    result = kt.generate(
        small(cached),
        [PROMPT],
        LENGTH,
        num_return_sequences=count,
        stop_token_id=list(stop),
        return_dict=True,
        **options,
    )
    np.testing.assert_allclose(result["scores"], [score for score, _ in expected], atol=1e-4)
    if options.get("diversity_penalty") != 0:  # else all groups find the same, in any order
        assert new_texts(result, 2) == [text for _, text in expected]
    else:
        assert sorted(new_texts(result, 2)) == sorted(text for _, text in expected)


def test_groups_differ_where_beams_would_not():
    """The penalty is so high that no group begins as an earlier one does."""
    options = {"num_beams": 4, "num_beam_groups": 4, "diversity_penalty": 100.0, "num_return_sequences": 4}
    texts = kt.generate(small(True), [PROMPT], LENGTH, stop_token_id=[], **options)[:, 2:]
    assert all(len(set(column)) == 4 for column in texts.T.tolist())


def test_one_group_is_plain_beam_search():
    told = {"num_beams": 4, "num_return_sequences": 4, "stop_token_id": 3, "return_dict": True}
    plain, grouped = (kt.generate(small(True), [PROMPT, [1]], 5, **told, **x) for x in ({}, {"num_beam_groups": 1}))
    assert (plain["token_ids"] == grouped["token_ids"]).all() and (plain["scores"] == grouped["scores"]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 4, "num_beam_groups": 3}, "num_beams=4, num_beam_groups=3"),
        ({"num_beam_groups": 0}, "num_beam_groups=0"),
        ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": -1.0}, "diversity_penalty=-1.0"),
        ({"num_beams": 4, "diversity_penalty": 1.0}, "num_beam_groups"),
        ({"num_beam_groups": 2, "top_k": 3}, "top_k"),
        ({"sampler": "sample", "num_beam_groups": 2}, "num_beam_groups"),
    ],
    ids=str,
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        kt.generate(small(True), [PROMPT], 2, **options)
