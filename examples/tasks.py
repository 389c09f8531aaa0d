"""What the scripts share that train a model for one task: options, errors, reading, splitting and training.

Keras is imported inside the functions, because `--backend` has to be read first.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path


def options(description, minutes, **sizes):
    """A parser with the options that every script has, and one for each size with its default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=minutes, metavar="X", help=f"of training; default: {minutes}")
    parser.add_argument("--saved", metavar="FILE.keras", type=Path, help="use this model instead of training one")
    parser.add_argument("--output", metavar="DIR", type=Path, default=Path("outputs"), help="default: outputs")
    parser.add_argument("--backend", choices=("tensorflow", "jax", "torch"), help="default: as Keras is set up")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches, not of what is held out")
    for name, value in sizes.items():
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=type(value), default=value, metavar="N", help=f"default: {value}")
    return parser


def parse_with_pairs(parser, argv):
    """The parsed options, with those of `read_pairs`."""
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--tsv", metavar="FILE", help="text to train on, in two columns: what is read, what is written")
    text.add_argument("--tfds", metavar="NAME", help="a data set of TensorFlow Datasets with pairs of texts")
    parser.add_argument("--columns", type=int, nargs=2, default=(0, 1), metavar="N", help="of the files; default: 0 1")
    for part in ("--valid", "--test"):
        parser.add_argument(part, metavar="FILE", help="as --tsv; without it a part of that is held out")
    args = parser.parse_args(argv)
    if (args.valid or args.test) and not args.tsv:
        parser.error("--valid and --test need --tsv")
    return args


def parse_with_rows(parser, argv, data):
    """The parsed options, with those of `read_parts` and `--from`; `data` says what its files are."""
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument("--data", metavar="FILE", type=Path, help=data)
    rows.add_argument("--tfds", metavar="NAME", help="a data set of TensorFlow Datasets")
    for part in ("--valid", "--test"):
        parser.add_argument(part, metavar="FILE", type=Path, help="as --data; without it a part of that is held out")
    pretrained = "a model of masked_lm.py, to go on from instead of from nothing"
    parser.add_argument("--from", dest="pretrained", metavar="FILE.keras", type=Path, help=pretrained)
    args = parser.parse_args(argv)
    if (args.valid or args.test) and not args.data:
        parser.error("--valid and --test need --data")
    if args.saved and args.pretrained:
        parser.error("--saved trains nothing, and has no use for --from")
    return args


