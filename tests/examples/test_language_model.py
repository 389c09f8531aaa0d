"""The language-model script, from a text to bits per character."""

import functools
import lzma
import math
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from matplotlib.image import imread

import keras_transformer as kt
import language_model
from tests import hurry

SCRIPT = Path(language_model.__file__)
TINY = "--vocabulary-size 300 --length 16 --batch-size 8 --layers 1 --heads 2 --hidden-dim 16".split()
LINES = [f"The cat number {number} sat on the mat, and so did the dog.\n" for number in range(100)]
READ = functools.cache(kt.data.load_text_model)


def parse(*options):
    return language_model.parse_arguments([str(option) for option in options])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a training of a few steps on a text printed, the text and the folder that it wrote to."""
    folder = tmp_path_factory.mktemp("language_model")
    (folder / "text.txt").write_text("".join(LINES), encoding="utf-8")
    printed = []
    with pytest.MonkeyPatch.context() as patch:
        hurry.train_few_steps(patch, 3)
        patch.setattr("builtins.print", lambda *args, **_: printed.append(" ".join(map(str, args))))
        patch.setattr(kt.data, "load_text_model", READ)
        language_model.main(parse("--data", folder / "text.txt", "--output", folder, *TINY))
    return "\n".join(printed), folder


def test_training_writes_and_scores_the_model(trained):
    printed, folder = trained
    assert re.search(r"gpt: [\d,]+ parameters", printed) and f"on {keras.backend.backend()}" in printed
    names = {"text.txt", "language_model.keras", "language_model.png", "language_model.tokenizer.json"}
    assert {path.name for path in folder.iterdir()} == names
    assert imread(folder / "language_model.png").ndim == 3


def test_the_saved_model_has_the_same_score(trained, capsys, monkeypatch):
    printed, folder = trained
    monkeypatch.setattr(kt.data, "load_text_model", READ)
    options = ("--saved", folder / "language_model.keras", "--output", folder, "--prompt", "The dog", *TINY)
    language_model.main(parse("--data", folder / "text.txt", *options))
    again = capsys.readouterr().out
    scores = r"\d+ characters held out: \d\.\d{3} bits per character \(xz: \d\.\d{3}\)"
    assert re.findall(scores, again) == re.findall(scores, printed) != []
    assert "\nThe dog" in again and "parameters" not in again


def test_bits_per_character_by_hand(trained):
    """Each token behind its row's: by the logits, one window after another."""
    model, tokenizer = READ(trained[1] / "language_model.keras")
    text, args = "".join(LINES[:3]), parse(*TINY)
    ids = language_model.encode([text], tokenizer)
    padded = [ids[-1], *ids]
    nats, count = 0.0, 0
    for start in range(0, len(ids), 8):
        row = padded[start : start + 17]
        if len(row) <= 9 and start:
            break
        inputs = np.zeros((1, 16), "int32")
        inputs[0, : len(row) - 1] = row[:-1]
        logits = np.asarray(model.predict(inputs, verbose=0))[0]
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        for place in range(8 if start else 0, len(row) - 1):
            nats, count = nats - log_probs[place, row[place + 1]], count + 1
    assert count == len(ids)
    found = language_model.bits_per_character(model, ids, len(text), args)
    assert found == pytest.approx(nats / math.log(2) / len(text), rel=1e-4)


def test_the_floor_is_what_xz_adds():
    assert language_model.xz_bits_per_character("abc" * 50, "x") == 8 * (
        len(lzma.compress(b"abc" * 50 + b"x")) - len(lzma.compress(b"abc" * 50))
    )


