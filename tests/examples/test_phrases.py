"""The phrases of the translation example: right, reproducible, and held out honestly."""

from collections import Counter
from datetime import date, datetime
from decimal import Decimal

import pytest
from babel import Locale

import phrases
from phrases import ENGLISH, KINDS, make_phrases, say, split_phrases, translate

KIND = {kind.name: kind for kind in KINDS}


@pytest.fixture(scope="module")
def german():
    return make_phrases("de", count=2100, seed=0)


@pytest.fixture
def few_kinds(monkeypatch):
    """For what is the same whatever the kinds: each is tried on the language before anything is made."""
    monkeypatch.setattr(phrases, "KINDS", [KIND[name] for name in ("relative time", "month", "money", "countries")])


def said(kind, value, language="de", style=0):
    style = KIND[kind].styles[style]
    return say(style, value, ENGLISH), translate(style, value, Locale.parse(language))


@pytest.mark.parametrize(
    "kind, value, english, german",
    [
        ("cardinal number", 21, "twenty-one", "einundzwanzig"),
        ("cardinal number", 1000, "one thousand", "eintausend"),
        ("ordinal number", 3, "third", "dritte"),
        ("euros in words", Decimal("12.05"), "twelve euro, five cents", "zwölf Euro und fünf Cent"),
        ("large number", Decimal("1200000"), "1.2 million", "1,2 Millionen"),
        ("day of the year", date(1950, 3, 7), "March 7", "7. März"),
        ("month", date(2024, 3, 1), "March 2024", "März 2024"),
        ("quarter", date(2024, 4, 1), "2nd quarter 2024", "2. Quartal 2024"),
        ("time", datetime(1, 1, 1, 15, 45), "3:45 PM", "15:45"),
        ("time", datetime(1, 1, 1, 0, 5), "12:05 AM", "00:05"),
        ("time with seconds", datetime(1, 1, 1, 15, 45, 9), "3:45:09 PM", "15:45:09"),
        ("part of the day", datetime(1, 1, 1, 18, 30), "6:30 in the evening", "6:30 abends"),
        ("relative time", (3, "day", 1), "in 3 days", "in 3 Tagen"),
        ("relative time", (1, "hour", -1), "1 hour ago", "vor 1 Stunde"),
        ("duration", ((2, "duration-day"), (1, "duration-hour")), "2 days and 1 hour", "2 Tage und 1 Stunde"),
        ("measure", ((Decimal("3.5"), "length-kilometer"),), "3.5 kilometers", "3,5 Kilometer"),
        ("money", Decimal("1234.50"), "$1,234.50", "1.234,50 $"),
        ("money with its name", Decimal("1234.50"), "1,234.50 US dollars", "1.234,50 US-Dollar"),
        ("countries", ["DE", "FR", "JP"], "Germany, France, and Japan", "Deutschland, Frankreich und Japan"),
        ("languages", ["de", "fr"], "German and French", "Deutsch und Französisch"),
    ],
)
def test_known_translations(kind, value, english, german):
    assert said(kind, value) == (english, german)


@pytest.mark.parametrize(
    "style, english, german",
    [
        (0, "Thursday, March 7, 2024", "Donnerstag, 7. März 2024"),
        (1, "March 7, 2024", "7. März 2024"),
        (2, "Mar 7, 2024", "07.03.2024"),
        (3, "3/7/24", "07.03.24"),
    ],
)
def test_every_style_of_a_date(style, english, german):
    assert said("date", date(2024, 3, 7), style=style) == (english, german)


@pytest.mark.parametrize(
    "language, number, word",
    [("fr", 71, "soixante et onze"), ("es", 21, "veintiuno"), ("ja", 21, "二十一"), ("nb", 2, "to"), ("kk", 2, "екі")],
)
def test_number_words_of_other_languages(language, number, word):
    assert said("cardinal number", number, language)[1] == word


def test_no_break_spaces_become_plain():
    assert said("measure", ((12, "length-meter"),), "fr")[1] == "12 mètres"


def test_german_phrases_of_every_kind_are_distinct(german):
    pairs, left_out = german
    assert left_out == {}
    assert {kind for _, _, kind in pairs} == set(KIND)
    assert 2000 <= len({english for english, _, _ in pairs}) == len(pairs) <= 2100


def test_there_are_values_for_as_many_as_are_made_by_default():
    taken = {kind.name: share for kind, share in phrases.shares(KINDS, 24_000)}
    assert sum(taken.values()) == 24_000 and all(0 < taken[kind.name] <= len(kind.values) for kind in KINDS)


def test_phrases_are_short_and_plain(german):
    for phrase in german[0]:
        for text in phrase[:2]:
            assert 1 <= len(text.split()) <= 12
            assert text == " ".join(text.split())


def test_same_seed_same_phrases(few_kinds):
    assert make_phrases("es", count=200, seed=3) == make_phrases("es", count=200, seed=3)
    assert make_phrases("es", count=200, seed=3)[0] != make_phrases("es", count=200, seed=4)[0]


def test_any_count_is_a_mix_of_kinds():
    pairs, _ = make_phrases("de", count=200)
    assert 190 <= len(pairs) <= 200
    assert min(Counter(kind for _, _, kind in pairs).values()) >= 5


