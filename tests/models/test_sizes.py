"""The table of published sizes."""

import pytest

from keras_transformer.models.sizes import DEFAULTS, SIZES, sizes_of


@pytest.mark.parametrize("family", SIZES)
def test_rows_of_a_family_give_the_same_sizes(family):
    rows, options = list(SIZES[family].values()), DEFAULTS.get(family, {}).keys()
    assert all(row.keys() - options == rows[0].keys() - options for row in rows)
    assert all(row.keys() <= rows[0].keys() | options for row in rows)
    assert all(row["hidden_dim"] % row["num_heads"] == 0 for row in rows if "num_heads" in row and "key_dim" not in row)


def test_what_is_given_replaces_what_is_published():
    row = sizes_of("vit", "b16", num_layers=2, hidden_dim=None)
    assert row == {**SIZES["vit"]["b16"], "num_layers": 2}
    row["hidden_dim"] = 1
    assert SIZES["vit"]["b16"]["hidden_dim"] == 768


def test_without_a_row_everything_is_given():
    given = {"patch_size": 4, "num_layers": 2, "hidden_dim": 8, "num_heads": 2, "intermediate_dim": 12}
    assert sizes_of("vit", None, **given) == given
    with pytest.raises(ValueError, match="vit: num_heads, intermediate_dim"):
        sizes_of("vit", None, **{**given, "num_heads": None, "intermediate_dim": None})


def test_what_a_row_need_not_say_is_there():
    assert sizes_of("llama", "7b")["rotary_base"] == 10000.0
    assert sizes_of("llama", "llama3_8b")["rotary_base"] == 500000.0
    given = {"num_layers": 1, "hidden_dim": 8, "num_heads": 2, "intermediate_dim": 12, "vocabulary_size": 9}
    row = sizes_of("llama", None, **given, qk_norm=True)
    assert row == {**DEFAULTS["llama"], **given, "qk_norm": True}
    assert DEFAULTS["llama"]["qk_norm"] is False


def test_an_unknown_size_is_told_the_known_ones():
    with pytest.raises(ValueError, match="'ti16'.*'b16'.*size='b61'"):
        sizes_of("vit", "b61")
