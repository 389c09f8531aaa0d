"""Train a BERT to find names and other entities in texts, and score them on texts that it has not seen.

    python examples/tag_tokens.py                           # Python's source: keywords, names, strings, comments ...
    python examples/tag_tokens.py --data train.conll --valid valid.conll --test test.conll
    python examples/tag_tokens.py --data train.conll --test test.conll --extra more.conll --lowercase
    python examples/tag_tokens.py --tfds conll2003          # a data set with the features `tokens` and `ner`
    python examples/tag_tokens.py --saved outputs/tagger.keras --tag "print('two words')  # and a comment"

A CoNLL file has a line for each word: the word, a tab or spaces, its label, which is O, B-X or I-X; an empty line ends
a text. An entity counts where all its words, and no others, are found (seqeval). The floor is to give each word its
most frequent label. Ctrl-C ends the training early.
Needs `pip install ".[examples]"` in a clone, and a backend.
To copy it, take `encoder.py`, `labelled_words.py`, `reading.py` and `tasks.py` along.
"""

import re
import shlex
import sys
from collections import Counter, defaultdict
from pathlib import Path

import reading
import tasks

SIZES = {"vocabulary_size": 2000, "layers": 3, "heads": 4, "hidden_dim": 128, "max_tokens": 96, "batch_size": 32}
SIZES |= {"limit": 20_000, "dropout": 0.2, "noise": 0.1, "learning_rate": 2e-3}


def parse_arguments(argv=None):
    parser = tasks.options(__doc__, minutes=3.0, **SIZES)
    parser.add_argument("--extra", metavar="FILE", type=Path, help="rows to train on first, for a third of the time")
    parser.add_argument("--lowercase", action="store_true", help="take no notice of the case of letters")
    parser.add_argument("--tag", metavar="TEXT", nargs="+", help="tag these by --saved, and leave")
    args = tasks.parse_with_rows(parser, argv, "a CoNLL file")
    if args.tag and not args.saved:
        parser.error("--tag needs --saved")
    return args


if __name__ == "__main__":
    arguments = parse_arguments()
    tasks.choose_backend(arguments)

import keras
import numpy as np
from seqeval.metrics import classification_report, f1_score

import encoder
import keras_transformer as kt
from labelled_words import Row, check_labels, read_conll, read_statements, row_of_data_set


def arrays(rows, tokenizer, classes, args):
    """What the model reads, the class of each token, and 1 where a word begins, (N, T) each."""
    ids, labels, begins = [], [], []
    words = [[word.lower() if args.lowercase else word for word in row.words] for row in rows]
    for row, pieces in zip(rows, encoder.encode_words(words, tokenizer)):
        ends = np.cumsum([1, *map(len, pieces)])
        read = sum(ends[1:] < args.max_tokens)  # words for which there is room, and for a stop token
        ids.append([tokenizer.start_token_id, *(i for word in pieces[:read] for i in word), tokenizer.stop_token_id])
        labels.append(np.zeros(len(ids[-1]), "int64"))
        labels[-1][ends[:read]] = [classes.index(label) for label in row.labels[:read]]
        begins.append(np.isin(np.arange(len(ids[-1])), ends[:read]).astype("int64"))
    if too_long := sum(sum(row) < len(words) for row, words in zip(begins, words)):
        print(f"{too_long:,} of {len(rows):,} texts have more than {args.max_tokens} tokens: their ends are not read")
    return encoder.inputs(ids, tokenizer), kt.data.pad_batch(labels)[0], kt.data.pad_batch(begins)[0].astype("float32")


