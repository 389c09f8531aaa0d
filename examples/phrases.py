"""English phrases and their translations, made from tables: nothing is downloaded.

Babel carries Unicode's CLDR (how a language writes dates, times, units, currencies and names of countries), and
`num2words` spells numbers out. What both say in English and in another language is a parallel corpus: small, correct,
and large enough to hold phrases out.

    pairs, left_out = make_phrases("de", count=10_000, seed=0)
    pairs[0]    # Phrase(english='in 3 days', translation='in 3 Tagen', kind='relative time')
    left_out    # {kind: why the packages cannot say it in this language}
    train, valid, test = split_phrases(pairs)

Every value (a date, a number, an amount) is said once, in one style, so a held-out phrase shows a value that training
showed in no form. An English phrase has exactly one translation, so exact match can reach 1.0.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import combinations, product
from typing import NamedTuple

try:
    from babel import Locale, UnknownLocaleError, dates, lists, numbers, units
    from num2words import CONVERTER_CLASSES, num2words
except ImportError as error:
    raise ImportError('the phrases need Babel and num2words: pip install "keras-transformer-kit[demo]"') from error

ENGLISH = Locale("en")
ROOT = Locale("root")  # what CLDR answers with, silently, where a language has no entry


class Phrase(NamedTuple):
    english: str
    translation: str
    kind: str


@dataclass(frozen=True)
class Kind:
    """Values of one sort and the styles to say them in: `style(value, locale=...)` is a text, or raises."""

    name: str
    values: Sequence
    styles: tuple[Callable[..., str], ...]
    weight: int = 1  # its share of the phrases


def in_words(number, form, locale, **options):
    """`num2words`, but what it answers in another language or in figures is an error."""
    english = num2words(number, lang="en", to=form, **options)
    if locale == ENGLISH:
        return english
    language = {"nb": "no", "kk": "kz"}.get(locale.language, locale.language)
    codes = [code for code in (f"{language}_{locale.territory}", language) if code in CONVERTER_CLASSES]
    if not codes:  # num2words itself would cut the code to two letters: Filipino (fil) becomes Finnish (fi)
        raise LookupError(f"num2words does not know {locale}")
    text = num2words(number, lang=codes[0], to=form, **options)
    if text == english or any(digit in text for digit in "0123456789"):
        raise LookupError(f"num2words has no words for it in {locale}")
    return text


def euros_in_words(amount, locale):
    text = in_words(amount, "currency", locale, currency="EUR")
    if text == in_words(amount, "currency", locale, currency="USD"):
        raise LookupError(f"num2words takes one currency for another in {locale}")
    return text


def large_number(value, locale):
    return numbers.format_compact_decimal(value, format_type="long", fraction_digits=4, locale=locale)


def from_now(value, locale):
    count, unit, sign = value
    delta = timedelta(seconds=sign * count * SECONDS_IN[unit])
    return dates.format_timedelta(delta, granularity=unit, threshold=1e9, add_direction=True, locale=locale)


def quantities(amounts, locale):
    return lists.format_list([units.format_unit(*amount, locale=locale) for amount in amounts], locale=locale)


def list_of(table, codes, locale):
    return lists.format_list([getattr(locale, table)[code] for code in codes], locale=locale)


def shuffled(values):
    return random.Random(0).sample(values, len(values))


def groups_of(codes):
    """Two or three codes, in varied order, no set twice."""
    groups = [*combinations(codes.split(), 2), *combinations(codes.split(), 3)]
    return [random.Random(str(group)).sample(group, len(group)) for group in groups]


# A number is a cardinal or an ordinal, a minute is told in one way: else what is held out would be half known.
NUMBERS = shuffled(range(10_000))
DAYS = [datetime(1950, 1, 1) + timedelta(days=day) for day in range(36_525)]  # 100 years: two figures name one
MONTHS = [day for day in DAYS if day.day == 1]
MINUTES = shuffled([datetime.min + timedelta(minutes=minute) for minute in range(24 * 60)])
SECONDS = [datetime.min + timedelta(seconds=second) for second in range(24 * 60 * 60)]
EUROS = [Decimal(cents) / 100 for cents in range(101, 100_000, 3)]
MONEY = [Decimal(cents) / 100 for cents in range(102, 1_000_000, 21)]
SYMBOLS, CURRENCIES = ("USD", "EUR", "GBP", "INR"), ("USD", "EUR", "GBP", "CHF", "JPY", "SEK", "MXN")
NAMED_MONEY = partial(numbers.format_currency, format_type="name")
SECONDS_IN = dict(dates.TIMEDELTA_UNITS)  # year, month, ..., second
AMOUNTS = [*range(1, 1000), *(Decimal(tenths) / 10 for tenths in range(1, 1000) if tenths % 10)]
MEASURED = """length-millimeter length-centimeter length-meter length-kilometer length-inch length-foot length-mile
    mass-milligram mass-gram mass-kilogram mass-ounce mass-pound area-square-meter area-square-kilometer area-hectare
    volume-milliliter volume-liter volume-cubic-meter volume-gallon speed-kilometer-per-hour speed-mile-per-hour
    temperature-celsius temperature-fahrenheit energy-kilowatt-hour power-watt power-kilowatt power-horsepower
    electric-volt electric-ampere digital-megabyte digital-gigabyte duration-hour duration-minute""".split()
DURATIONS = [
    ((larger, f"duration-{unit}"), (smaller, f"duration-{subunit}"))
    for unit, most, subunit, rest in (("year", 30, "month", 11), ("week", 20, "day", 6), ("day", 40, "hour", 23))
    + (("hour", 48, "minute", 59), ("minute", 90, "second", 59))
    for larger, smaller in product(range(1, most + 1), range(1, rest + 1))
]
COUNTRIES = "AR AT AU BE BR CA CH CL CN CO CZ DE DK EG ES FI FR GB GR HU IE IN IS IT JP KE MX NL NO NZ PE PL PT SE US"
LANGUAGES = "ar bn cs da de el en es et fi fr ga he hi hu id is it ja ko lt lv nl no pl pt ro ru sk sv th tr uk vi zh"

KINDS = (
    Kind("cardinal number", NUMBERS[:6000], (partial(in_words, form="cardinal"),), weight=2),
    Kind("ordinal number", NUMBERS[6000:], (partial(in_words, form="ordinal"),), weight=2),
    Kind("euros in words", EUROS, (euros_in_words,), weight=2),
    Kind("large number", [Decimal(n).scaleb(e - 1) for n in range(10, 10_000) for e in (3, 6, 9)], (large_number,)),
    Kind("date", DAYS, tuple(partial(dates.format_date, format=f) for f in ("full", "long", "medium", "short")), 2),
    Kind("day of the year", DAYS[:365], (partial(dates.format_skeleton, "MMMMd"),)),
    Kind("month", MONTHS, (partial(dates.format_skeleton, "yMMMM"),)),
    Kind("quarter", MONTHS[::3], (partial(dates.format_skeleton, "yQQQQ"),)),
    Kind("time", MINUTES[:720], (partial(dates.format_time, format="short"),)),
    Kind("part of the day", MINUTES[720:], (partial(dates.format_skeleton, "Bhm"),)),
    Kind("time with seconds", SECONDS, (partial(dates.format_time, format="medium"),)),
    Kind("relative time", list(product(range(1, 100), SECONDS_IN, (-1, 1))), (from_now,)),
    Kind("duration", DURATIONS, (quantities,)),
    Kind("measure", [(amount,) for amount in product(AMOUNTS, MEASURED)], (quantities,)),
    Kind("money", MONEY[::2], tuple(partial(numbers.format_currency, currency=c) for c in SYMBOLS)),
    Kind("money with its name", MONEY[1::2], tuple(partial(NAMED_MONEY, currency=c) for c in CURRENCIES)),
    Kind("countries", groups_of(COUNTRIES), (partial(list_of, "territories"),)),
    Kind("languages", groups_of(LANGUAGES), (partial(list_of, "languages"),)),
)


def say(style, value, locale):
    """The text, with the plain spaces that people type in place of CLDR's no-break ones."""
    text = " ".join(style(value, locale=locale).split())
    if not text:
        raise LookupError(f"Babel has no text for it in {locale}")
    return text