def choose_backend(args):
    """Before Keras is imported, which reads it then. What training frees is kept for its next step."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's remarks would stand among the results
    if args.backend:
        if importlib.util.find_spec(args.backend) is None:
            extra = f'pip install "keras-transformer-kit[{args.backend}]"'
            sys.exit(f"error: --backend {args.backend} is not installed here: {extra}")
        os.environ["KERAS_BACKEND"] = args.backend
    from keras_transformer.training import keep_memory

    keep_memory()


@contextlib.contextmanager
def one_line_errors():
    """Input that cannot be used ends the program with one line instead of a traceback."""
    try:
        yield
    except (ValueError, ImportError, OSError, OverflowError) as error:
        sys.exit(f"error: {error}")


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
    """(train, valid, test): `TextPairs` of the files or the data set, or `default(limit)`.

    No text of one part is a text of another: what is to be trained on has to give way.
    """
    import keras_transformer as kt

    given = [None, None]
    if args.tfds:
        pairs = kt.data.load_tfds_pairs(args.tfds, limit=args.limit)
    elif args.tsv:
        pairs, *given = (path and kt.data.read_pairs(path, args.columns) for path in (args.tsv, args.valid, args.test))
    else:
        pairs = default(args.limit)
    fractions = [0.0 if part else min(0.1, 500 / len(pairs)) for part in given]
    train, *held_out = kt.data.split_pairs(pairs, *fractions)
    valid, test = (theirs or ours for theirs, ours in zip(given, held_out))
    seen = {text for pair in [*valid, *test] for text in pair}
    kept = kt.data.TextPairs([pair for pair in train if not seen & {*pair}], train.name)
    if not (kept and valid and test):
        raise ValueError(f"{pairs.name} has too few pairs to hold some out")
    print(*(part.summary() for part in (pairs, kept, valid, test)), sep="\n")
    print(f"{len(train) - len(kept):,} pairs are not trained on, since a text of theirs is held out")
    return kept, valid, test


def tfds_rows(name, *features, limit=None):
    """The named features of the rows of a data set of TensorFlow Datasets, of its split `train`."""
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(f'reading {name!r} needs pip install "keras-transformer-kit[datasets]"') from error
    try:
        rows = tfds.as_numpy(tfds.load(name, split="train" if limit is None else f"train[:{limit}]"))
    except Exception as error:  # network, registry, file system
        raise ValueError(f"The data set {name!r} could not be loaded: {type(error).__name__}: {error}") from error
    for row in rows:
        if missing := [feature for feature in features if feature not in row]:
            raise ValueError(f"The data set {name!r} has no feature {missing[0]!r}. It has: {sorted(row)}")
        yield tuple(row[feature] for feature in features)


def tfds_classes(name, feature):
    """The names of the classes of a feature with one for each token, of a data set of TensorFlow Datasets."""
    import tensorflow_datasets as tfds

    return tfds.builder(name).info.features[feature].feature.names


def same(key):
    """A str or bytes by its hash, which for texts that are the same to a reader is the same."""
    found = key if isinstance(key, bytes) else " ".join(key.casefold().split()).encode()
    return hashlib.sha256(found).digest()


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

    `read(path)` and `default(limit)` give rows, and of a data set `row` makes one of some `features`, or None. `key`
    tells them apart, as in `split`: what is to be trained on has to give way to what is validated with, and both to
    the test.
    """
    if args.tfds:
        found = [row(*values) for values in tfds_rows(args.tfds, *features, limit=args.limit)]
        rows = [row for row in found if row is not None]
        print(f"{len(found) - len(rows):,} of {len(found):,} rows of {args.tfds} lack something: left out")
    else:
        rows = read(args.data) if args.data else default(args.limit)
    train, *held_out = split(rows, key, valid, test)
    for part, path in enumerate((args.valid, args.test)):
        if path:
            train, held_out[part] = train + held_out[part], read(path)
    seen, kept = set(), []
    for part in (held_out[1], held_out[0], train):
        kept.append([row for row in part if same(key(row)) not in seen])
        seen |= {same(key(row)) for row in part}
    if not all(kept):
        raise ValueError("all rows of one part are in another one as well: none are left")
    test, valid, left = kept
    print(f"{len(left):,} rows to train on, {len(valid):,} to validate, {len(test):,} to test", end="; ")
    print(f"{len(train) + len(held_out[0]) - len(left) - len(valid):,} are left out, since another part has the same")
    return left, valid, test


def fit(model, data, valid, args, learning_rate, callbacks=(), warmup_steps=100, share=1.0, **compiled):
    """Train for a share of `--minutes`, with a learning rate that is 0 just then; the history of `fit`.

    `data` is a data set, or a list of arrays; `compiled` is for `compile`: tokens are scored unless it says otherwise.
    """
    import keras

    import keras_transformer as kt

    # For the matrices of the feed-forward networks, and Adam for all else: learns more per minute than Adam alone.
    optimizer = keras.optimizers.Muon(learning_rate, adam_beta_2=0.98)
    optimizer.build(model.trainable_variables)  # TensorFlow would build it inside its graph and start twice as slowly
    for_tokens = {"loss": kt.training.MaskedCrossentropy(), "weighted_metrics": [kt.training.Perplexity()]}
    model.compile(optimizer, **(compiled or for_tokens))
    budget = kt.training.Budget(learning_rate, warmup_steps, seconds=60 * args.minutes * share)
    print(f"{model.name}: {model.count_params():,} parameters, on {keras.backend.backend()}", flush=True)
    callbacks = [budget, kt.training.StopOnInterrupt(), *callbacks]
    data, batch_size = (data, args.batch_size) if isinstance(data, list) else ([data], None)
    options = {"validation_data": valid, "epochs": 10_000, "batch_size": batch_size, "callbacks": callbacks}
    return model.fit(*data, **options, verbose=2)
