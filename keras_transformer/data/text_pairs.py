"""Pairs of texts (a source and its target) from TSV files and TensorFlow Datasets, and leak-free splits of them."""

import codecs
import os
import re
from collections import Counter

import numpy as np

from keras_transformer.arguments import check_count

EMPTY_SIDE = "empty side"
WRONG_COLUMNS = "wrong number of columns"
NOT_UTF8 = "not UTF-8"
TARGET_IN_OTHER_SPLIT = "target also in another split"

# What a header cell is made of: a column's role, a language's name, or a two-letter language code (ISO 639-1).
_HEADER_WORDS = frozenset(
    "source target src tgt trg input output sentence text translation summary document label class category topic "
    "sentiment intent review body article abstract title heading headline question answer context prompt response "
    "english german french spanish italian portuguese dutch polish russian ukrainian czech turkish arabic hebrew hindi "
    "chinese japanese korean eng deu ger fra fre spa ita por nld rus jpn zho".split()
)
_LANGUAGE_CODES = frozenset(
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en "
    "eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv "
    "ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne "
    "ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st "
    "su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu".split()
)


class TextPairs(list):
    """A list of `(source, target)` strings that remembers what was left out on the way.

    Attributes:
        name: str, where the pairs come from (a path, a data set, a split); opens the summary line.
        header: the header line's `(source, target)` cells, or None.
        skipped: dict from reason to the number of rows left out for it.
        first_skipped: dict from reason to the number of the line that was the first of them, where it is known.

    Example:

    >>> pairs = TextPairs([("Good morning", "Guten Morgen")], name="greetings", skipped={"empty side": 2})
    >>> pairs.summary()
    'greetings: 1 pair, 2 rows skipped (2 empty side)'
    """

    def __init__(self, pairs=(), name="pairs", header=None, skipped=None, first_skipped=None):
        super().__init__(pairs)
        self.name = name
        self.header = header
        self.skipped, self.first_skipped = dict(skipped or {}), dict(first_skipped or {})

    def __getitem__(self, index):
        """A pair; of a slice `TextPairs` of the same name, from which nothing was left out."""
        found = super().__getitem__(index)
        return TextPairs(found, self.name, self.header) if isinstance(index, slice) else found

    @property
    def sources(self):
        """The source texts, a list of str."""
        return [source for source, _ in self]

    @property
    def targets(self):
        """The target texts, a list of str."""
        return [target for _, target in self]

    def summary(self):
        """One line for people: the number of pairs, the header, and the rows skipped by reason."""
        parts = [f"{len(self):,} pair{'s' if len(self) != 1 else ''}"]
        if self.header:
            parts.append(f"header {self.header[0]} -> {self.header[1]}")
        num_skipped = sum(self.skipped.values())
        if num_skipped:
            first = {reason: f", the first in line {line:,}" for reason, line in self.first_skipped.items()}
            reasons = [f"{count:,} {reason}{first.get(reason, '')}" for reason, count in self.skipped.items() if count]
            reasons = ("; " if first else ", ").join(reasons)
            parts.append(f"{num_skipped:,} row{'s' if num_skipped != 1 else ''} skipped ({reasons})")
        return f"{self.name}: {', '.join(parts)}"


