import itertools
import sys
import types

import pytest

from keras_transformer.data import TextPairs, load_tfds_pairs, read_pairs, split_pairs


@pytest.fixture
def write(tmp_path):
    def write(data):
        path = tmp_path / "pairs.tsv"
        path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
        return path

    return write


def test_good_and_broken_rows(write):
    path = write(
        b"en\tde\nGood morning\tGuten Morgen\n\tleer\nempty\t \none\nx\ty\tz\n\nlatin\t\xe4\n Yes \t\xc3\x84h\r\n"
    )
    pairs = read_pairs(path)
    assert pairs == [("Good morning", "Guten Morgen"), ("Yes", "Äh")]
    assert pairs.sources == ["Good morning", "Yes"] and pairs.targets == ["Guten Morgen", "Äh"]
    assert pairs.header == ("en", "de")
    assert pairs.skipped == {"not UTF-8": 1, "wrong number of columns": 3, "empty side": 2}
    assert pairs.summary() == (
        f"{path}: 2 pairs, header en -> de, 6 rows skipped (1 not UTF-8, the first in line 8; "
        "3 wrong number of columns, the first in line 5; 2 empty side, the first in line 3)"
    )


def test_lines_may_end_in_three_ways_and_blank_ones_do_not_count_as_columns(write):
    pairs = [("a", "b"), ("c", "d")]
    for text in ("a\tb\nc\td\n", "a\tb\r\nc\td\r\n", "a\tb\rc\td\r", "a\tb\n\n\nc\td\n\n\n"):
        assert read_pairs(write(text)) == pairs


def test_utf_16_is_refused(write):
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        data = "a\tb\nc\td\n".encode(encoding)
        with pytest.raises(ValueError, match="UTF-8"):
            read_pairs(write(data))


def test_a_clean_file_says_so_briefly(write):
    path = write("Go.\tVa !")
    assert read_pairs(str(path)).summary() == f"{path}: 1 pair"


@pytest.mark.parametrize(
    "first, is_header",
    [
        ("en\tde", True),
        ("pt-BR\ten_US", True),
        ("Source\tTarget", True),
        ("English\tGerman", True),
        ("source_text\ttarget text", True),
        ("text\tlabel", True),
        ("text\theading", True),
        ("question\tanswer", True),
        ("EN\tDE", True),
        ("Go.\tVa !", False),
        ("yes\toui", False),
        ("English\tDeutsch", False),
        ("en\tein", False),
        ("an\tein", False),
        ("Hi\tHi", False),
        ("title\ttitle", False),
        ("Text\tDokument öffnen", False),
    ],
)
def test_header(write, first, is_header):
    path = write(f"{first}\nGood night\tGute Nacht\n")
    cells = tuple(first.split("\t"))
    pairs = read_pairs(path)
    assert pairs.header == (cells if is_header else None) and len(pairs) == 2 - is_header
    assert read_pairs(path, header=True) == [("Good night", "Gute Nacht")]
    assert read_pairs(path, header=False) == [cells, ("Good night", "Gute Nacht")]


def test_a_header_behind_empty_lines(write):
    pairs = read_pairs(write("\n\nen\tde\none\teins\n"))
    assert pairs == [("one", "eins")] and pairs.header == ("en", "de")
    assert read_pairs(write("\none\teins\n\ntwo\tzwei\n")) == [("one", "eins"), ("two", "zwei")]


def test_columns_are_chosen_and_more_of_them_are_allowed(write):
    path = write("id\ten\tde\tnote\n1\tone\teins\t\n2\ttwo\tzwei\tx\n3\tthree\n")
    pairs = read_pairs(path, columns=(2, 1))
    assert pairs == [("eins", "one"), ("zwei", "two")] and pairs.header == ("de", "en")
    assert pairs.skipped["wrong number of columns"] == 1


def test_lines_end_at_line_feeds_only(write):
    text = 'a\u2028b\x0bc\x85d\t"e" \'f\n'
    assert read_pairs(write("\ufeff" + text)) == [tuple(text[:-1].split("\t"))]


@pytest.mark.parametrize("data, message", [(b"", "empty"), (b"\n \n", "empty"), (b"\xff\n", "1 not UTF-8")])
def test_files_without_a_row(write, data, message):
    path = write(data)
    with pytest.raises(ValueError, match=message) as error:
        read_pairs(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "data, options, message",
    [
        ("no tabs here\n", {}, "at least 2.*have 1"),
        ("a\tb\n", {"columns": (0, 2)}, "at least 3.*have 2"),
        ("en\tde\n\tleer\n", {}, "no usable pair.*1 empty side"),
        ("en\tde\n", {}, "no usable pair"),
        ("a\tb\n", {"columns": (0, 0)}, "columns=\\(0, 0\\)"),
        ("a\tb\n", {"columns": (-1, 0)}, "columns=\\(-1, 0\\)"),
        ("a\tb\n", {"columns": ("a", "b")}, "columns="),
        ("a\tb\n", {"header": "maybe"}, "header='maybe'"),
    ],
)
def test_read_pairs_refuses(write, data, options, message):
    with pytest.raises(ValueError, match=message):
        read_pairs(write(data), **options)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    for path in (tmp_path / "missing.tsv", tmp_path):
        with pytest.raises(ValueError, match="Cannot read") as error:
            read_pairs(path)
        assert str(path) in str(error.value)


