"""The text-classifying script, from a table to its accuracy, from nothing and from a pretrained model."""

import functools
import json
import re
from pathlib import Path

import pytest
from matplotlib.image import imread

import classify_text
import encoder
import keras_transformer as kt
import names
from tests import hurry

SCRIPT = Path(classify_text.__file__)
TINY = "--vocabulary-size 300 --max-tokens 12 --batch-size 8 --layers 1 --heads 2 --hidden-dim 16".split()
ROWS = [(f"{what} number {i}", kind) for i in range(30) for what, kind in (("a cat", "animal"), ("an oak", "plant"))]
READ = functools.cache(kt.data.load_text_model)


def parse(*options):
    return classify_text.parse_arguments([str(option) for option in options])


def write_tsv(path, rows, broken=()):
    path.write_text("\n".join(["text\tlabel", *("\t".join(row) for row in rows), *broken]), encoding="utf-8")
    return path


def run(*options):
    """What a training of a few steps printed."""
    printed = []
    with pytest.MonkeyPatch.context() as patch:
        hurry.train_few_steps(patch, 3)
        patch.setattr("builtins.print", lambda *args, **_: printed.append(" ".join(map(str, args))))
        patch.setattr(kt.data, "load_text_model", READ)
        classify_text.main(parse(*options, *TINY))
    return "\n".join(printed)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a training on a file with broken rows printed, the file and the folder that it wrote to."""
    folder = tmp_path_factory.mktemp("classify_text")
    long = (" ".join("abcdefghijklmnopqrst"), "plant")
    data = write_tsv(folder / "rows.tsv", [*ROWS, long], ["no label\t", "one column"])
    return run("--data", data, "--output", folder / "outputs"), data, folder / "outputs"


FLOORS = r"accuracy \d\.\d{4} \(most frequent class\)\naccuracy \d\.\d{4} \(logistic regression\)"
SCORE = r"accuracy \d\.\d{4} of 6 texts"


def test_training_writes_and_scores_the_model(trained):
    printed, _, output = trained
    skipped = "1 wrong number of columns, the first in line 64; 1 empty side, the first in line 63"
    assert f"61 pairs, header text -> label, 2 rows skipped ({skipped})" in printed
    assert "49 rows to train on, 6 to validate, 6 to test" in printed
    assert re.search(r"1 of \d+ texts have more than 10 tokens: their ends are not read", printed)
    assert len(re.findall(FLOORS, printed)) == len(re.findall(SCORE, printed)) == 1 and "not pretrained" not in printed
    written = [f"text.{end}" for end in ("history.png", "keras", "png", "settings.json", "tokenizer.json")]
    assert sorted(path.name for path in output.iterdir()) == written
    assert imread(output / "text.png").ndim == 3
    assert json.loads((output / "text.settings.json").read_text()) == {"classes": ["animal", "plant"]}


def test_the_saved_model_has_the_same_score_and_classifies(trained, capsys, monkeypatch):
    printed, data, output = trained
    monkeypatch.setattr(kt.data, "load_text_model", READ)
    saved = ("--saved", output / "text.keras", "--output", output, *TINY)
    classify_text.main(parse("--data", data, *saved))
    again = capsys.readouterr().out
    assert re.findall(SCORE, again) == re.findall(SCORE, printed) and "parameters" not in again
    classify_text.main(parse(*saved, "--classify", "a cat", "an oak number 7"))
    assert {*capsys.readouterr().out.split()} <= {"animal", "plant"}


def test_a_file_to_test_with_is_enough_for_a_saved_model(trained, capsys, monkeypatch, tmp_path):
    """All of it counts, and there is nothing to compare with."""
    monkeypatch.setattr(kt.data, "load_text_model", READ)
    test = write_tsv(tmp_path / "test.tsv", ROWS[:9])
    options = ("--saved", trained[2] / "text.keras", "--test", test, "--output", tmp_path, *TINY)
    classify_text.main(parse(*options))
    printed = capsys.readouterr().out
    assert re.search(r"accuracy \d\.\d{4} of 9 texts", printed) and "most frequent" not in printed


def test_a_pretrained_model_stands_beside_one_that_is_not(trained, tmp_path):
    """The twin has the same shape and other weights; the vocabulary is that of the pretrained one."""
    tokenizer = kt.data.train_tokenizer(["a cat, an oak, a number"] * 3, 290, extra_tokens=1)
    bert = kt.models.bert(None, tokenizer.vocabulary_size, 12, 2, 1, 16, 2, 32, with_segments=True)
    pretrained = kt.models.with_head(bert, "pretraining", masked_positions=True)
    kt.data.save_text_model(pretrained, tokenizer, tmp_path / "masked_lm.keras")
    kept = []
    with pytest.MonkeyPatch.context() as patch:
        fit = classify_text.tasks.fit

        def remember(model, *arguments, **options):
            kept.append((model, model.get_layer("embedding").get_weights()[0]))
            return fit(model, *arguments, **options)

        patch.setattr(classify_text.tasks, "fit", remember)
        printed = run("--data", trained[1], "--output", tmp_path, "--from", tmp_path / "masked_lm.keras")
    assert len(re.findall(r"accuracy \d\.\d{4} \(not pretrained\)\naccuracy", printed)) == 1
    (twin, new), (model, old) = kept
    table = READ(tmp_path / "masked_lm.keras")[0].get_layer("embedding").get_weights()[0]
    assert twin.count_params() == model.count_params() and new.shape == old.shape and (new != old).any()
    assert model.get_layer("embedding").get_weights()[0].shape == table.shape
    _, loaded = READ(tmp_path / "text.keras")
    assert loaded.encode("an oak") == tokenizer.encode("an oak")


def test_names_belong_to_one_language(capsys):
    rows = names.names_by_language(20_000)
    assert len({name for name, _ in rows}) == len(rows) > 10_000 and ("Deutschland", "de") in rows
    assert {language for _, language in rows} == {*names.LANGUAGES} and ("Angola", "de") not in rows
    assert re.search(r"[\d,]+ of [\d,]+ names are those of several languages: left out", capsys.readouterr().out)
    assert names.names_by_language(50) == rows[:50]


def test_no_held_out_text_is_trained_on_and_none_is_in_the_vocabulary(tmp_path, monkeypatch):
    """Planted: rows that two files have, and a word of the test file."""
    test = [*ROWS[:2], ("A CAT number  1", "animal"), ("zyzzyva " * 9, "plant")]
    files = [write_tsv(tmp_path / name, rows) for name, rows in zip("abc", (ROWS, [ROWS[0], ROWS[4]], test))]
    args = parse("--data", files[0], "--valid", files[1], "--test", files[2], *TINY)
    sources = (classify_text.read_rows, None, None, None)
    parts = classify_text.reading.read_parts(args, *sources, key=lambda row: row[0])
    texts = [{" ".join(text.lower().split()) for text, _ in part} for part in parts]
    assert [len(part) for part in parts] == [60 - 4, 1, 4] and not texts[0] & (texts[1] | texts[2])
    kept = []
    monkeypatch.setattr(classify_text.tasks, "fit", lambda *_, **__: {"loss": [1.0]})
    monkeypatch.setattr(kt.inspect, "plot_history", lambda *_: None)
    monkeypatch.setattr(encoder, "save", lambda model, tokenizer, path, **_: kept.append(tokenizer))
    classify_text.train(*parts[:2], tmp_path / "x.keras", args)
    assert len(kept[0].encode("zyzzyva")[0]) > 4 and len(kept[0].encode("number")[0]) == 1


def test_a_data_set(monkeypatch, capsys):
    rows = [(b"text %d" % i, i % 2) for i in range(9)] + [(b" ", 1)]
    monkeypatch.setattr(classify_text.reading, "tfds_rows", lambda name, *columns, limit: rows)
    args = parse("--tfds", "news", "--columns", "body", "kind")
    sources = (None, args.columns, classify_text.row_of_data_set, None)
    parts = classify_text.reading.read_parts(args, *sources, key=lambda row: row[0])
    assert sorted(sum(parts, [])) == [(f"text {i}", str(i % 2)) for i in range(9)]
    assert "1 of 10 rows of news lack something: left out" in capsys.readouterr().out


def test_input_that_cannot_be_used_ends_with_one_line(trained, tmp_path):
    (tmp_path / "empty.tsv").write_text("")
    other = write_tsv(tmp_path / "other.tsv", [("a stone", "mineral"), ("a mouse", "animal")])
    for options, message in (
        (["--data", tmp_path / "no.tsv"], "Cannot read .*no.tsv"),
        (["--data", tmp_path / "empty.tsv"], "empty.tsv.*is empty"),
        (["--data", trained[1], "--test", other], r"nothing to train on of the classes \['mineral'\]. Known are:"),
        (["--data", write_tsv(tmp_path / "two.tsv", ROWS[:2])], "2 different rows are too few"),
        (["--data", write_tsv(tmp_path / "same.tsv", ROWS[::2])], "there is one class alone, 'animal'"),
        (["--saved", tmp_path / "no.keras", "--classify", "text"], "Cannot read a model from .*no.keras"),
    ):
        with pytest.raises(SystemExit) as stopped, pytest.MonkeyPatch.context() as patch:
            if "same.tsv" not in str(options):
                patch.setattr(classify_text, "train", lambda *_: None)
            output = trained[2] if "--test" in options else tmp_path
            classify_text.main(parse(*options, "--output", output, *TINY))
        assert re.search(f"^error: .*{message}", stopped.value.code), stopped.value.code
    for options in (["--valid", "a"], ["--classify", "text"], ["--data", "a", "--tfds", "b"], ["--freeze", "1"]):
        with pytest.raises(SystemExit):
            parse(*options)


def test_the_script_stays_short_enough_to_copy():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 150
