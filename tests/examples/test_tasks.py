"""What the scripts share: what is held out is held out, and files that cannot be read are named."""

import re
import sys
import types
from pathlib import Path

import pytest

import docstrings
import reading
import tasks
from docstrings import find_docstrings, find_parameters, find_texts

FOLDER = Path(tasks.__file__).parent


def test_copies_of_a_row_are_in_one_part():
    rows = [(f"text {i}", copy) for i in range(40) for copy in range(3)]
    rows += [("  TEXT   7 ", 3), ("Text 7", 4)]  # planted: the same text to a reader
    parts = reading.split(rows, key=lambda row: row[0], valid=0.1, test=0.2)
    assert sorted(row for part in parts for row in part) == sorted(rows)
    texts = [{" ".join(text.casefold().split()) for text, _ in part} for part in parts]
    assert [len(part) for part in texts] == [28, 4, 8] and len(set.union(*texts)) == 40


def test_a_split_does_not_depend_on_the_order():
    rows = [f"text {i}" for i in range(50)]
    parts = reading.split(rows, str)
    assert [sorted(part) for part in reading.split(rows[::-1], str)] == [sorted(part) for part in parts]
    assert [len(part) for part in reading.split(rows[:3], str)] == [1, 1, 1]
    assert reading.split([b"a", b"A", b"b"], bytes)  # bytes are taken as they are
    with pytest.raises(ValueError, match="1 different rows are too few"):
        reading.split(["a", " A"], str)


def test_a_broken_text_is_named_with_its_line(tmp_path):
    (tmp_path / "good.txt").write_bytes(b"\xef\xbb\xbfgood\n")
    (tmp_path / "broken.txt").write_bytes(b"one\ntwo\nthr\xff\n")
    (tmp_path / "empty.txt").write_text(" \n")
    assert reading.read_text(tmp_path / "good.txt") == "good\n"
    with pytest.raises(ValueError, match=r"broken.txt, line 3: not UTF-8"):
        reading.read_text(tmp_path / "broken.txt")
    with pytest.raises(ValueError, match=r"empty.txt is empty"):
        reading.read_text(tmp_path / "empty.txt")


def test_of_many_files_the_broken_ones_are_counted_and_named(tmp_path, capsys):
    for name, data in (("a", b"text"), ("b", b"\xff"), ("c", b""), ("d", b"more")):
        (tmp_path / name).write_bytes(data)
    paths = sorted(tmp_path.iterdir())
    assert reading.read_all([*paths, tmp_path / "e"]) == [(paths[0], "text"), (paths[3], "more")]
    printed = capsys.readouterr().out
    assert printed.startswith("left out: 3 of 5 files; ")
    assert all(text in printed for text in ("b, line 1: not UTF-8", "c is empty", "No such file"))
    for files, message in (([], "there is no file to read"), (paths[1:2], "no file could be read")):
        with pytest.raises(ValueError, match=message):
            reading.read_all(files)


def test_rows_of_a_data_set(monkeypatch):
    rows = [{"text": b"one", "label": 1}, {"text": b"two", "label": 0}]
    asked = []
    fake = types.SimpleNamespace(load=lambda name, split: asked.append((name, split)) or rows, as_numpy=iter)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", fake)
    assert list(reading.tfds_rows("reviews", "label", "text", limit=9)) == [(1, b"one"), (0, b"two")]
    assert list(reading.tfds_rows("reviews", "text")) == [(b"one",), (b"two",)]
    assert list(reading.tfds_rows("reviews", "label", limit=1)) == [(1,)]
    assert asked == [("reviews", "train")] * 3  # a slice longer than the data set is an error there
    with pytest.raises(ValueError, match="'reviews' has no feature 'image'. It has:.*label.*text"):
        list(reading.tfds_rows("reviews", "image"))
    feature = types.SimpleNamespace(feature=types.SimpleNamespace(names=["O", "B-X"]))
    fake.builder = lambda name: types.SimpleNamespace(info=types.SimpleNamespace(features={"ner": feature}))
    assert reading.tfds_classes("news", "ner") == ["O", "B-X"]
    fake.load = None
    with pytest.raises(ValueError, match="'reviews' could not be loaded: TypeError"):
        list(reading.tfds_rows("reviews", "text"))
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match=r"keras-transformer-kit\[datasets\]"):
        list(reading.tfds_rows("reviews", "text"))


