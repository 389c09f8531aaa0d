"""Train a BERT to put texts that belong together near each other, and search with it.

    python examples/similar_sentences.py                    # docstrings of installed packages: body and first line
    python examples/similar_sentences.py --tsv pairs.tsv    # your own: two texts that belong together, a tab between
    python examples/similar_sentences.py --tsv train.tsv --valid valid.tsv --test test.tsv --minutes 10
    python examples/similar_sentences.py --saved outputs/sentences.keras --search "close a file" --lines notes.txt
    python examples/similar_sentences.py --saved FOLDER --duplicates --lines notes.txt    # by a published encoder

Every text is asked which of the others in its batch is its partner. Scored is how often the nearest of all second texts
held out is the right one, beside the nearest by the words in common (TF-IDF). Ctrl-C ends the training early.
Needs `pip install ".[examples]"` in a clone, and a backend.
To copy it, take `docstrings.py`, `encoder.py`, `reading.py` and `tasks.py` along.
"""

import shlex
import sys
from pathlib import Path

import reading
import tasks

SIZES = {"vocabulary_size": 4000, "layers": 2, "heads": 4, "hidden_dim": 128, "max_tokens": 64, "batch_size": 64}
SIZES |= {"limit": 20_000, "dropout": 0.1, "learning_rate": 2e-3}
SIZES |= {"temperature": (0.05, "of the loss: the lower, the more the hardest of the others count")}


def parse_arguments(argv=None):
    parser = tasks.options(__doc__, minutes=5.0, **SIZES)
    tasks.add_from(parser)
    parser.add_argument("--search", metavar="TEXT", help="show the lines of --lines that are nearest, by --saved")
    parser.add_argument("--duplicates", action="store_true", help="show the lines of --lines that are most alike")
    parser.add_argument("--lines", metavar="FILE", type=Path, help="what to search")
    args = tasks.parse_with_pairs(parser, argv)
    if (args.search or args.duplicates) and not (args.saved and args.lines):
        parser.error("--search and --duplicates need --saved and --lines")
    return args


if __name__ == "__main__":
    arguments = parse_arguments()
    tasks.choose_backend(arguments)

import keras
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

import encoder
import keras_transformer as kt
from docstrings import find_docstrings


class Pairs(keras.utils.PyDataset):
    """Batches in which both texts of a pair are rows, with one number; pairs with the same second text share it."""

    def __init__(self, pairs, tokenizer, args):
        super().__init__()
        self.inputs = encoder.encode([text for pair in pairs for text in pair], tokenizer, args)
        numbers = {text: number for number, text in enumerate(pairs.targets)}
        self.numbers = np.asarray([numbers[text] for text in pairs.targets], "int32")
        self.size, self.random = min(args.batch_size, len(pairs)), np.random.default_rng(args.seed)
        self.order = self.random.permutation(len(pairs))

    def __len__(self):
        return len(self.order) // self.size  # whole batches: what is left out in one epoch comes in another

    def __getitem__(self, index):
        pairs = self.order[index * self.size : (index + 1) * self.size]
        rows = (2 * pairs[:, None] + [0, 1]).ravel()
        return {name: x[rows] for name, x in self.inputs.items()}, np.repeat(self.numbers[pairs], 2)

    def on_epoch_end(self):
        self.order = self.random.permutation(self.order)


def train(train_pairs, valid_pairs, path, args):
    backbone, tokenizer = encoder.start(train_pairs.sources + train_pairs.targets, args)
    model = kt.models.with_head(backbone, "sentence_embedding")
    data, valid = (Pairs(pairs, tokenizer, args) for pairs in (train_pairs, valid_pairs))
    loss = kt.training.ContrastiveLoss(args.temperature)
    history = tasks.fit(model, data, valid, args, args.learning_rate, ("val_loss", "min"), loss=loss)
    kt.inspect.plot_history(history, path.with_suffix(".png"))
    kt.data.save_text_model(model, tokenizer, path)


def embed(model, tokenizer, texts, args):
    """A vector of length 1 for each text, (N, D): their products are cosines."""
    return model.predict(encoder.encode(texts, tokenizer, args), args.batch_size, verbose=0)


def hits(sources, targets, texts):
    """How often the nearest of all second texts is the right one, or has the same words, by vectors (N, D)."""
    nearest = np.asarray((sources @ targets.T).argmax(1)).ravel()
    return np.mean([texts[i] == text for i, text in zip(nearest, texts)])


def look_through_lines(path, args):
    """Print the five lines that are nearest to what is searched for, or the five pairs that are most alike."""
    model, tokenizer = encoder.load(path, args, "sentence_embedding")
    lines = [line for line in reading.read_text(args.lines).splitlines() if line.strip()]
    if args.search:
        found = embed(model, tokenizer, [args.search, *lines], args)
        cosines = found[1:] @ found[0]
        print(*(f"{cosines[i]:.3f}  {lines[i]}" for i in np.argsort(-cosines)[:5]), sep="\n")
    if args.duplicates:
        found, pairs = embed(model, tokenizer, lines, args), []
        for i in range(len(lines) - 1):  # each pair once, line by line: all at once may be more than there is memory
            cosines = found[i + 1 :] @ found[i]
            pairs += [(cosines[j], i, i + 1 + j) for j in np.argsort(-cosines)[:5]]
            pairs = sorted(pairs, reverse=True)[:5]
        print(*(f"{cosine:.3f}  {lines[i]}\n       {lines[j]}" for cosine, i, j in pairs), sep="\n")


def main(args):
    keras.utils.set_random_seed(args.seed)
    with tasks.one_line_errors():
        path = args.saved or args.output / "sentences.keras"
        if args.search or args.duplicates:
            return look_through_lines(path, args)
        train_pairs, valid_pairs, test_pairs = reading.read_pairs(args, find_docstrings)
        args.output.mkdir(parents=True, exist_ok=True)
        if not args.saved:
            train(train_pairs, valid_pairs, path, args)
        model, tokenizer = encoder.load(path, args, "sentence_embedding")  # the file, also just after the training
        sides = test_pairs.sources, test_pairs.targets
        sources, targets = (embed(model, tokenizer, texts, args) for texts in sides)
    known = train_pairs if train_pairs else test_pairs
    words = TfidfVectorizer(sublinear_tf=True).fit(known.sources + known.targets)
    by_words = [words.transform(texts) for texts in sides]
    print(f"\nright at first, of {len(test_pairs):,} texts: {hits(sources, targets, sides[1]):.4f}", end=" ")
    print(f"(by words in common: {hits(*by_words, sides[1]):.4f})")
    for i in range(0, len(test_pairs), -(-len(test_pairs) // 4)):
        found = (sources[i] @ targets.T).argmax()
        print(f"\n  text     {sides[0][i][:100]}\n  nearest  {sides[1][found]}\n  partner  {sides[1][i]}")
    print(f"\nwritten: {path}\nagain:", shlex.join([sys.executable, *sys.argv, "--saved", str(path)]))


if __name__ == "__main__":
    main(arguments)
