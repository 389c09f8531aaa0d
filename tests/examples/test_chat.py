"""The chat script, from exchanges to answers."""

import functools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import chat
import keras_transformer as kt
from tests import hurry

SCRIPT = Path(chat.__file__)
TINY = "--vocabulary-size 300 --layers 1 --heads 2 --hidden-dim 16 --max-tokens 8 --batch-size 16".split()
PAIRS = [(f"What is {i}?", f"{i} is a number") for i in range(60)]
READ = functools.cache(kt.data.load_text_model)


def parse(*options):
    return chat.parse_arguments([str(option) for option in options])


def write_tsv(path, pairs, broken=()):
    path.write_text("\n".join([*("\t".join(pair) for pair in pairs), *broken]), encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=["gpt", "transformer"])
def trained(request, tmp_path_factory):
    """What a training of a few steps on a file with a broken row printed, the file and the folder that it wrote to."""
    folder = tmp_path_factory.mktemp(request.param)
    data, printed = write_tsv(folder / "pairs.tsv", PAIRS, ["one column"]), []
    with pytest.MonkeyPatch.context() as patch:
        hurry.train_few_steps(patch, 2)
        patch.setattr("builtins.print", lambda *args, **_: printed.append(" ".join(map(str, args))))
        patch.setattr(kt.data, "load_text_model", READ)
        chat.main(parse("--tsv", data, "--output", folder / "outputs", "--model", request.param, *TINY))
    return "\n".join(printed), data, folder / "outputs"


SCORES = r"perplexity [\d.]+ of 6 answers \(by frequency alone: [\d.]+\)"


def test_training_writes_and_scores_the_model_and_it_talks(trained, capsys, monkeypatch):
    printed, data, output = trained
    assert "60 pairs, 1 row skipped (1 wrong number of columns, the first in line 61)" in printed
    assert re.search(r"\d+ of 48 exchanges have a side of more than 8 tokens, and are cut", printed)
    assert sorted(path.name for path in output.iterdir()) == ["chat.keras", "chat.png", "chat.tokenizer.json"]
    assert imread(output / "chat.png").ndim == 3
    monkeypatch.setattr(kt.data, "load_text_model", READ)
    saved = ("--output", output, "--saved", output / "chat.keras")
    chat.main(parse("--tsv", data, *saved, *TINY))
    again = capsys.readouterr().out
    assert re.findall(SCORES, again) == re.findall(SCORES, printed) != [] and "parameters" not in again
    typed = iter([re.search(r"  said       (.*)\n", printed)[1], ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    chat.main(parse(*saved, *TINY, "--talk"))
    assert capsys.readouterr().out.startswith("it: ")
    for end in (EOFError, KeyboardInterrupt):
        monkeypatch.setattr("builtins.input", lambda prompt, end=end: (_ for _ in ()).throw(end))
        chat.main(parse(*saved, *TINY, "--talk"))


def test_only_answers_count():
    """Both kinds of batches hold the same tokens to foresee."""
    texts = [text for pair in PAIRS for text in pair]
    tokenizer, pairs = kt.data.train_tokenizer(texts, 300), kt.data.TextPairs(PAIRS[:5])
    expected = sum(len(row) + 1 for row in tokenizer.encode(pairs.targets))
    for family in ("gpt", "transformer"):
        data = chat.batches(pairs, tokenizer, parse("--model", family, *TINY, "--max-tokens", 20))
        found = sum((labels[weights > 0]).size for _, labels, weights in (data[i] for i in range(len(data))))
        assert found == expected
    example = chat.Answers(1, 2, most=9).example([5, 6, 1, 7])
    assert example["labels"] == [5, 6, 1, 7, 2] and example["weights"] == [0, 0, 0, 1, 1]


def test_an_answer_that_is_cut_off_does_not_end_there():
    """In both kinds of batches, which then hold the same tokens still."""
    texts = [text for pair in PAIRS for text in pair]
    tokenizer, pairs = kt.data.train_tokenizer(texts, 300), kt.data.TextPairs(PAIRS[:5])
    lengths = [len(row) for row in tokenizer.encode(pairs.targets)]
    most = max(lengths) - 1
    for family in ("gpt", "transformer"):
        data = chat.batches(pairs, tokenizer, parse("--model", family, *TINY, "--max-tokens", most))
        found = np.concatenate([labels[weights > 0] for _, labels, weights in (data[i] for i in range(len(data)))])
        assert len(found) == sum(min(length + 1, most + 1) for length in lengths)
        assert (found == tokenizer.stop_token_id).sum() == sum(length <= most for length in lengths) < 5


def test_the_floor_by_hand():
    tokenizer = kt.data.train_tokenizer(["ab"] * 3, 6, "character")
    found = chat.unigram_perplexity(["ab", "a"], ["aa"], tokenizer, 9)  # a, a, b, and 2 stops; and 6 more
    assert found == pytest.approx(math.exp(-(2 * math.log(3 / 11) + math.log(3 / 11)) / 3))


def test_the_corpus_is_split_without_leaks():
    pairs = chat.exchanges("english", 20_000)
    assert len(pairs) > 1000 and len(set(pairs)) == len(pairs) and ("Hello", "Hi") in pairs
    planted = kt.data.TextPairs([*pairs, *pairs[:50], ("HELLO", "Hi there")])
    train, valid, test = (
        [{" ".join(text.lower().split()) for text in side} for side in (part.sources, part.targets)]
        for part in chat.reading.read_pairs(parse(), lambda limit: planted)
    )
    for one, two in ((train, valid), (train, test), (valid, test)):
        assert not one[0] & two[0] and not one[1] & two[1]
    assert len(test[0]) > 80


def test_input_that_cannot_be_used_ends_with_one_line(tmp_path):
    for options, message in (
        (["--language", "klingon"], "no language 'klingon'. It has: .*english"),
        (["--tsv", tmp_path / "no.tsv"], "Cannot read .*no.tsv"),
        (["--saved", tmp_path / "no.keras", "--talk"], "Cannot read a model from .*no.keras"),
    ):
        with pytest.raises(SystemExit) as stopped:
            chat.main(parse(*options, "--output", tmp_path))
        assert re.search(f"^error: .*{message}", stopped.value.code), stopped.value.code
    with pytest.raises(SystemExit):
        parse("--talk")


def test_the_script_stays_short_enough_to_copy():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 150
