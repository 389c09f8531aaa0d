"""The sentence-encoding script, from pairs of texts to the nearest ones."""

import functools
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import keras_transformer as kt
import similar_sentences
from tests import hurry

SCRIPT = Path(similar_sentences.__file__)
TINY = "--vocabulary-size 300 --max-tokens 12 --batch-size 8 --layers 1 --heads 2 --hidden-dim 16".split()
PAIRS = [(f"item {i} is told at some length", f"about item {i}") for i in range(60)]
READ = functools.cache(kt.data.load_text_model)


def parse(*options):
    return similar_sentences.parse_arguments([str(option) for option in options])


def write_tsv(path, pairs, broken=()):
    path.write_text("\n".join([*("\t".join(pair) for pair in pairs), *broken]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a training of a few steps on a file with a broken row printed, the file and the folder that it wrote to."""
    folder = tmp_path_factory.mktemp("similar_sentences")
    long = (" ".join("abcdefghijklmnopqrst"), "letters")
    data, printed = write_tsv(folder / "pairs.tsv", [*PAIRS, long], ["one column"]), []
    with pytest.MonkeyPatch.context() as patch:
        hurry.train_few_steps(patch, 3)
        patch.setattr("builtins.print", lambda *args, **_: printed.append(" ".join(map(str, args))))
        patch.setattr(kt.data, "load_text_model", READ)
        similar_sentences.main(parse("--tsv", data, "--output", folder / "outputs", *TINY))
    return "\n".join(printed), data, folder / "outputs"


SCORES = r"right at first, of 6 texts: \d\.\d{4} \(by words in common: \d\.\d{4}\)"


def test_training_writes_and_scores_the_model(trained):
    printed, _, output = trained
    assert "61 pairs, 1 row skipped (1 wrong number of columns, the first in line 62)" in printed
    assert re.search(r"1 of \d+ texts have more than 10 tokens: their ends are not read", printed)
    assert len(re.findall(SCORES, printed.replace("\n(by", " (by"))) == 1
    names = ["sentences.keras", "sentences.png", "sentences.tokenizer.json"]
    assert sorted(path.name for path in output.iterdir()) == names
    assert imread(output / "sentences.png").ndim == 3


def test_the_saved_model_has_the_same_score_and_searches(trained, capsys, monkeypatch, tmp_path):
    printed, data, output = trained
    monkeypatch.setattr(kt.data, "load_text_model", READ)
    saved = ("--saved", output / "sentences.keras", "--output", output, *TINY)
    similar_sentences.main(parse("--tsv", data, *saved))
    again = capsys.readouterr().out
    assert re.findall(SCORES, again) == re.findall(SCORES, printed.replace("\n(by", " (by"))
    assert "parameters" not in again
    (tmp_path / "lines.txt").write_text("about item 3\n\n" + "something else\n" * 3 + "item 7 is told\nitem\nabout\n")
    similar_sentences.main(parse(*saved, "--search", "item 7 is told", "--lines", tmp_path / "lines.txt"))
    said, *lines = capsys.readouterr().out.splitlines()
    assert said.startswith("3 of 8 texts have more than 10 tokens") and len(lines) == 5
    assert lines[0] == "1.000  item 7 is told"
    assert [float(line[:6]) for line in lines] == sorted((float(line[:6]) for line in lines), reverse=True)


def test_lines_that_are_alike(trained, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(kt.data, "load_text_model", READ)
    (tmp_path / "lines.txt").write_text("item 7\nabout another\n\nitem 7\n")
    saved = ("--saved", trained[2] / "sentences.keras", *TINY)
    similar_sentences.main(parse(*saved, "--duplicates", "--lines", tmp_path / "lines.txt"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["1.000  item 7", "       item 7"] and len(lines) == 6


def test_both_texts_of_a_pair_have_its_number():
    pairs = kt.data.TextPairs([*PAIRS[:18], ("another text", PAIRS[0][1])])
    tokenizer = kt.data.train_tokenizer(pairs.sources + pairs.targets, 300, extra_tokens=1)
    data = similar_sentences.Pairs(pairs, tokenizer, parse(*TINY, "--max-tokens", 30))
    seen = {}
    for inputs, numbers in (data[i] for i in range(len(data))):
        texts = tokenizer.decode(inputs["token_ids"])
        assert len(texts) == len(numbers) == 16
        for source, target, *both in zip(texts[::2], texts[1::2], numbers[::2], numbers[1::2]):
            assert (source, target) in pairs and both[0] == both[1]
            seen[source] = (target, both[0])
    assert len(seen) == 16 and len({number for _, number in seen.values()}) == len({text for text, _ in seen.values()})
    first = data[0][1]
    data.on_epoch_end()
    assert (data[0][1] != first).any()


def test_hits_by_hand():
    vectors = np.eye(3)
    assert similar_sentences.hits(vectors, vectors[[0, 2, 1]], ["a", "b", "c"]) == pytest.approx(1 / 3)
    assert similar_sentences.hits(vectors, vectors[[0, 2, 1]], ["a", "b", "b"]) == 1  # the same words elsewhere


def test_no_held_out_text_is_trained_on_and_none_is_in_the_vocabulary(tmp_path, monkeypatch):
    """Planted: test pairs that training has, too, and a word of the test file."""
    planted = [PAIRS[0], ("zyzzyva " * 9, "zyzzyva zyzzyva"), ("a new text", PAIRS[1][1])]
    files = [write_tsv(tmp_path / name, pairs) for name, pairs in (("a", PAIRS), ("b", PAIRS[2:4]), ("c", planted))]
    args = parse("--tsv", files[0], "--valid", files[1], "--test", files[2], *TINY)
    parts = similar_sentences.reading.read_pairs(args, None)
    assert [len(part) for part in parts] == [56, 2, 3]
    kept = []
    monkeypatch.setattr(similar_sentences.tasks, "fit", lambda *_, **__: {"loss": [1.0]})
    monkeypatch.setattr(kt.inspect, "plot_history", lambda *_: None)
    monkeypatch.setattr(kt.data, "save_text_model", lambda model, tokenizer, path: kept.append(tokenizer))
    similar_sentences.train(*parts[:2], tmp_path / "x.keras", args)
    assert len(kept[0].encode("zyzzyva")[0]) > 4 and len(kept[0].encode("item")[0]) == 1


def test_input_that_cannot_be_used_ends_with_one_line(trained, tmp_path):
    saved = ["--saved", trained[2] / "sentences.keras"]
    for options, message in (
        (["--tsv", tmp_path / "no.tsv"], "Cannot read .*no.tsv"),
        (["--tsv", write_tsv(tmp_path / "one.tsv", PAIRS[:1])], "too few rows"),
        (["--saved", tmp_path / "no.keras", "--search", "a", "--lines", "b"], "Cannot read a model from .*no.keras"),
        ([*saved, "--search", "a", "--lines", tmp_path / "no.txt"], "No such file.*no.txt"),
    ):
        with pytest.raises(SystemExit) as stopped:
            similar_sentences.main(parse(*options, "--output", tmp_path))
        assert re.search(f"^error: .*{message}", stopped.value.code), stopped.value.code
    for options in (["--valid", "a"], ["--search", "text"], [*saved, "--search", "text"]):
        with pytest.raises(SystemExit):
            parse(*options)


def test_the_script_stays_short_enough_to_copy():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 150