def read_pairs(path, columns=(0, 1), header="auto"):
    """Read `(source, target)` pairs from a UTF-8 file with one tab-separated row a line.

    White space around a cell is removed; quotes mean nothing special. The number of columns is the one most rows have,
    so a file with further columns (an attribution, a score) is read too. Broken rows are skipped and counted, never
    repaired: see `skipped` and `summary()` of the result.

    Args:
        path: the file.
        columns: two different column numbers from 0, the source's and the target's.
        header: whether the first line that is not empty names the columns: True, False, or `"auto"`, which takes it
            for a header when its cells are two different language codes, language names or words such as `source`.

    Returns:
        A `TextPairs`.

    Raises:
        ValueError: naming the path, if it cannot be read, is empty or holds no usable row.

    Example:

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "greetings.tsv")
    >>> with open(path, "w", encoding="utf-8") as file:
    ...     _ = file.write("en\\tde\\nGood morning\\tGuten Morgen\\nGood night\\n")
    >>> pairs = read_pairs(path)
    >>> pairs, pairs.header, pairs.skipped["wrong number of columns"]
    ([('Good morning', 'Guten Morgen')], ('en', 'de'), 1)
    """
    path = os.fspath(path)
    source_column, target_column = _check_columns(columns)
    if header not in (True, False, "auto"):
        raise ValueError(f'`header` must be True, False or "auto". Received: header={header!r}')
    lines, broken = _read_lines(path)
    widths = Counter(len(row) for _, row in lines if row != [""])
    if not widths:
        raise ValueError(f"No row could be read from {path!r} ({len(broken):,} {NOT_UTF8}).")

    # The first row has most of the say when counts are equal: it is the header or the best-looked-after line.
    num_columns = widths.most_common(1)[0][0]
    if max(source_column, target_column) >= num_columns:
        raise ValueError(
            f"`columns`={tuple(columns)} needs at least {max(columns) + 1} tab-separated columns, "
            f"but most rows of {path!r} have {num_columns}."
        )
    begin = next(i for i, (_, row) in enumerate(lines) if row != [""])
    header_cells, cells = None, [lines[begin][1][column].strip() for column in columns if column < len(lines[begin][1])]
    is_header = header is True or (header == "auto" and len({*cells}) == 2 and all(map(_names_a_column, cells)))
    if len(lines[begin][1]) == num_columns and is_header:
        header_cells = tuple(cells)
        del lines[begin]
    pairs, left_out = [], {NOT_UTF8: broken, WRONG_COLUMNS: [], EMPTY_SIDE: []}
    for number, row in lines:
        pair = (row[source_column].strip(), row[target_column].strip()) if len(row) == num_columns else None
        if pair is not None and all(pair):
            pairs.append(pair)
        else:
            left_out[WRONG_COLUMNS if pair is None else EMPTY_SIDE].append(number)
    skipped = {reason: len(numbers) for reason, numbers in left_out.items()}
    if not pairs:
        raise ValueError(f"{path!r} holds no usable pair ({_reasons(skipped)}).")
    first = {reason: min(numbers) for reason, numbers in left_out.items() if numbers}
    return TextPairs(pairs, name=path, header=header_cells, skipped=skipped, first_skipped=first)