def tfds_with(rows):
    """A stand-in for tensorflow-datasets that serves `rows` and records how it was asked."""
    calls = []

    def load(name, **options):
        calls.append((name, options))
        if isinstance(rows, Exception):
            raise rows
        return rows

    return types.SimpleNamespace(load=load, as_numpy=iter, calls=calls)


def test_tfds_pairs(monkeypatch):
    rows = [(b"bom dia", b"good morning"), (b"", b"empty"), (b"\xff", b"broken"), ("não".encode(), b"no")]
    module = tfds_with(rows)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    pairs = load_tfds_pairs("ted_hrlr_translate/pt_to_en", split="validation")
    assert pairs == [("bom dia", "good morning"), ("não", "no")]
    assert pairs.skipped == {"not UTF-8": 1, "empty side": 1}
    assert pairs.name == "ted_hrlr_translate/pt_to_en (validation)"
    name, options = module.calls[0]
    assert name == "ted_hrlr_translate/pt_to_en"
    assert options["split"] == "validation" and options["as_supervised"] is True
    assert load_tfds_pairs("ted_hrlr_translate/pt_to_en", limit=1) == pairs[:1]


@pytest.mark.parametrize(
    "rows, message",
    [
        (ConnectionError("no route to host\nmore"), "'some/corpus'.*ConnectionError: no route to host$"),
        (ValueError(""), "'some/corpus'.*ValueError"),
        ([(b"image", 3)], "'some/corpus'.*does not hold pairs"),
        ([{"text": b"x"}], "'some/corpus'.*does not hold pairs"),
        ([(b"", b"")], "'some/corpus'.*1 empty side"),
        ([], "'some/corpus'.*no usable pair"),
    ],
)
def test_tfds_errors_name_the_data_set(monkeypatch, rows, message):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", tfds_with(rows))
    with pytest.raises(ValueError, match=message):
        load_tfds_pairs("some/corpus")


def test_without_tensorflow_datasets_the_data_set_and_the_extra_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match=r"'some/corpus'.*keras-transformer-kit\[datasets\]"):
        load_tfds_pairs("some/corpus")


def fold(text):
    return " ".join(text.lower().split())


def test_splits_share_neither_sources_nor_targets():
    # Every source twice, some targets shared by two sources, in changing case and spacing.
    pairs = [(f"Source {n}", f"target {n - n % 5 % 2}") for n in range(100)]
    pairs += [(f"SOURCE  {n}", f"Other  target {n}") for n in range(100)]
    parts = split_pairs(pairs, 0.2, 0.2, seed=3)
    assert all(parts)
    for one, other in itertools.combinations(parts, 2):
        for side in ("sources", "targets"):
            assert not set(map(fold, getattr(one, side))) & set(map(fold, getattr(other, side)))
    train, valid, test = parts
    num_dropped = valid.skipped["target also in another split"] + test.skipped["target also in another split"]
    assert train.skipped["target also in another split"] == 0 and num_dropped > 0
    assert sum(map(len, parts)) + num_dropped == len(pairs)
    assert [pair for pair in pairs if pair in set(train)] == train  # in their old order


def test_splits_have_the_asked_sizes_and_depend_on_the_seed_alone():
    pairs = TextPairs([(f"source {n}", f"target {n}") for n in range(200)], name="numbers")
    parts = split_pairs(pairs, valid_fraction=0.1, test_fraction=0.25, seed=0)
    assert [len(part) for part in parts] == [130, 20, 50]
    assert [part.name for part in parts] == ["numbers [train]", "numbers [valid]", "numbers [test]"]
    assert parts == split_pairs(pairs, 0.1, 0.25, seed=0) != split_pairs(pairs, 0.1, 0.25, seed=1)
    backwards = split_pairs(pairs[::-1], 0.1, 0.25, seed=0)
    assert [set(part) for part in backwards] == [set(part) for part in parts]


@pytest.mark.parametrize(
    "num_pairs, fractions, sizes",
    [(1, (0.5, 0.4), [1, 0, 0]), (2, (0.1, 0.1), [1, 1, 0]), (3, (0.1, 0.1), [1, 1, 1]), (9, (0, 0), [9, 0, 0])],
)
def test_small_splits_keep_something_to_train_on(num_pairs, fractions, sizes):
    pairs = [(f"source {n}", f"target {n}") for n in range(num_pairs)]
    assert [len(part) for part in split_pairs(pairs, *fractions)] == sizes


@pytest.mark.parametrize(
    "pairs, fractions, message",
    [
        ([], (0.1, 0.1), "`pairs` is empty"),
        ([("a", "b")], (-0.1, 0), "valid_fraction=-0.1"),
        ([("a", "b")], (0, 1), "test_fraction=1"),
        ([("a", "b")], (0.5, 0.5), "below 1"),
        ([("a", "b")], (float("nan"), 0), "valid_fraction=nan"),
    ],
)
def test_split_pairs_refuses(pairs, fractions, message):
    with pytest.raises(ValueError, match=message):
        split_pairs(pairs, *fractions)


def test_a_slice_is_pairs_as_well():
    pairs = TextPairs([("a", "b"), ("c", "d"), ("e", "f")], name="letters", skipped={"empty side": 1})
    assert pairs[:2].sources == ["a", "c"] and pairs[::2].targets == ["b", "f"] and pairs[1] == ("c", "d")
    assert pairs[:2].summary() == "letters: 2 pairs"
    with pytest.raises(ValueError, match="`seed`.*seed=None"):
        split_pairs(pairs, seed=None)
