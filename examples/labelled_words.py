"""Texts with a label for each word: of CoNLL files, of data sets, and the source of Python, which every Python has.

row = read_statements(limit=1)[0]
row.words[:2], row.labels[:2], row.places[0]    # (['import', 'os'], ['B-KEYWORD', 'B-NAME'], '.../abc.py, line 6')
"""

import io
import keyword
import re
import tokenize
from typing import NamedTuple

import reading
from encoder import WORD

KINDS = {tokenize.NAME: "NAME", tokenize.NUMBER: "NUMBER", tokenize.STRING: "STRING", tokenize.COMMENT: "COMMENT"}
for name in ("FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END"):  # the parts of an f-string, from Python 3.12 on
    if hasattr(tokenize, name):
        KINDS[getattr(tokenize, name)] = "STRING"


class Row(NamedTuple):
    words: list
    labels: list
    places: list  # of each word: file and line

    @property
    def text(self):
        return " ".join(self.words)


def read_conll(path):
    """The rows of a CoNLL file; a line without a word and a label is refused by its number."""
    rows, row = [], Row([], [], [])
    for number, line in enumerate([*reading.read_text(path).split("\n"), ""], 1):
        cells = line.rstrip("\r").split("\t") if "\t" in line else line.split()
        if not line.strip() or cells[0] == "-DOCSTART-":
            rows, row = rows + [row] if row.words else rows, Row([], [], [])
            continue
        place, word, label = f"{path}, line {number}", cells[0].strip(), cells[-1].strip()
        if len(cells) < 2 or not word or not re.fullmatch("O|[BI]-.+", label):
            raise ValueError(f"{place}: a word and O, B-X or I-X are needed. Received: {line!r}")
        for values, value in zip(row, (word, label, place)):
            values.append(value)
    return rows


def row_of_data_set(name, feature):
    """A function that makes a row of two features of a data set of TensorFlow Datasets: words, and their classes."""
    names = reading.tfds_classes(name, feature) if name else []

    def row(words, classes):
        return Row([word.decode() for word in words], [names[i] for i in classes], [name for _ in words])

    return row


def check_labels(rows, known):
    """Refuse a label that is not among the known ones, by its file and line."""
    for row in rows:
        for label, place in zip(row.labels, row.places):
            if label not in known:
                raise ValueError(f"{place}: there is nothing to train on of the label {label!r}. Known are: {known}")


def read_statements(limit, longest=40):
    """Rows of Python's standard library; statements of more than `longest` words are left out, and counted."""
    rows, too_long = [], 0
    for path in reading.python_files():
        found = list(statements(path))
        kept = [row for row in found if len(row.words) <= longest]
        rows, too_long = rows + kept, too_long + len(found) - len(kept)
        if len(rows) >= limit:
            break
    print(f"{too_long:,} of {too_long + len(rows):,} statements have more than {longest} words: left out")
    return rows[:limit]


def statements(path):
    """A row for each statement of a file, with the comments before it, labelled by `tokenize`; operators are O."""
    row, last = Row([], [], []), None
    with tokenize.open(path) as file:
        source = file.read()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = "KEYWORD" if keyword.iskeyword(token.string) else KINDS.get(token.type)
        for word in WORD.findall(token.string):
            label = "O" if kind is None else f"I-{kind}" if token is last else f"B-{kind}"
            for values, value in zip(row, (word, label, f"{path}, line {token.start[0]}")):
                values.append(value)
            last = token
        if token.type == tokenize.NEWLINE:
            yield row
            row = Row([], [], [])
