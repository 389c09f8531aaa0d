"""What the scripts share that train a model for one task: options, errors and training.

Keras is imported inside the functions, because `--backend` has to be read first.
"""

import argparse
import contextlib
import importlib.util
import math
import os
import sys
from pathlib import Path

HELP = {  # of the options that are sizes
    "vocabulary_size": "pieces of words, learnt from the text to train on",
    "length": "tokens of a row",
    "max_tokens": "tokens that are read of a text",
    "max_new_tokens": "most tokens of what is written",
    "batch_size": "rows of a batch",
    "batch_tokens": "tokens of a batch, padding included",
    "buckets": "lengths that rows are padded to",
    "layers": "blocks of the model",
    "heads": "attention heads of a block",
    "hidden_dim": "features of a token",
    "dropout": "share of features that is left out in training",
    "noise": "share of tokens that is made unknown in training",
    "learning_rate": "the highest",
    "limit": "most rows of the default data and of --tfds; files are read whole",
    "beams": "texts that are searched together",
}
MAY_BE_ZERO = ("dropout", "noise", "pretrain", "shift")


def number(kind, least=None):
    """A type of options: a finite number that is above 0, or at least `least`."""

    def read(text):
        value = kind(text)
        if not (value > 0 if least is None else value >= least) or value == math.inf:
            limit = "above 0" if least is None else f"{least} at least"
            raise argparse.ArgumentTypeError(f"must be {limit}, not {text}")
        return value

    read.__name__ = kind.__name__  # in errors
    return read


def options(description, minutes, **sizes):
    """A parser with the options that every script has, and one for each size: its default, or that and what it says."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    help_text = f"of training; default: {minutes}"
    parser.add_argument("--minutes", type=number(float), default=minutes, metavar="X", help=help_text)
    parser.add_argument("--saved", metavar="FILE.keras", type=Path, help="use this model instead of training one")
    parser.add_argument("--output", metavar="DIR", type=Path, default=Path("outputs"), help="default: outputs")
    parser.add_argument("--backend", choices=("tensorflow", "jax", "torch"), help="default: as Keras is set up")
    parser.add_argument("--seed", type=number(int, 0), default=0, help="not of what is held out; default: 0")
    for name, value in sizes.items():
        value, says = value if isinstance(value, tuple) else (value, HELP[name])
        kind = number(type(value), 0 if name in MAY_BE_ZERO else None)
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=kind, default=value, metavar="N", help=f"{says}; default: {value}")
    return parser


def parse_with_pairs(parser, argv):
    """The parsed options, with those of `read_pairs`."""
    text = parser.add_mutually_exclusive_group()
    what = "a file of pairs, one in each line with a tab between: what is read, what is written"
    text.add_argument("--tsv", metavar="FILE", help=what)
    text.add_argument("--tfds", metavar="NAME", help="pairs of TensorFlow Datasets; its split `train` is divided")
    parser.add_argument("--columns", type=int, nargs=2, default=(0, 1), metavar="N", help="of the files; default: 0 1")
    header = "whether the first line names the columns; default: what it looks like"
    parser.add_argument("--header", choices=("auto", "yes", "no"), default="auto", help=header)
    for part in ("--valid", "--test"):
        parser.add_argument(part, metavar="FILE", help="as --tsv; without it a part of that is held out")
    args = parser.parse_args(argv)
    if (args.valid or args.test) and not args.tsv and not (args.saved and args.test):
        parser.error("--valid and --test need --tsv; --test alone goes with --saved")
    return args


def parse_with_rows(parser, argv, data):
    """The parsed options, with those of `read_parts` and `--from`; `data` says what its files are."""
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument("--data", metavar="FILE", type=Path, help=data)
    rows.add_argument("--tfds", metavar="NAME", help="rows of TensorFlow Datasets; its split `train` is divided")
    for part in ("--valid", "--test"):
        parser.add_argument(part, metavar="FILE", type=Path, help="as --data; without it a part of that is held out")
    add_from(parser)
    args = parser.parse_args(argv)
    if (args.valid or args.test) and not args.data and not (args.saved and args.test):
        parser.error("--valid and --test need --data; --test alone goes with --saved")
    if args.saved and args.pretrained:
        parser.error("--saved trains nothing, and has no use for --from")
    return args


def add_from(parser):
    """The option `--from`."""
    pretrained = "a model of masked_lm.py to go on from, instead of from nothing; what it has read is not held out"
    parser.add_argument("--from", dest="pretrained", metavar="FILE.keras", type=Path, help=pretrained)


def choose_backend(args):
    """Before Keras is imported, which reads it then; and what makes training on a CPU faster."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's remarks would stand among the results
    if args.backend:
        if importlib.util.find_spec(args.backend) is None:
            extra = f'pip install "keras-transformer-kit[{args.backend}]"'
            sys.exit(f"error: --backend {args.backend} is not installed here: {extra}")
        os.environ["KERAS_BACKEND"] = args.backend
    from keras_transformer.training import end_epochs_at_once, keep_memory

    keep_memory()
    end_epochs_at_once()


@contextlib.contextmanager
def one_line_errors():
    """Input that cannot be used, and Ctrl-C, end the program with one line instead of a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit("stopped")
    except (ValueError, ImportError, OSError, OverflowError) as error:
        sys.exit(f"error: {error}")


def fit(model, data, valid, args, learning_rate, best=None, warmup_steps=100, share=1.0, callbacks=(), **compiled):
    """Train for a share of `--minutes`, with a learning rate that is 0 just then; the history of `fit`.

    `data` is a data set, or a list of arrays; `compiled` is for `compile`: tokens are scored unless it says otherwise.
    With `best`, the name of a metric and "max" or "min", the model is at the end what it was after its best epoch.
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
    if best is not None:  # it never stops early, as the rate is to fall to 0
        metric, mode = best
        callbacks.append(keras.callbacks.EarlyStopping(metric, mode=mode, patience=10**9, restore_best_weights=True))
    data, batch_size = (data, args.batch_size) if isinstance(data, list) else ([data], None)
    options = {"validation_data": valid, "epochs": 10_000, "batch_size": batch_size, "callbacks": callbacks}
    return model.fit(*data, **options, verbose=2)