def load_tfds_pairs(name, split="train", limit=None, data_dir=None):
    """Load the pairs of a TensorFlow Datasets translation corpus, downloading it on first use.

    Any data set with two supervised text features works, for example `ted_hrlr_translate/pt_to_en`.

    Args:
        name: the data set's name with its configuration.
        split: a split (`"train"`, `"validation"`, `"test"`) or a slice of one (`"train[:10%]"`).
        limit: int, read at most this many rows; None reads all.
        data_dir: where data sets are kept; None is the default of tensorflow-datasets.

    Returns:
        A `TextPairs`; rows with an empty side or broken UTF-8 are skipped and counted.

    Raises:
        ImportError: naming the data set and the extra to install, if tensorflow-datasets is missing.
        ValueError: naming the data set, if it does not exist, cannot be downloaded or holds no text pairs.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(
            f"The data set {name!r} is read by tensorflow-datasets, which is not installed: "
            f'pip install "keras-transformer-kit[datasets]"'
        ) from error
    try:
        rows = tfds.as_numpy(tfds.load(name, split=split, as_supervised=True, data_dir=data_dir))
    except Exception as error:  # what tensorflow-datasets raises is not one family: network, registry, file system
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"The data set {name!r} (split {split!r}) could not be loaded or downloaded: "
            f"{type(error).__name__}: {reason}"
        ) from error

    pairs, skipped = [], {NOT_UTF8: 0, EMPTY_SIDE: 0}
    for index, row in enumerate(rows):
        if limit is not None and index >= limit:
            break
        if not (isinstance(row, tuple) and len(row) == 2 and all(isinstance(side, bytes) for side in row)):
            raise ValueError(f"The data set {name!r} (split {split!r}) does not hold pairs of texts.")
        try:
            pair = tuple(side.decode("utf-8").strip() for side in row)
        except UnicodeDecodeError:
            skipped[NOT_UTF8] += 1
            continue
        if all(pair):
            pairs.append(pair)
        else:
            skipped[EMPTY_SIDE] += 1
    if not pairs:
        raise ValueError(f"The data set {name!r} (split {split!r}) holds no usable pair ({_reasons(skipped)}).")
    return TextPairs(pairs, name=f"{name} ({split})", skipped=skipped)


def split_pairs(pairs, valid_fraction=0.05, test_fraction=0.05, seed=0):
    """Split pairs into training, validation and test parts that share no source and no target.

    Whole groups of equal sources (letter case and white space aside) are drawn for a part; the draw depends on the set
    of sources and `seed` alone, not on the order of the pairs. A validation pair whose target is also a training
    target is **dropped** (not moved, which would drag its source along), and so is a test pair whose target is in
    either other part; `skipped` of the parts counts them.

    Args:
        pairs: list of `(source, target)`.
        valid_fraction, test_fraction: share of the distinct sources drawn, each in [0, 1), together below 1. A positive
            fraction draws at least one source as long as one remains for training.
        seed: int.

    Returns:
        `(train, valid, test)`, three `TextPairs` that keep the order of `pairs`.

    Raises:
        ValueError: if a fraction is out of range or `pairs` is empty.

    Example:

    >>> pairs = [(f"number {n}", f"Nummer {n}") for n in range(100)]
    >>> [len(part) for part in split_pairs(pairs, valid_fraction=0.1, test_fraction=0.2)]
    [70, 10, 20]
    """
    for argument, fraction in (("valid_fraction", valid_fraction), ("test_fraction", test_fraction)):
        if not 0 <= fraction < 1:
            raise ValueError(f"`{argument}` must be in [0, 1). Received: {argument}={fraction}")
    if valid_fraction + test_fraction >= 1:
        raise ValueError(
            "`valid_fraction` + `test_fraction` must be below 1, or nothing is left to train on. "
            f"Received: {valid_fraction} + {test_fraction}"
        )
    check_count(0, seed=seed)
    pairs_name = getattr(pairs, "name", "pairs")
    pairs = [tuple(pair) for pair in pairs]
    if not pairs:
        raise ValueError("`pairs` is empty: there is nothing to split.")

    groups = sorted({_fold(source) for source, _ in pairs})
    groups = [groups[i] for i in np.random.default_rng(seed).permutation(len(groups))]
    num_valid, num_test = (
        max(1, round(fraction * len(groups))) if fraction else 0 for fraction in (valid_fraction, test_fraction)
    )
    num_valid = min(num_valid, len(groups) - 1)
    num_test = min(num_test, len(groups) - 1 - num_valid)
    part_of = dict.fromkeys(groups, 0)
    part_of.update(dict.fromkeys(groups[:num_valid], 1))
    part_of.update(dict.fromkeys(groups[num_valid : num_valid + num_test], 2))

    parts, seen_targets = [], set()
    for part, part_name in enumerate(("train", "valid", "test")):
        drawn = [pair for pair in pairs if part_of[_fold(pair[0])] == part]
        kept = [pair for pair in drawn if _fold(pair[1]) not in seen_targets]
        seen_targets.update(_fold(target) for _, target in kept)
        dropped = {TARGET_IN_OTHER_SPLIT: len(drawn) - len(kept)}
        parts.append(TextPairs(kept, name=f"{pairs_name} [{part_name}]", skipped=dropped))
    return tuple(parts)


def _read_lines(path):
    """(number, cells) of every line that is UTF-8, and the numbers of those that are not."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ValueError(f"Cannot read {path!r}: {error.strerror or error}") from error
    if not data.strip():
        raise ValueError(f"{path!r} is empty.")
    lines, broken = [], []
    if b"\0" in data or data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(f"{path!r} is not a text file in UTF-8 but in UTF-16, or none at all: save it as UTF-8.")
    # Lines end as in Python's text files; `str.splitlines` would also cut at the rarer separators that texts contain.
    data = data.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), 1):
        try:
            lines.append((number, line.decode("utf-8").split("\t")))
        except UnicodeDecodeError:
            broken.append(number)
    return lines, broken


def _check_columns(columns):
    columns = tuple(columns)
    if len(columns) != 2 or columns[0] == columns[1] or not all(isinstance(c, int) and c >= 0 for c in columns):
        raise ValueError(f"`columns` must be two different column numbers from 0. Received: columns={columns}")
    return columns


def _names_a_column(cell):
    """True for `en`, `pt-BR`, `German`, `source_text`; False for what people say to each other."""
    language = re.fullmatch(r"([a-z]{2})([-_][a-z]{2,4})?", cell.lower())
    if language:
        return language[1] in _LANGUAGE_CODES
    return all(word in _HEADER_WORDS for word in re.split(r"[\s_-]+", cell.lower()))


def _fold(text):
    """Texts that fold alike are one text to a reader."""
    return " ".join(text.casefold().split())


def _reasons(skipped):
    return ", ".join(f"{count:,} {reason}" for reason, count in skipped.items() if count) or "0 rows"
