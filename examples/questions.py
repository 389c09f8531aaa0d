"""Questions whose answers stand in a text: of files, of SQuAD-like data sets, and of docstrings in NumPy's style.

row = find_questions(limit=100)[0][0]
row.question, row.answer    # ('What type has dt1?', 'structured dtype')
"""

import re
import string
from collections import Counter
from typing import NamedTuple

import numpy as np

import reading
from docstrings import find_parameters

NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
COLUMNS = ("question", "context", "answer_start", "answer")


class Row(NamedTuple):
    question: str
    context: str
    start: int  # of the answer in the context, in characters
    answer: str
    source: str  # rows with the same one are never in two parts


def read_questions(path):
    """The rows of a TSV file whose header names `COLUMNS`, and others; what has no answer in its text is left out."""
    header, *lines = reading.read_text(path).removesuffix("\n").replace("\r\n", "\n").split("\n")
    header = header.split("\t")
    if missing := [name for name in COLUMNS if name not in header]:
        raise ValueError(f"{path}, line 1: there is no column {missing[0]!r} among {header}. Needed are {COLUMNS}")
    rows, broken = [], []
    for number, line in enumerate(lines, 2):
        cells = dict(zip(header, line.split("\t")))
        question, context, start, answer = (cells.get(name, "") for name in COLUMNS)
        start = int(start) if start.strip().isdecimal() else -1
        if question.strip() and answer.strip() and start >= 0 and context.startswith(answer, start):
            rows.append(Row(question, context, start, answer, context))
        else:
            broken.append(f"line {number} ({line[:40]!r})")
    if broken:
        named = f"{', '.join(broken[:3])}{' ...' if broken[3:] else ''}"
        print(f"{path}: in {len(broken):,} of {len(lines):,} rows no answer stands where it should; left out: {named}")
    if not rows:
        raise ValueError(f"{path} has no row with an answer in its text")
    return rows


def row_of_data_set(question, context, answers):
    """A row of SQuAD and its like, with the first of several answers; None if there is no answer."""
    if not len(answers["text"]) or not answers["text"][0].strip():
        return None
    question, context, answer = question.decode(), context.decode(), answers["text"][0].decode()
    return Row(question, context, int(answers["answer_start"][0]), answer, context)


def find_questions(limit):
    """What the parameters of functions are, and of which type, asked of what their docstrings say of them."""
    parts = find_parameters(limit // 4)  # a docstring has two parameters that are short enough, as a rule
    return tuple([row for parameters in part for row in questions_of(parameters)] for part in parts)


def questions_of(parameters):
    """Two rows for each parameter of a docstring."""
    context, spans = "", []
    for name, kind, text in parameters:
        context += f"{name} : "
        spans.append((f"What type has {name}?", len(context), kind))
        context += f"{kind} "
        spans.append((f"What is {name}?", len(context), re.match(r".+?[.](?=\s)|.+", text)[0]))
        context += f"{text} "
    return [Row(question, context[:-1], start, answer, context) for question, start, answer in spans]


SOURCES = (read_questions, ("question", "context", "answers"), row_of_data_set, find_questions)  # for `read_parts`


def scores(found, wanted):
    """Exact match and F1, as SQuAD defines them."""
    pairs = [[normal(text) for text in pair] for pair in zip(found, wanted)]
    exact = [ours == theirs for ours, theirs in pairs]
    common = [2 * (Counter(ours) & Counter(theirs)).total() / (len(ours + theirs) or 1) for ours, theirs in pairs]
    return f"exact match {np.mean(exact):.4f}, F1 {np.mean(np.maximum(exact, common)):.4f}"


def normal(text):
    """The words that SQuAD compares: without case, punctuation and articles."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(NO_PUNCTUATION)).split()


def rarest(known, rows):
    """Of each text the word that is rarest in the known ones."""
    counts = Counter(word for text in {row.context for row in known} for word in re.findall(r"\w+", text.lower()))
    return [min(re.findall(r"\w+", row.context) or [""], key=lambda word: counts[word.lower()]) for row in rows]
