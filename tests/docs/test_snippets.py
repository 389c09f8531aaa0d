"""The documents say what is true: their code runs, prints what they say it prints, and their links lead somewhere."""

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import hurry

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]

# Opening fence with its language, the code, closing fence; a comment right before it may take the block out.
BLOCK = re.compile(
    r"(?:<!-- not executed: (?P<reason>.+?) -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S
)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)\s]*)?\)")
MAX_FRAGMENTS = 2  # of all documents together


@dataclass
class Block:
    language: str
    code: str
    line: int  # of its first line of code
    reason: str | None  # why it is not executed
    output: str | None = None  # the ```text block that follows a ```python block is what it prints


def blocks(path):
    text = path.read_text(encoding="utf-8")
    found, end = [], 0
    for match in BLOCK.finditer(text):
        block = Block(match["language"], match["code"], text[: match.start("code")].count("\n") + 1, match["reason"])
        follows = found and found[-1].language == "python" and not text[end : match.start()].strip()
        if block.language == "text" and follows:
            found[-1].output = block.code
        found.append(block)
        end = match.end()
    return [block for block in found if block.language == "python"]


def lines(text):
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_code_runs_and_prints_what_the_document_says(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hurry.train_in_a_hurry(monkeypatch)
    namespace = {"__name__": "document"}
    for block in blocks(path):
        if block.reason:
            continue
        # Blank lines in front, so that a traceback shows the line of the document.
        code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        if block.output is not None:
            assert lines(printed.getvalue()) == lines(block.output), f"{path.name}, line {block.line}"


def test_hardly_a_block_is_left_out():
    found = [block for path in DOCUMENTS for block in blocks(path)]
    assert len(found) > 20
    assert sum(block.reason is not None for block in found) <= MAX_FRAGMENTS


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_fences_are_closed_and_name_their_language(path):
    fences = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("```")]
    assert len(fences) % 2 == 0
    assert all(re.fullmatch("```(python|text|bash)", line) for line in fences[::2])
    assert all(line == "```" for line in fences[1::2])


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_links_lead_to_files(path):
    prose = BLOCK.sub("", path.read_text(encoding="utf-8"))
    targets = LINK.findall(prose)
    assert targets or path.name != "README.md"
    assert [target for target in targets if not (path.parent / target).exists()] == []