def train(train_rows, valid_rows, extra, classes, path, args):
    texts = [row.text.lower() if args.lowercase else row.text for row in [*train_rows, *extra]]
    backbone, tokenizer = encoder.start(texts, args)
    model = kt.models.with_head(backbone, "token_classification", num_classes=len(classes), dropout=args.dropout)
    valid = arrays(valid_rows, tokenizer, classes, args)
    for rows, share in ((extra, 1 / 3), (train_rows, 2 / 3 if extra else 1)):
        if rows:
            data = encoder.NoisyBatches(*arrays(rows, tokenizer, classes, args), tokenizer, args)
            metrics = [kt.training.TokenAccuracy(name="accuracy")]
            options = {"loss": kt.training.MaskedCrossentropy(), "weighted_metrics": metrics, "share": share}
            history = tasks.fit(model, data, valid, args, args.learning_rate, ("val_accuracy", "max"), **options)
    kt.inspect.plot_history(history, path.with_suffix(".png"))
    word = r"\S+" if args.data else encoder.WORD.pattern  # what a word is in these texts
    encoder.save(model, tokenizer, path, classes=classes, lowercase=args.lowercase, word=word)


def tag(model, tokenizer, classes, rows, args):
    """A label for each word; the words that are not read have O."""
    inputs, _, begins = arrays(rows, tokenizer, classes, args)
    found = model.predict(inputs, verbose=0).argmax(-1)
    found = [[classes[i] for i in row[is_word > 0]] for row, is_word in zip(found, begins)]
    return [labels + ["O"] * (len(row.words) - len(labels)) for row, labels in zip(rows, found)]


def most_frequent(known, rows, lowercase):
    """For each word the label that it has most often, for new words that of all words."""

    def read(word):
        return word.lower() if lowercase else word

    counts, every = defaultdict(Counter), Counter(label for row in known for label in row.labels)
    for row in known:
        for word, label in zip(*row[:2]):
            counts[read(word)][label] += 1
    return [[counts.get(read(word), every).most_common(1)[0][0] for word in row.words] for row in rows]


def shown(row, labels):
    return " ".join(f"{word}/{label}" for word, label in zip(row.words, labels))


def main(args):
    keras.utils.set_random_seed(args.seed)
    with tasks.one_line_errors():
        path = args.saved or args.output / "tagger.keras"
        if not args.tag:
            sources = (read_conll, ["tokens", "ner"], row_of_data_set(args.tfds, "ner"), read_statements)
            parts = reading.read_parts(args, *sources, key=lambda row: row.text)
            held_out = {reading.same(row.text) for part in parts[1:] for row in part}
            extra = read_conll(args.extra) if args.extra else []
            extra = [row for row in extra if reading.same(row.text) not in held_out]
            args.output.mkdir(parents=True, exist_ok=True)
        if not args.saved:
            ours = [part for part, file in zip(parts, (None, args.valid, args.test)) if not file]
            classes = sorted({label for part in [*ours, extra] for row in part for label in row.labels})
            for part in parts:
                check_labels(part, classes)
            train(*parts[:2], extra, classes, path, args)
        model, tokenizer = encoder.load(path, args, "token_classification")  # the file, also just after the training
        classes, args.lowercase, word = map(reading.settings(path).get, ("classes", "lowercase", "word"))
        if args.tag:
            rows = [Row(words, classes[:1] * len(words), []) for words in (re.findall(word, x) for x in args.tag)]
            return print(*map(shown, rows, tag(model, tokenizer, classes, rows, args)), sep="\n")
        check_labels(parts[2], classes)
        labels, found = [row.labels for row in parts[2]], tag(model, tokenizer, classes, parts[2], args)
        if not any(label != "O" for row in labels for label in row):
            raise ValueError(f"{args.test or 'the part to test with'} has no entity to find: every label is O")
    if any(label != "O" for row in found for label in row):
        print(classification_report(labels, found, zero_division=0))
    floor = ""
    if parts[0]:
        by_words = most_frequent(parts[0], parts[2], args.lowercase)
        floor = f" (most frequent labels: {f1_score(labels, by_words, zero_division=0):.4f})"
    print(f"entity F1 {f1_score(labels, found, zero_division=0):.4f} of {len(labels):,} texts{floor}")
    for row, ours in list(zip(parts[2], found))[:3]:
        print(f"\n  {shown(row, ours)}")
    print(f"\nwritten: {path}\nagain:", shlex.join([sys.executable, *sys.argv, "--saved", str(path)]))


if __name__ == "__main__":
    main(arguments)
