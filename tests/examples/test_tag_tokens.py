"""The tagging script, from a CoNLL file to entity F1."""

import functools
import json
import re
import types
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import encoder
import keras_transformer as kt
import labelled_words
import tag_tokens
from labelled_words import Row
from tests import hurry

SCRIPT = Path(tag_tokens.__file__)
TINY = "--vocabulary-size 300 --max-tokens 16 --batch-size 8 --layers 1 --heads 2 --hidden-dim 16".split()
TEXTS = [[("in", "O"), (f"house{i}", "B-PLACE"), ("park", "I-PLACE"), ("Ann", "B-NAME")] for i in range(40)]
LONG = [("word", "O")] * 30
READ = functools.cache(kt.data.load_text_model)


def parse(*options):
    return tag_tokens.parse_arguments([str(option) for option in options])


def write(path, texts):
    path.write_text("\n\n".join("\n".join("\t".join(word) for word in text) for text in texts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a training of a few steps on two files printed, the first of them and the folder that it wrote to."""
    folder = tmp_path_factory.mktemp("tag_tokens")
    data, printed = write(folder / "rows.conll", [*TEXTS, LONG]), []
    extra = write(folder / "extra.conll", [[("on", "O"), (f"road{i}", "B-ROAD")] for i in range(9)])
    with pytest.MonkeyPatch.context() as patch:
        hurry.train_few_steps(patch, 3)
        patch.setattr("builtins.print", lambda *args, **_: printed.append(" ".join(map(str, args))))
        patch.setattr(kt.data, "load_text_model", READ)
        options = ("--extra", extra, "--lowercase", "--output", folder / "outputs")
        tag_tokens.main(parse("--data", data, *options, *TINY))
    return "\n".join(printed), data, folder / "outputs"


SCORE = r"entity F1 (\d\.\d{4}) of 4 texts \(most frequent labels: (\d\.\d{4})\)"


def test_training_writes_and_scores_the_model(trained):
    printed, _, output = trained
    assert "33 rows to train on, 4 to validate, 4 to test" in printed
    assert len(re.findall(r"1 of \d+ texts have more than 16 tokens: their ends are not read", printed)) == 1
    assert len(re.findall(r"bert: [\d,]+ parameters", printed)) == 2  # on the extra rows, and on the others
    assert len(re.findall(SCORE, printed)) == 1
    names = [f"tagger.{end}" for end in ("keras", "png", "settings.json", "tokenizer.json")]
    assert sorted(path.name for path in output.iterdir()) == names
    assert imread(output / "tagger.png").ndim == 3
    labels = ["B-NAME", "B-PLACE", "B-ROAD", "I-PLACE", "O"]
    expected = {"classes": labels, "lowercase": True, "word": r"\S+"}
    assert json.loads((output / "tagger.settings.json").read_text()) == expected


def test_the_saved_model_has_the_same_score_and_tags(trained, capsys, monkeypatch):
    printed, data, output = trained
    monkeypatch.setattr(kt.data, "load_text_model", READ)
    saved = ("--saved", output / "tagger.keras", "--output", output, *TINY)
    tag_tokens.main(parse("--data", data, *saved))
    again = capsys.readouterr().out
    assert re.findall(SCORE, again) == re.findall(SCORE, printed) and "parameters" not in again
    tag_tokens.main(parse(*saved, "--tag", "IN the park, Ann", "in THE PARK, ann"))
    lines = capsys.readouterr().out.splitlines()
    first, second = ([word.rpartition("/") for word in line.split(" ")] for line in lines)
    assert [word for word, _, _ in first] == ["IN", "the", "park,", "Ann"]
    assert [label for _, _, label in first] == [label for _, _, label in second]


def test_labels_stand_at_the_first_piece_of_a_word():
    tokenizer = kt.data.train_tokenizer(["in the park"] * 3, 270, extra_tokens=1)
    rows = [Row(["in", "Oslo", "park"], ["O", "B-X", "I-X"], []), Row(["park"] * 20, ["B-X"] * 20, [])]
    inputs, labels, begins = tag_tokens.arrays(rows, tokenizer, ["B-X", "I-X", "O"], parse(*TINY))
    ids = [tokenizer.encode(word)[0] for word in rows[0].words]
    assert inputs["token_ids"][0][: 2 + sum(map(len, ids))].tolist() == [1, *ids[0], *ids[1], *ids[2], 2]
    places = np.cumsum([1, *map(len, ids)])
    assert len(ids[1]) > 1 and np.flatnonzero(begins[0]).tolist() == places[:3].tolist()
    assert labels[0][places[:3]].tolist() == [2, 0, 1]
    per_word = len(ids[2])
    assert begins[1].sum() == 14 // per_word and inputs["token_ids"].shape == (2, 2 + per_word * (14 // per_word))
    fixed = types.SimpleNamespace(predict=lambda inputs, verbose: np.eye(3)[np.zeros(labels.shape, int)])
    assert tag_tokens.tag(fixed, tokenizer, ["B-X", "I-X", "O"], rows, parse(*TINY)) == [
        ["B-X"] * 3,
        ["B-X"] * (14 // per_word) + ["O"] * (20 - 14 // per_word),
    ]


def test_the_floor_by_hand():
    known = [Row(["a", "b", "a"], ["O", "B-X", "B-X"], []), Row(["a", "c"], ["O", "O"], [])]
    assert tag_tokens.most_frequent(known, [Row(["a", "b", "new"], [], [])], False) == [["O", "B-X", "O"]]
    assert tag_tokens.most_frequent(known, [Row(["B", "A"], [], [])], False) == [["O", "O"]]
    assert tag_tokens.most_frequent(known, [Row(["B", "A"], [], [])], True) == [["B-X", "O"]]


def test_no_held_out_text_is_trained_on_and_none_is_in_the_vocabulary(tmp_path, monkeypatch):
    """Planted: texts that the files have in common, the extra one too, and a word of the test file."""
    test = [*TEXTS[:3], [("zyzzyva" * 9, "B-NAME")] * 9]
    texts = {"a": TEXTS, "b": TEXTS[2:5], "c": test, "d": [*TEXTS[2:7], [("new", "O")]]}
    files = {name: write(tmp_path / name, rows) for name, rows in texts.items()}
    options = [f"--{name}={files[key]}" for name, key in zip(("data", "valid", "test", "extra"), "abcd")]
    kept = []
    monkeypatch.setattr(tag_tokens, "train", lambda *parts: kept.extend(parts))
    with pytest.raises(SystemExit):  # nothing has been saved
        tag_tokens.main(parse(*options, "--output", tmp_path, *TINY))
    train, valid, extra, classes, path, args = kept
    assert [len(part) for part in (train, valid, extra)] == [35, 2, 3]
    assert classes == ["B-NAME", "B-PLACE", "I-PLACE", "O"]
    monkeypatch.undo()
    monkeypatch.setattr(tag_tokens.tasks, "fit", lambda *_, **__: {"loss": [1.0]})
    monkeypatch.setattr(kt.inspect, "plot_history", lambda *_: None)
    monkeypatch.setattr(encoder, "save", lambda model, tokenizer, path, **_: kept.append(tokenizer))
    tag_tokens.train(*kept)
    assert len(kept[-1].encode("zyzzyva")[0]) > 4 and len(kept[-1].encode("park")[0]) == 1


def test_conll_files_and_data_sets(tmp_path, monkeypatch):
    text = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\r\n\n\nit's\tall\tO\n"
    (tmp_path / "a").write_bytes(text.encode())
    rows = labelled_words.read_conll(tmp_path / "a")
    assert [row[:2] for row in rows] == [(["EU", "rejects"], ["B-ORG", "O"]), (["it's"], ["O"])]
    assert rows[1].places == [f"{tmp_path / 'a'}, line 7"] and rows[0].text == "EU rejects"
    monkeypatch.setattr(labelled_words.reading, "tfds_classes", lambda name, feature: ["O", "B-X"])
    found = labelled_words.row_of_data_set("news", "ner")([b"a", b"b"], [1, 0])
    assert found == (["a", "b"], ["B-X", "O"], ["news", "news"])


def test_statements_of_python(tmp_path, monkeypatch, capsys):
    source = 'if x == 1:  # why not\n    print("two words", y)\n' + "z = [" + "0, " * 30 + "]\n"
    (tmp_path / "a.py").write_text(source)
    monkeypatch.setattr(labelled_words.reading, "python_files", lambda: [tmp_path / "a.py"])
    first, second = labelled_words.read_statements(9)
    assert first.words == ["if", "x", "=", "=", "1", ":", "#", "why", "not"]
    expected = ["B-KEYWORD", "B-NAME", "O", "O", "B-NUMBER", "O", "B-COMMENT", "I-COMMENT", "I-COMMENT"]
    assert first.labels == expected
    assert second.text == 'print ( " two words " , y )'
    assert second.labels[2:6] == ["B-STRING", "I-STRING", "I-STRING", "I-STRING"]
    assert second.places[0] == f"{tmp_path / 'a.py'}, line 2"
    assert "1 of 3 statements have more than 40 words: left out" in capsys.readouterr().out


def test_input_that_cannot_be_used_ends_with_one_line(trained, tmp_path):
    words = "one\tO\n"
    for name, text in (
        ("empty", ""),
        ("column", f"{words}\n{words}two\n"),
        ("noun", f"{words}two NOUN\n"),
        ("two", f"{words}\nb\tO\n"),
        ("unknown", "in\tO\n\nat\tO\nMars\tB-PLANET\n"),
    ):
        (tmp_path / name).write_text(text)
    data = ["--data", trained[1], "--test", tmp_path / "unknown"]
    saved = ["--saved", trained[2] / "tagger.keras"]
    for options, message in (
        (["--data", tmp_path / "no"], "No such file.*no"),
        (["--data", tmp_path / "empty"], "empty is empty"),
        (["--data", tmp_path / "column"], "column, line 4: a word and O, B-X or I-X are needed. Received: 'two'"),
        (["--data", tmp_path / "noun"], "noun, line 2: a word and O, B-X or I-X are needed. Received: 'two NOUN'"),
        (["--data", tmp_path / "two"], "2 different rows are too few"),
        (data, "unknown, line 4: there is nothing to train on of the label 'B-PLANET'"),
        ([*data, *saved], "unknown, line 4: there is nothing to train on of the label 'B-PLANET'"),
        (["--saved", tmp_path / "no.keras", "--tag", "text"], "Cannot read a model from .*no.keras"),
    ):
        with pytest.raises(SystemExit) as stopped:
            tag_tokens.main(parse(*options, "--output", tmp_path, *TINY))
        assert re.search(f"^error: .*{message}", stopped.value.code), stopped.value.code
    for options in (["--valid", "a"], ["--tag", "text"], ["--data", "a", "--tfds", "b"]):
        with pytest.raises(SystemExit):
            parse(*options)


def test_the_script_stays_short_enough_to_copy():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 150