def test_a_phrase_with_two_translations_is_dropped(monkeypatch):
    def half(value, locale):  # 0 and 1 are "0" in English, 0 and 10 in German; 10 and 11 are "5" and "5"
        return str(value // 2 if locale == ENGLISH or value > 9 else value * 10)

    kinds = phrases.Kind("a", range(10), (half,)), phrases.Kind("b", range(10, 20), (half,))
    monkeypatch.setattr(phrases, "KINDS", kinds)
    assert sorted(make_phrases("de", count=20)[0]) == [(str(n), str(n), "b") for n in range(5, 10)]


def test_a_phrase_in_two_styles_has_one_translation(monkeypatch):
    monkeypatch.setattr(phrases, "KINDS", [KIND["date"]])
    of_may = [phrase for phrase in make_phrases("de", count=800)[0] if phrase.english.startswith("May ")]
    assert len(of_may) > 20
    assert all(". Mai " in phrase.translation for phrase in of_may)  # never "07.05.2024", the medium style


def test_split_shares_nothing_and_keeps_the_kinds(german):
    pairs, _ = german
    parts = split_phrases(pairs, valid=0.05, test=0.1)
    assert sorted(phrase for part in parts for phrase in part) == sorted(pairs)
    train, valid, test = ({english for english, _, _ in part} for part in parts)
    assert not (train & valid or train & test or valid & test)
    kinds = Counter(kind for _, _, kind in pairs)
    for part, fraction in zip(parts[1:], (0.05, 0.1)):
        assert Counter(kind for _, _, kind in part) == {kind: round(size * fraction) for kind, size in kinds.items()}
    assert split_phrases(pairs, seed=1) == split_phrases(pairs, seed=1) != split_phrases(pairs, seed=2)


def test_a_duplicate_does_not_leak():
    pairs = [("one", "eins", "number"), ("two", "zwei", "number"), ("three", "drei", "number")] * 20
    parts = split_phrases(pairs)
    assert [len(part) for part in parts] == [1, 1, 1]


def test_held_out_numbers_and_minutes_are_new_in_every_form():
    for one, other in (("cardinal number", "ordinal number"), ("time", "part of the day"), ("money", "euros in words")):
        assert not set(KIND[one].values) & set(KIND[other].values)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_value_twice(kind):
    sets = kind.name in ("countries", "languages")
    values = [frozenset(value) if sets else value for value in kind.values]
    assert len(set(values)) == len(values)


def test_kinds_that_num2words_lacks_are_named():
    pairs, left_out = make_phrases("zh", count=500)
    assert set(left_out) == {"cardinal number", "ordinal number", "euros in words"}
    assert left_out["cardinal number"] == "num2words does not know zh"
    assert not {kind for _, _, kind in pairs} & set(left_out)
    assert len(pairs) > 475


def test_japanese():
    pairs, left_out = make_phrases("ja", count=500)
    assert list(left_out) == ["euros in words"] and "EUR" in left_out["euros in words"]
    assert len(pairs) > 475
    assert said("date", date(2024, 3, 7), "ja", style=1) == ("March 7, 2024", "2024年3月7日")
    assert said("large number", Decimal(12_300_000), "ja") == ("12.3 million", "1230万")


@pytest.mark.parametrize(
    "language, kind, reason",
    [
        ("fil", "cardinal number", "does not know fil"),  # num2words would answer in Finnish
        ("tr", "euros in words", "unexpected keyword argument 'currency'"),
        ("ar", "euros in words", "takes one currency for another"),  # riyals for euros
        ("kk", "ordinal number", "the package has no words for it"),  # num2words gives no reason
        ("zgh", "relative time", "CLDR has no words"),  # Babel would answer "+3 d"
        ("zgh", "large number", "CLDR has no words"),
    ],
)
def test_silent_fallbacks_are_found(language, kind, reason):
    assert reason in phrases.why_left_out(KIND[kind], Locale.parse(language))


@pytest.mark.parametrize("answer", ["twenty-one", "21", "21-ste"])
def test_english_and_figures_are_no_translation(monkeypatch, answer):
    monkeypatch.setattr(phrases, "num2words", lambda *_, lang, **__: "twenty-one" if lang == "en" else answer)
    with pytest.raises(LookupError, match="no words for it in de"):
        said("cardinal number", 21)


@pytest.mark.parametrize("language", ["xx", "", "deutsch", "12", "en", "en-GB", "root"])
def test_a_language_that_cannot_be_is_refused(language):
    with pytest.raises(ValueError, match=f"language='{language}'"):
        make_phrases(language)


@pytest.mark.parametrize("count", [0, -1, 10**9])
def test_an_impossible_count_is_refused(count, few_kinds):
    with pytest.raises(ValueError, match=f"count={count} must be between 1 and"):
        make_phrases("de", count=count)


@pytest.mark.parametrize("valid, test", [(0, 0.1), (0.1, 0), (0.5, 0.5), (-0.1, 0.2)])
def test_impossible_fractions_are_refused(valid, test):
    with pytest.raises(ValueError, match=f"valid={valid} and test={test}"):
        split_phrases([("one", "eins", "number")], valid=valid, test=test)


def test_languages_can_be_spelled_both_ways(few_kinds):
    assert make_phrases("pt-BR", count=100) == make_phrases("pt_BR", count=100)