def test_a_text_is_held_out_and_so_is_its_vocabulary(tmp_path, monkeypatch):
    """Planted: a word of the end of the text, which must not become a piece of the vocabulary."""
    (tmp_path / "text.txt").write_text("".join(LINES) + "zyzzyva\n" * 12, encoding="utf-8")
    args = parse("--data", tmp_path / "text.txt", *TINY, "--output", tmp_path)
    train, valid, test = language_model.read_texts(args)
    assert "".join(train + valid + test) == (tmp_path / "text.txt").read_text()
    assert "zyzzyva" in test[0] and "zyzzyva" not in train[0]
    kept = []
    monkeypatch.setattr(language_model.tasks, "fit", lambda *_, **__: {"loss": [1.0]})
    monkeypatch.setattr(kt.data, "save_text_model", lambda model, tokenizer, path: kept.append(tokenizer))
    language_model.train(train, valid, args)
    assert len(kept[0].encode("zyzzyva")[0]) > 4 and len(kept[0].encode("number")[0]) == 1


def test_texts_come_from_files_folders_and_data_sets(tmp_path, monkeypatch, capsys):
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text(f"text {number}\n")
    (tmp_path / "copy.txt").write_text("text 3\n")
    (tmp_path / "broken.txt").write_bytes(b"text \xff\n")
    parts = language_model.read_texts(parse("--data", tmp_path))
    assert [len(set(part)) for part in parts] == [8, 1, 1] and len(set.union(*map(set, parts))) == 10
    assert "left out: 1 of 12 files" in capsys.readouterr().out
    files = [tmp_path / f"{number}.txt" for number in range(3)]
    given = parse("--data", files[0], "--valid", files[1], "--test", files[2])
    assert language_model.read_texts(given) == (["text 0\n"], ["text 1\n"], ["text 2\n"])
    monkeypatch.setattr(language_model.reading, "tfds_rows", lambda *_: [(b"a",), (b"b",), (b"c",)])
    assert sorted(sum(language_model.read_texts(parse("--tfds", "poems")), [])) == ["a", "b", "c"]
    monkeypatch.setattr(language_model.reading, "tfds_rows", lambda *_: [("".join(LINES).encode(),)])
    parts = language_model.read_texts(parse("--tfds", "one long text"))
    assert [len(part) for part in parts] == [1, 1, 1] and "".join(sum(map(list, parts), [])) == "".join(LINES)


def test_every_text_ends_and_the_limit_is_that_of_all():
    tokenizer = kt.data.train_tokenizer(LINES, 300)
    texts = language_model.reading.cut(["ab\n", "cd\n", "ef\n"], 5)
    assert texts == ["ab\n", "cd"]
    ids = language_model.encode(texts, tokenizer)
    assert ids.count(tokenizer.stop_token_id) == 2 and ids[-1] == tokenizer.stop_token_id


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_both_families(family):
    tokenizer = kt.data.train_tokenizer(LINES, 300)
    model = language_model.build(tokenizer, parse("--model", family, *TINY))
    assert model.name == family and model.output_shape == (None, None, tokenizer.vocabulary_size)


def test_input_that_cannot_be_used_ends_with_one_line(tmp_path):
    for name, data in (("empty.txt", b"\n"), ("broken.txt", b"one\n\xff\n"), ("one.txt", b"one line")):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "folder").mkdir()
    for options, message in (
        (["--data", tmp_path / "no.txt"], "no.txt is neither a file nor a folder"),
        (["--data", tmp_path / "empty.txt"], "empty.txt is empty"),
        (["--data", tmp_path / "broken.txt"], "broken.txt, line 2: not UTF-8"),
        (["--data", tmp_path / "one.txt"], "one.txt has 1 lines, too few to hold some out"),
        (["--data", tmp_path / "folder"], "there is no file to read"),
    ):
        with pytest.raises(SystemExit) as stopped:
            language_model.main(parse(*options, "--output", tmp_path))
        assert re.search(f"^error: .*{message}", stopped.value.code), stopped.value.code
    for options in (["--valid", "a"], ["--valid", "a", "--test", "b"], ["--data", "a", "--tfds", "b"]):
        with pytest.raises(SystemExit):
            parse(*options)


def test_the_script_stays_short_enough_to_copy():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 150
