"""Questions whose answers stand in a text: of files, of SQuAD-like data sets, and of docstrings in NumPy's style.

row = find_questions(limit=1)[0]
row.question, row.answer    # ('What type has dt1?', 'structured dtype')
"""

import re
from typing import NamedTuple

import tasks
from docstrings import find_parameters

COLUMNS = ("question", "context", "answer_start", "answer")


class Row(NamedTuple):
    question: str
    context: str
    start: int  # of the answer in the context, in characters
    answer: str
    source: str  # rows with the same one are never in two parts


def read_questions(path):
    """The rows of a TSV file whose header names `COLUMNS`, and others; what has no answer in its text is left out."""
    header, *lines = tasks.read_text(path).removesuffix("\n").replace("\r\n", "\n").split("\n")
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
    rows = []
    for path, parameters in find_parameters(limit):
        context, spans = "", []
        for name, kind, text in parameters:
            context += f"{name} : "
            spans.append((f"What type has {name}?", len(context), kind))
            context += f"{kind} "
            spans.append((f"What is {name}?", len(context), re.match(r".+?[.](?=\s)|.+", text)[0]))
            context += f"{text} "
        rows += [Row(question, context[:-1], start, answer, str(path)) for question, start, answer in spans]
    return rows[:limit]


SOURCES = (read_questions, ("question", "context", "answers"), row_of_data_set, find_questions)  # for `read_parts`
