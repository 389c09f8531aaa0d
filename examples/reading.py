"""What the scripts share that read texts: files and data sets, and what is held out of them.

Keras is imported inside the functions, because `--backend` has to be read first.
"""

import functools
import hashlib
import itertools
import json
import re
import sysconfig
from pathlib import Path


def read_text(path):
    """The text of a UTF-8 file; a ValueError names the file, and the line that is broken."""
    data = Path(path).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 ({error.reason}); save the file as UTF-8") from error
    if not text.strip():
        raise ValueError(f"{path} is empty")
    return text


def python_files(folder=None):
    """The files of Python below a folder, by default its standard library, without tests and installed packages."""
    folder = Path(folder or sysconfig.get_paths()["stdlib"])
    others = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
    return [path for path in sorted(folder.rglob("*.py")) if not others & {*path.relative_to(folder).parts}]


def read_all(paths, read=read_text):
    """(path, what was read) of all files that can be read; the others are counted, and the first of them named."""
    found, broken = [], []
    for path in paths:
        try:
            found.append((path, read(path)))
        except (ValueError, OSError) as error:
            broken.append(str(error) if str(path) in str(error) else f"{path}: {error}")
    if broken:
        print(f"left out: {len(broken):,} of {len(broken) + len(found):,} files; {'; '.join(broken[:3])}")
    if not found:
        raise ValueError("no file could be read" if broken else "there is no file to read")
    return found


def read_pairs(args, default):
    """(train, valid, test): `TextPairs` of the files, the data set or `default(limit)`, which may give the three parts.

    No text of one part is a text of another: what is to be trained on has to give way, and what is validated with to
    the test.
    """
    import keras_transformer as kt

    header = {"auto": "auto", "yes": True, "no": False}[args.header]
    read = functools.partial(kt.data.read_pairs, columns=args.columns, header=header)
    given = [path and read(path) for path in (args.valid, args.test)]
    if args.saved and args.test and not args.tsv:
        return kt.data.TextPairs(), kt.data.TextPairs(), given[1]
    if args.tfds:
        pairs = kt.data.load_tfds_pairs(args.tfds, limit=args.limit)
    else:
        pairs = read(args.tsv) if args.tsv else default(args.limit)
    if not isinstance(pairs, tuple):
        print(pairs.summary())
        fractions = [0.0 if part else min(0.1, 500 / len(pairs)) for part in given]
        pairs = kt.data.split_pairs(pairs, *fractions)
    train, *held_out = pairs
    parts = [train, *(theirs or ours for theirs, ours in zip(given, held_out))]
    kept = apart(*parts, texts=lambda pair: pair, read=what_was_read(args))
    kept = [kt.data.TextPairs(rows, name) for rows, name in zip(kept, ("to train on", "to validate", "to test"))]
    print(*(part.summary() for part in kept), sep="\n")
    return kept


def apart(train, valid, test, texts, read=frozenset()):
    """[train, valid, test] without the rows of which another part, behind theirs, has a text: `texts(row)` gives them.

    Held-out rows are left out as well if a text of theirs is among those that were `read` before, by their `same`.
    """
    seen, kept = set(), []
    for part in (test, valid, train):
        own = [{same(text) for text in texts(row)} for row in part]
        barred = seen if part is train else seen | read
        kept.append([row for row, hashes in zip(part, own) if not hashes & barred])
        seen = seen.union(*own)
    if not all(kept):
        raise ValueError("too few rows: of one part none is left that has no text of another part")
    left_out = len(train) + len(valid) + len(test) - sum(map(len, kept))
    if left_out:
        print(f"{left_out:,} rows are left out, since another part, or what --from has read, has a text of theirs")
    return kept[::-1]


def in_three(text, name):
    """Lists of one text each: 90 %, 5 % and 5 % of the lines."""
    lines = text.splitlines(keepends=True)
    first, second = (int(len(lines) * share) for share in (0.9, 0.95))
    parts = ["".join(part) for part in (lines[:first], lines[first:second], lines[second:])]
    if not all(map(str.strip, parts)):
        raise ValueError(f"{name} has {len(lines)} lines, too few to hold some out: give --valid and --test")
    return tuple([part] for part in parts)


def cut(texts, limit):
    """The first texts, so many characters of them."""
    kept = []
    for text in texts:
        kept.append(text[:limit])
        limit -= len(kept[-1])
        if not limit:
            break
    return kept