def translate(style, value, locale):
    """The text in the locale's language; raises if the packages have none."""
    translation = say(style, value, locale)
    try:
        fallback = say(style, value, ROOT)
    except LookupError:  # then no fallback can have been taken
        return translation
    letters = [character for character in translation if character.isalpha()]
    if letters and letters == [character for character in fallback if character.isalpha()]:
        raise LookupError(f"CLDR has no words for it in {locale}")
    return translation


def why_left_out(kind, locale, probes=40):
    """The commonest reason if more than half of a sample of the kind cannot be said, else None."""
    sample = list(product(kind.styles, kind.values[:: max(1, len(kind.values) // probes)]))
    reasons = Counter()
    for style, value in sample:
        try:
            translate(style, value, locale)
        except Exception as error:  # num2words raises whatever its code for a language runs into
            reasons[str(error) or "the package has no words for it"] += 1
    return reasons.most_common(1)[0][0] if reasons.total() * 2 > len(sample) else None


def shares(kinds, count):
    """How many values of each kind: by weight, and what a small kind cannot give, the others do."""
    weight = sum(kind.weight for kind in kinds)
    for kind in sorted(kinds, key=lambda kind: len(kind.values) / kind.weight):
        share = min(len(kind.values), round(count * kind.weight / weight))
        yield kind, share
        count, weight = count - share, weight - kind.weight


def make_phrases(language="de", count=24_000, seed=0):
    """Phrases `(english, translation, kind)`, shuffled, and `{kind: reason}` for the kinds left out.

    `language` is any code that Babel knows ("de", "fr", "ja", "pt_BR", "zh-Hant", ...) but English, else ValueError.
    The same arguments give the same phrases, at most `count`: what has two translations is dropped, and so is a single
    value that a package cannot say.
    """
    try:
        locale = Locale.parse(language.replace("-", "_"))
    except (UnknownLocaleError, ValueError) as error:
        raise ValueError(f"language={language!r} is not a code that Babel knows, such as 'de' or 'ja'") from error
    if locale == ROOT or locale.language == "en":
        raise ValueError(f"language={language!r} must be a language other than English, such as 'de' or 'ja'")

    left_out = {kind.name: reason for kind in KINDS if (reason := why_left_out(kind, locale))}
    kinds = [kind for kind in KINDS if kind.name not in left_out]
    limit = sum(len(kind.values) for kind in kinds)
    if not 1 <= count <= limit:
        raise ValueError(f"count={count} must be between 1 and {limit}, all there is for language={language!r}")

    rng = random.Random(seed)
    found = defaultdict(dict)
    for kind, share in shares(kinds, count):
        for value in rng.sample(kind.values, share):
            try:
                english = say(rng.choice(kind.styles), value, ENGLISH)
                # "May 7, 2024" is a long and a medium date: the first style that says so decides the translation
                style = next(style for style in kind.styles if say(style, value, ENGLISH) == english)
                translation = translate(style, value, locale)
            except Exception:  # as above
                continue
            found[english][translation] = kind.name
    phrases = [Phrase(english, *said.popitem()) for english, said in found.items() if len(said) == 1]
    rng.shuffle(phrases)
    return phrases, left_out


def split_phrases(pairs, valid=0.05, test=0.05, seed=0):
    """`(train, valid, test)`: of every kind these fractions, at least one phrase each, are held out."""
    if not (valid > 0 and test > 0 and valid + test < 1):
        raise ValueError(f"valid={valid} and test={test} must be positive fractions with a sum below 1")
    by_kind = defaultdict(dict)
    for phrase in pairs:
        by_kind[phrase[2]][phrase[0]] = phrase
    rng = random.Random(seed)
    train, *held_out = parts = [], [], []
    for phrases in by_kind.values():
        rest = rng.sample(list(phrases.values()), len(phrases))
        for part, fraction in zip(held_out, (valid, test)):
            size = max(1, round(len(phrases) * fraction))
            part.extend(rest[:size])
            rest = rest[size:]
        train.extend(rest)
    for part in parts:
        rng.shuffle(part)
    return parts
