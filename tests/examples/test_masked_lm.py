"""The masked-language-model script, from a text to the accuracy of hidden tokens, and texts with holes."""

import functools
import re
import types
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import encoder
import keras_transformer as kt
import masked_lm
import reading
from tests import hurry

SCRIPT = Path(masked_lm.__file__)
TINY = "--vocabulary-size 400 --max-tokens 16 --batch-size 8 --layers 1 --heads 2 --hidden-dim 16".split()
TEXTS = [f"This is text {i}. It has a cat and a dog! The end of {i} is here." for i in range(40)]
READ = functools.cache(kt.data.load_text_model)


def parse(*options):
    return masked_lm.parse_arguments([str(option) for option in options])


def write(path, texts):
    path.write_text("\n\n".join(texts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a training of a few steps on a text printed, the text and the folder that it wrote to."""
    folder = tmp_path_factory.mktemp("masked_lm")
    data, printed = write(folder / "text.txt", [*TEXTS, "One sentence alone"]), []
    with pytest.MonkeyPatch.context() as patch:
        hurry.train_few_steps(patch, 3)
        patch.setattr("builtins.print", lambda *args, **_: printed.append(" ".join(map(str, args))))
        patch.setattr(kt.data, "load_text_model", READ)
        masked_lm.main(parse("--data", data, "--output", folder / "outputs", *TINY))
    return "\n".join(printed), data, folder / "outputs"


SCORES = r"accuracy \d\.\d{4} of \d+ hidden tokens \(most frequent: \d\.\d{4}\)\naccuracy \d\.\d{4} of 4 pairs"


def test_training_writes_and_scores_the_model(trained):
    printed, _, output = trained
    assert "37 rows to train on, 2 to validate, 2 to test" in printed and re.search("bert: [\\d,]+ parameters", printed)
    assert len(re.findall(r"1 of \d+ documents are one sentence", printed)) == 1
    assert re.search(r"\d of 4 pairs have 16 tokens or more, and are cut", printed)
    assert len(re.findall(SCORES, printed)) == 1
    names = ["masked_lm.keras", "masked_lm.png", "masked_lm.settings.json", "masked_lm.tokenizer.json"]
    assert sorted(path.name for path in output.iterdir()) == names
    assert imread(output / "masked_lm.png").ndim == 3


def test_the_saved_model_has_the_same_score_and_fills_holes(trained, capsys, monkeypatch):
    printed, data, output = trained
    monkeypatch.setattr(kt.data, "load_text_model", READ)
    saved = ("--saved", output / "masked_lm.keras", "--output", output, *TINY)
    masked_lm.main(parse("--data", data, *saved))
    again = capsys.readouterr().out
    assert re.findall(SCORES, again) == re.findall(SCORES, printed) and "parameters" not in again
    masked_lm.main(parse(*saved, "--fill", "no hole", "a ___ hole"))
    first, second = capsys.readouterr().out.split("\n", 1)
    assert first == "no hole" and second.startswith("a") and second.endswith(" hole\n") and "___" not in second


def test_holes_are_filled():
    tokenizer = kt.data.train_tokenizer(TEXTS, 400, extra_tokens=1)
    cat, dog = (tokenizer.encode(word)[0][0] for word in ("cat", "dog"))
    asked = []

    def predict(inputs, verbose):
        asked.append(inputs)
        return {"masked_lm": np.eye(400)[[[cat, dog] + [cat] * 30]]}

    model, args = types.SimpleNamespace(predict=predict), parse(*TINY)
    assert masked_lm.fill(model, tokenizer, "It has a ___ and a ___ !", args) == "It has a cat and a dog !"
    ids = asked[0]["token_ids"][0]
    assert asked[0]["masked_positions"][0].tolist() == np.flatnonzero(ids == 4).tolist()
    assert masked_lm.fill(model, tokenizer, "___ " * 14, args) == " ".join(["cat", "dog"] + ["cat"] * 12)
    assert ids.shape == (16,) and asked[1]["token_ids"][0, -1] == 2
    with pytest.raises(ValueError, match="15 tokens are more than 14: '___"):
        masked_lm.fill(model, tokenizer, "___ " * 15, args)


def test_only_hidden_tokens_become_logits():
    tokenizer = kt.data.train_tokenizer(TEXTS, 400, extra_tokens=1)
    args = parse(*TINY, "--max-tokens", 40)
    data = masked_lm.MaskedPairs(TEXTS, tokenizer, args, again=True)
    assert len(data) == len(data.pairs) // 8 == 10
    inputs, labels, weights = data[3]
    places, follows = inputs["masked_positions"], labels["next_sentence"]
    assert places.shape == (8, 10) and (weights["masked_lm"] == (places >= 0)).all() and (places >= 0).any()
    for row, pair in enumerate(data.pairs[24:32]):
        original = np.asarray(pair.token_ids)
        hidden = places[row][places[row] >= 0]
        assert (labels["masked_lm"][row][: len(hidden)] == original[hidden]).all()
        read = inputs["token_ids"][row][: len(original)]
        changed = np.flatnonzero(read != original)
        assert {*changed} <= {*hidden} and not {*original[hidden]} & {1, 2}
        assert inputs["segment_ids"][row][: len(original)].tolist() == pair.segment_ids
        assert follows[row] == 1 - pair.is_next  # "follows" is class 0
        assert (encoder.inputs([pair.token_ids], tokenizer)["segment_ids"][0] == pair.segment_ids).all()
    before = data[3][0]["token_ids"]
    data.on_epoch_end()
    assert (data[3][0]["token_ids"] != before).any()


def test_documents_are_blocks_or_lines(tmp_path):
    for name, text, expected in (
        ("blocks.txt", "one\ntwo\n\n \nthree\n", ["one two", "three"]),
        ("lines.txt", "a\n" * 60 + "\nb  c\n", ["a"] * 60 + ["b c"]),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert masked_lm.reading.read_documents(tmp_path / name) == expected
    assert len(masked_lm.reading.read_documents(tmp_path)) == 63


def test_no_held_out_text_is_trained_on_and_none_is_in_the_vocabulary(tmp_path, monkeypatch):
    """Planted: a document that all files have, and a word of the test file."""
    files = [write(tmp_path / name, texts) for name, texts in (("a", TEXTS), ("b", TEXTS[:3]), ("c", TEXTS[1:3]))]
    with open(files[2], "a", encoding="utf-8") as file:
        file.write(" Zyzzyva. zyzzyva. " * 9)
    args = parse("--data", files[0], "--valid", files[1], "--test", files[2], *TINY, "--output", tmp_path)
    kept = []
    monkeypatch.setattr(masked_lm.tasks, "fit", lambda model, train, valid, *_, **__: kept.append((train, valid)))
    monkeypatch.setattr(kt.inspect, "plot_history", lambda *_: None)
    monkeypatch.setattr(kt.data, "save_text_model", lambda model, tokenizer, path: kept.append(tokenizer))
    with pytest.raises(SystemExit):  # nothing has been saved
        masked_lm.main(args)
    (train, valid), tokenizer = kept
    assert (len(train.documents), len(valid.documents)) == (37, 2)
    assert len(tokenizer.encode("zyzzyva")[0]) > 4 and len(tokenizer.encode("cat")[0]) == 1


def test_what_it_has_read_is_not_held_out_by_those_that_go_on_from_it(trained):
    """Planted: texts of its training among those to test with."""
    read = reading.settings(trained[2] / "masked_lm.keras")["read"]
    known = [text for text in TEXTS if reading.same(text) in read]
    assert len(read) == 37 and len(known) + (reading.same("One sentence alone") in read) == 37
    args = parse("--from", trained[2] / "masked_lm.keras", "--data", "a", "--test", "b")
    rows = {"a": [f"new {i}" for i in range(9)] + known[:1], "b": [*known[:3], "other"]}
    parts = reading.read_parts(args, lambda path: rows[str(path)], None, None, None, key=str)
    assert parts[2] == ["other"] and not {*parts[1]} & {*known}
    with pytest.raises(ValueError, match="too few rows"):
        rows["b"] = known[:3]
        reading.read_parts(args, lambda path: rows[str(path)], None, None, None, key=str)


def test_it_goes_on_from_a_saved_model(trained, monkeypatch):
    monkeypatch.setattr(kt.data, "load_text_model", READ)
    args = parse(*TINY, "--from", trained[2] / "masked_lm.keras", "--max-tokens", 99)
    model, tokenizer = encoder.start([], args)
    assert args.max_tokens == 16 and tokenizer.extra_token_ids == [4]
    assert kt.models.with_head(model, "pretraining", masked_positions=True).output.keys() == model.output.keys()


def test_input_that_cannot_be_used_ends_with_one_line(tmp_path):
    for name, data in (("empty.txt", b"\n"), ("broken.txt", b"one\n\xff\n"), ("one.txt", b"one line")):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "lines.txt").write_text("".join(f"line {i}\n" for i in range(40)))
    (tmp_path / "folder").mkdir()
    tokenizer = kt.data.train_tokenizer(TEXTS, 300)
    sizes = {"num_layers": 1, "hidden_dim": 8, "num_heads": 2, "intermediate_dim": 8, "max_sequence_length": 9}
    kt.data.save_text_model(kt.models.gpt(None, tokenizer.vocabulary_size, **sizes), tokenizer, tmp_path / "gpt.keras")
    for options, message in (
        (["--data", tmp_path / "no.txt"], "no.txt"),
        (["--data", tmp_path / "empty.txt"], "empty.txt is empty"),
        (["--data", tmp_path / "broken.txt"], "broken.txt, line 2: not UTF-8"),
        (["--data", tmp_path / "one.txt"], "1 different rows are too few"),
        (["--data", tmp_path / "lines.txt"], "two documents of several sentences are needed"),
        (["--data", tmp_path / "folder"], "there is no file to read"),
        (["--saved", tmp_path / "no.keras", "--fill", "a ___"], "Cannot read a model from .*no.keras"),
        (["--saved", tmp_path / "gpt.keras", "--fill", "a ___"], "gpt.keras holds no BERT with segments"),
    ):
        with pytest.raises(SystemExit) as stopped:
            masked_lm.main(parse(*options, "--output", tmp_path))
        assert re.search(f"^error: .*{message}", stopped.value.code), stopped.value.code
    for options in (["--test", "b"], ["--data", "a", "--tfds", "b"], ["--fill", "a"], ["--saved", "a", "--from", "b"]):
        with pytest.raises(SystemExit):
            parse(*options)


def test_the_script_stays_short_enough_to_copy():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 150