def tfds():
    """The package TensorFlow Datasets."""
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ImportError('--tfds needs pip install "keras-transformer-kit[datasets]"') from error
    return tensorflow_datasets


def tfds_rows(name, *features, limit=None):
    """The named features of the first rows of a data set of TensorFlow Datasets, of its split `train`."""
    package = tfds()
    try:
        rows = package.as_numpy(package.load(name, split="train"))
    except Exception as error:  # network, registry, file system
        raise ValueError(f"The data set {name!r} could not be loaded: {type(error).__name__}: {error}") from error
    for row in itertools.islice(rows, limit):
        if missing := [feature for feature in features if feature not in row]:
            raise ValueError(f"The data set {name!r} has no feature {missing[0]!r}. It has: {sorted(row)}")
        yield tuple(row[feature] for feature in features)


def tfds_classes(name, feature):
    """The names of the classes of a feature with one for each token, of a data set of TensorFlow Datasets."""
    return tfds().builder(name).info.features[feature].feature.names


def same(key):
    """A str or bytes as a hash, which for texts that are the same to a reader is the same."""
    found = key if isinstance(key, bytes) else " ".join(key.casefold().split()).encode()
    return hashlib.sha256(found).hexdigest()[:16]


def split(rows, key, valid=0.1, test=0.1):
    """(train, valid, test), lists of rows: rows with the same key, such as copies of a text, are in one part.

    A part is drawn by a hash of the key (a str or bytes), so it depends neither on the order of the rows nor on a seed.
    """
    groups = {}
    for row in rows:
        groups.setdefault(same(key(row)), []).append(row)
    if len(groups) < 3:
        raise ValueError(f"{len(groups)} different rows are too few to hold some out: at least 3 are needed")
    ordered = [groups[digest] for digest in sorted(groups)]
    num_test, num_valid = (max(1, round(len(ordered) * share)) for share in (test, valid))
    parts = ordered[num_test + num_valid :], ordered[num_test : num_test + num_valid], ordered[:num_test]
    return tuple([row for group in part for row in group] for part in parts)


def read_parts(args, read, features, row, default, key, valid=0.1, test=0.1):
    """(train, valid, test), lists of rows: those of the files or, where one is not given, a part of the first.

    `read(path)` and `default(limit)`, which may give the three parts, give rows, and of a data set `row` makes one of
    some `features`, or None. `key` tells them apart, as in `split` and `apart`.
    """
    if args.saved and args.test and not args.data:
        return [], [], read(args.test)
    if args.tfds:
        found = [row(*values) for values in tfds_rows(args.tfds, *features, limit=args.limit)]
        rows = [row for row in found if row is not None]
        print(f"{len(found) - len(rows):,} of {len(found):,} rows of {args.tfds} lack something: left out")
    else:
        rows = read(args.data) if args.data else default(args.limit)
    train, *held_out = rows if isinstance(rows, tuple) else split(rows, key, valid, test)
    for part, path in enumerate((args.valid, args.test)):
        if path:
            train, held_out[part] = train + held_out[part], read(path)
    parts = apart(train, *held_out, texts=lambda row: [key(row)], read=what_was_read(args))
    print("{:,} rows to train on, {:,} to validate, {:,} to test".format(*map(len, parts)))
    return parts


def write_settings(path, **settings):
    """Write what else has to be known to use a model, such as the names of its classes, beside its file."""
    path.with_suffix(".settings.json").write_text(json.dumps(settings), encoding="utf-8")


def settings(path):
    """What `write_settings` wrote; {} if nothing."""
    path = path.with_suffix(".settings.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def what_was_read(args):
    """The texts that the model of `--from` was trained on, by their `same`."""
    pretrained = getattr(args, "pretrained", None)
    return set(settings(pretrained).get("read", ())) if pretrained else set()


def read_documents(path):
    """The documents of a file or a folder: what stands between empty lines or, where these are rare, the lines."""
    texts = [text for _, text in read_all(sorted(path.rglob("*.txt")))] if path.is_dir() else []
    found = []
    for text in texts or [read_text(path)]:
        blocks, lines = re.split(r"\n\s*\n", text), text.splitlines()
        found += blocks if 20 * len(blocks) > len(lines) else lines
    return [" ".join(text.split()) for text in found if text.strip()]