def test_the_backend_is_chosen_by_the_environment(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    for options, expected in (([], "jax"), (["--backend", "torch"], "torch")):
        tasks.choose_backend(tasks.options("", minutes=1.0).parse_args(options))
        assert tasks.os.environ["KERAS_BACKEND"] == expected


def test_bad_input_ends_with_one_line():
    for error in (ValueError("why"), ImportError("why"), OSError("why")):
        with pytest.raises(SystemExit) as stopped, tasks.one_line_errors():
            raise error
        assert stopped.value.code == "error: why"
    with pytest.raises(SystemExit, match="^stopped$"), tasks.one_line_errors():
        raise KeyboardInterrupt


def test_the_standard_library_is_there():
    files = reading.python_files()
    assert {"argparse.py", "decoder.py"} <= {path.name for path in files}
    assert not any({"site-packages", "test"} & set(path.parts) for path in files)


def test_docstrings_are_a_body_and_a_line():
    parts = find_docstrings(50)
    assert [len(part) for part in parts] == [44, 3, 3] and len({pair for part in parts for pair in part}) == 50
    for body, line in sum(map(list, parts), []):
        assert len(body.split()) >= 12 and 3 <= len(line.split()) <= 20 and line not in ("", body)
    assert find_texts(50)[1] == [f"{line} {body}" for body, line in parts[1]]


def test_docstrings_of_a_file_are_in_one_part_for_every_script(tmp_path):
    """What one script is tested on, another one has not been pretrained on, whatever their limits."""
    docstring = 'def f():\n    """Tell what {0} is.\n\n    It is {0}, and more words follow here, twelve in all."""\n'
    files = [tmp_path / f"package{i % 7}" / "deep" / f"{i}.py" for i in range(200)]
    for i, path in enumerate(files):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(docstring.format(f"item{i}_{j}") for j in range(3)))
    find = docstrings.DOCSTRING.findall
    many, few = (docstrings.in_parts(files, find, limit) for limit in (10_000, 50))
    assert sum(map(len, many)) == 600 and all(many) and sum(map(len, few)) == 50
    for part, same in zip(few, many):
        assert part and {*part} <= {*same}


def test_parameters_are_a_name_a_type_and_what_it_is():
    parts = find_parameters(50, longest=40)
    assert [len(part) for part in parts] == [44, 3, 3] and len({*sum(parts, [])}) == 50
    for parameters in sum(parts, []):
        assert parameters and sum(len(cell.split()) for cells in parameters for cell in cells) <= 40
        assert all(all(cells) and cells[0].isidentifier() for cells in parameters)


def test_parts_hold_different_rows_and_training_gives_way(capsys):
    args = tasks.parse_with_rows(tasks.options("", minutes=1.0, limit=9), ["--data", "a", "--test", "b"], "rows")
    files = {"a": [*"abcdefghijklmnopqrst"], "b": ["A", "b", "new"]}
    read = lambda path: files[str(path)]  # noqa: E731
    train, valid, test = reading.read_parts(args, read, None, None, None, key=str)
    assert test == files["b"] and len(valid) <= 2 and not {*train} & {*valid, "a", "b"}
    assert sorted(train + valid) == files["a"][2:]
    printed = capsys.readouterr().out
    assert "2 rows are left out, since another part" in printed and "3 to test" in printed
    args.tfds, args.data, args.test = "letters", None, None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "tfds_rows", lambda name, *features, limit: [(x, None) for x in "abc"[:limit]])
        parts = reading.read_parts(args, None, "xy", lambda x, y: x, None, key=str)
    assert sorted(sum(parts, [])) == [*"abc"]
    files["b"] = files["a"]
    args = tasks.parse_with_rows(tasks.options("", minutes=1.0, limit=9), ["--data", "a", "--test", "b"], "rows")
    with pytest.raises(ValueError, match="too few rows: of one part none is left"):
        reading.read_parts(args, read, None, None, None, key=str)


SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if "    python examples/" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_what_else_it_takes_to_copy_it(path):
    found, others = set(), [path.stem]
    while others:
        text = (FOLDER / f"{others.pop()}.py").read_text(encoding="utf-8")
        new = {*re.findall(r"^ *(?:import|from) (\w+)", text, re.MULTILINE)} - found
        others += [name for name in new if (FOLDER / f"{name}.py").is_file()]
        found |= {*others} & new
    (said,) = re.findall(r"^To copy it, take (.*) along\.$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)\.py`", said)) == sorted(found)
    assert len(SCRIPTS) == 12
