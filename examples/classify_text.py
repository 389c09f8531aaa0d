"""Train a BERT to tell texts apart, from nothing or from what it learnt of plain text, and score it on unseen ones.

    python examples/classify_text.py                        # in which language is a name, by Babel's tables
    python examples/classify_text.py --from outputs/masked_lm.keras     # beside the same model without a past, trained
                                                                        # for --minutes as well
    python examples/classify_text.py --data texts.tsv       # your own: a text, a tab, its class
    python examples/classify_text.py --tfds ag_news_subset --columns description label      # features of a data set
    python examples/classify_text.py --saved outputs/text.keras --classify "Deutschland" "Norvège"

The floor is the most frequent class; a logistic regression on pieces of words stands beside the model. Ctrl-C ends the
training early. Needs `pip install ".[examples]"` in a clone, and a backend.
To copy it, take `encoder.py`, `names.py`, `reading.py` and `tasks.py` along.
"""

import shlex
import sys

import reading
import tasks

SIZES = {"vocabulary_size": 2000, "layers": 3, "heads": 4, "hidden_dim": 128, "max_tokens": 64, "batch_size": 64}
SIZES |= {"limit": 20_000, "dropout": 0.1, "learning_rate": 2e-3}


def parse_arguments(argv=None):
    parser = tasks.options(__doc__, minutes=2.0, **SIZES)
    of_tfds = "the features of --tfds that are read; default: text label"
    parser.add_argument("--columns", metavar="NAME", nargs=2, default=("text", "label"), help=of_tfds)
    parser.add_argument("--freeze", metavar="N", type=int, help="train only the top N blocks of --from, and the head")
    parser.add_argument("--classify", metavar="TEXT", nargs="+", help="classify these by --saved, and leave")
    args = tasks.parse_with_rows(parser, argv, "two columns, of a text and its class, with a tab between them")
    if args.classify and not args.saved:
        parser.error("--classify needs --saved")
    if args.freeze is not None and not args.pretrained:
        parser.error("--freeze needs --from")
    return args


if __name__ == "__main__":
    arguments = parse_arguments()
    tasks.choose_backend(arguments)

import keras
import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import ConfusionMatrixDisplay, accuracy_score, classification_report
from sklearn.pipeline import make_pipeline

import encoder
import keras_transformer as kt
from names import names_by_language


def read_rows(path):
    pairs = kt.data.read_pairs(path)
    print(pairs.summary())
    return list(pairs)


def row_of_data_set(text, label):
    return (text.decode(), str(label)) if text.strip() else None


def numbers(rows, classes):
    """The number of each row's class; unknown ones are refused."""
    if unknown := sorted({name for _, name in rows} - {*classes}):
        raise ValueError(f"there is nothing to train on of the classes {unknown}. Known are: {classes}")
    return np.asarray([classes.index(name) for _, name in rows], "int32")


def train(train_rows, valid_rows, path, args):
    """Train and write a model; returns one of its kind that has not been pretrained, if it has."""
    classes = sorted({name for _, name in train_rows})
    if len(classes) < 2:
        raise ValueError(f"there is one class alone, {classes[0]!r}: nothing to tell apart")
    backbone, tokenizer = encoder.start([text for text, _ in train_rows], args)
    options = {"num_classes": len(classes), "dropout": args.dropout}
    model = kt.models.with_head(backbone, "sequence_classification", **options)
    data, valid = (
        [encoder.encode([text for text, _ in rows], tokenizer, args), numbers(rows, classes)]
        for rows in (train_rows, valid_rows)
    )
    twin = keras.models.clone_model(model) if args.pretrained else None  # with weights of its own, all new
    if args.freeze is not None:
        print("frozen:", *kt.training.freeze(model, all_but_top=args.freeze))
    for trained in (twin, model) if twin else (model,):
        options = {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "metrics": ["accuracy"]}
        best = ("val_accuracy", "max")
        history = tasks.fit(trained, data, tuple(valid), args, args.learning_rate, best, **options)
    kt.inspect.plot_history(history, path.with_suffix(".history.png"))
    encoder.save(model, tokenizer, path, classes=classes)
    return twin


def classify(model, tokenizer, classes, texts, args):
    logits = model.predict(encoder.encode(texts, tokenizer, args), verbose=0)
    return [classes[i] for i in logits.argmax(-1)]


def main(args):
    keras.utils.set_random_seed(args.seed)
    with tasks.one_line_errors():
        path, twin = args.saved or args.output / "text.keras", None
        if not args.classify:
            sources = (read_rows, args.columns, row_of_data_set, names_by_language)
            parts = reading.read_parts(args, *sources, key=lambda row: row[0])
            args.output.mkdir(parents=True, exist_ok=True)
        if not args.saved:
            numbers(parts[2], sorted({name for _, name in parts[0]}))  # refused before the training, not after it
            twin = train(*parts[:2], path, args)
        model, tokenizer = encoder.load(path, args, "sequence_classification")  # the file, also just after the training
        classes = reading.settings(path)["classes"]
        if args.classify:
            return print(*classify(model, tokenizer, classes, args.classify, args), sep="\n")
        texts, labels = zip(*parts[2])
        numbers(parts[2], classes)
        found = classify(model, tokenizer, classes, texts, args)
        print(classification_report(labels, found, zero_division=0))
        pieces = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), sublinear_tf=True)
        rivals = {"most frequent class": DummyClassifier()}
        rivals["logistic regression"] = make_pipeline(pieces, LogisticRegression(C=10, max_iter=500))
        for name, rival in rivals.items() if parts[0] else ():
            print(f"accuracy {rival.fit(*zip(*parts[0])).score(texts, labels):.4f} ({name})")
        if twin:
            theirs = classify(twin, tokenizer, classes, texts, args)
            print(f"accuracy {accuracy_score(labels, theirs):.4f} (not pretrained)")
        print(f"accuracy {accuracy_score(labels, found):.4f} of {len(labels):,} texts")
        picture = args.output / "text.png"
        ConfusionMatrixDisplay.from_predictions(labels, found, colorbar=False).figure_.savefig(picture)
    print(f"written: {path}, {picture}\nagain:", shlex.join([sys.executable, *sys.argv, "--saved", str(path)]))


if __name__ == "__main__":
    main(arguments)
