"""Train a BERT on plain text: to restore hidden tokens, and to tell whether a sentence follows another one.

    python examples/masked_lm.py                                    # docstrings of installed packages
    python examples/masked_lm.py --data novel.txt --minutes 10      # a file, or a folder of files *.txt
    python examples/masked_lm.py --data train.txt --valid valid.txt --test test.txt
    python examples/masked_lm.py --tfds imdb_reviews                # with a feature `text`
    python examples/masked_lm.py --saved outputs/masked_lm.keras --fill "Return the ___ of a list."

What it has learnt is of use to `classify_text.py` and others: `--from outputs/masked_lm.keras`. The floor of the hidden
tokens is to say the most frequent one always, that of the sentences is 0.5. Ctrl-C ends the training early.
Needs `pip install ".[examples]"` in a clone, and a backend.
To copy it, take `docstrings.py`, `encoder.py`, `reading.py` and `tasks.py` along.
"""

import re
import shlex
import sys

import reading
import tasks

SIZES = {"vocabulary_size": 4000, "layers": 3, "heads": 4, "hidden_dim": 128, "max_tokens": 64, "batch_size": 32}
SIZES |= {"limit": 12_000, "dropout": 0.1, "learning_rate": 2e-3}
HOLE = "___"


def parse_arguments(argv=None):
    parser = tasks.options(__doc__, minutes=5.0, **SIZES)
    parser.add_argument("--fill", metavar="TEXT", nargs="+", help=f"fill each {HOLE} in these by --saved, and leave")
    args = tasks.parse_with_rows(parser, argv, "a text file, or a folder with files *.txt")
    if args.fill and not args.saved:
        parser.error("--fill needs --saved")
    return args


if __name__ == "__main__":
    arguments = parse_arguments()
    tasks.choose_backend(arguments)

import keras
import numpy as np

import encoder
import keras_transformer as kt
from docstrings import find_texts


class MaskedPairs(keras.utils.PyDataset):
    """Batches of pairs of sentences with hidden tokens; with `again` other pairs and tokens in every epoch."""

    def __init__(self, texts, tokenizer, args, again=False):
        super().__init__()
        sentences = [tokenizer.encode(re.split(r"(?<=[.!?;:])\s+", text)) for text in texts]
        self.documents = [text for text in sentences if len(text) > 1]
        print(f"{len(texts) - len(self.documents):,} of {len(texts):,} documents are one sentence: of no use", end="; ")
        if len(self.documents) < 2:
            raise ValueError("two documents of several sentences are needed, with an empty line between them")
        self.special = (tokenizer.start_token_id, tokenizer.stop_token_id)
        mask = tokenizer.extra_token_ids[0]
        self.objective = kt.objectives.MaskedLM(tokenizer.vocabulary_size, mask, self.special, seed=args.seed)
        self.args, self.again, self.epoch = args, again, -1
        self.draw()
        cut = sum(len(pair.token_ids) == args.max_tokens for pair in self.pairs)
        print(f"{cut:,} of {len(self.pairs):,} pairs have {args.max_tokens} tokens or more, and are cut")

    def draw(self):
        self.epoch += 1
        options = {"max_length": self.args.max_tokens, "seed": self.args.seed, "epoch": self.epoch}
        self.pairs = kt.objectives.next_sentence_pairs(self.documents, *self.special, **options)
        np.random.default_rng((self.args.seed, self.epoch)).shuffle(self.pairs)

    def __len__(self):
        return -(-len(self.pairs) // self.args.batch_size)

    def __getitem__(self, index):
        size, length = self.args.batch_size, self.args.max_tokens
        pairs, first = self.pairs[index * size : (index + 1) * size], self.epoch * len(self.pairs) + index * size
        ids, labels, weights = self.objective([pair.token_ids for pair in pairs], first, length)
        # Logits are most of the work: only hidden places become some, rarely more than a quarter of all.
        places = np.argsort(-weights, axis=1, kind="stable")[:, : length // 4]
        labels, weights = (np.take_along_axis(x, places, axis=1) for x in (labels, weights))
        inputs = {"token_ids": ids, "segment_ids": kt.data.pad_batch([x.segment_ids for x in pairs], 0, length)[0]}
        inputs["masked_positions"] = np.where(weights > 0, places, -1).astype("int32")
        labels = {"masked_lm": labels, "next_sentence": np.asarray([1 - pair.is_next for pair in pairs], "int32")}
        return inputs, labels, {"masked_lm": weights, "next_sentence": np.ones(len(pairs), "float32")}

    def on_epoch_end(self):
        if self.again:
            self.draw()


def scored():
    """Loss and metrics, for `compile`."""
    heads = ("masked_lm", "next_sentence")
    metrics = {head: [kt.training.TokenAccuracy(name="accuracy")] for head in heads}
    return {"loss": {head: kt.training.MaskedCrossentropy() for head in heads}, "weighted_metrics": metrics}


def fill(model, tokenizer, text, args):
    """The text with what the model puts in its holes, a token for each."""
    mask, parts = tokenizer.extra_token_ids[0], tokenizer.encode([part.strip() for part in text.split(HOLE)])
    ids = [tokenizer.start_token_id, *parts[0], *(i for part in parts[1:] for i in [mask, *part])]
    if len(ids) >= args.max_tokens:
        raise ValueError(f"{len(ids) - 1} tokens are more than {args.max_tokens - 2}: {text[:60]!r} ...")
    ids = [*ids, tokenizer.stop_token_id]
    holes, inputs = [i for i, x in enumerate(ids) if x == mask], encoder.inputs([ids], tokenizer, args.max_tokens)
    inputs["masked_positions"] = np.asarray([holes or [-1]], "int32")
    for place, logits in zip(holes, model.predict(inputs, verbose=0)["masked_lm"][0]):
        ids[place] = int(logits.argmax())
    return tokenizer.decode(ids)[0]


def main(args):
    keras.utils.set_random_seed(args.seed)
    with tasks.one_line_errors():
        path = args.saved or args.output / "masked_lm.keras"
        if args.fill:
            model, tokenizer = encoder.load(path, args, "pretraining")
            return print(*(fill(model, tokenizer, text, args) for text in args.fill), sep="\n")
        parts = reading.read_parts(args, reading.read_documents, ["text"], bytes.decode, find_texts, str, 0.05, 0.05)
        args.output.mkdir(parents=True, exist_ok=True)
        if not args.saved:
            backbone, tokenizer = encoder.start(parts[0], args)
            model = kt.models.with_head(backbone, "pretraining", masked_positions=True)
            data = [MaskedPairs(texts, tokenizer, args, again) for texts, again in zip(parts, (True, False, False))]
            history = tasks.fit(model, *data[:2], args, args.learning_rate, **scored())
            kt.inspect.plot_history(history, args.output / "masked_lm.png")
            encoder.save(model, tokenizer, path, read=[reading.same(text) for text in parts[0]])
        model, tokenizer = encoder.load(path, args, "pretraining")  # the file, also just after the training
        data = MaskedPairs(parts[2], tokenizer, args)
        model.compile(**scored())
        found = model.evaluate(data, verbose=0, return_dict=True)
        hidden = [y["masked_lm"][weights["masked_lm"] > 0] for _, y, weights in (data[i] for i in range(len(data)))]
        known = np.bincount([token_id for text in tokenizer.encode(parts[0] or parts[2]) for token_id in text])
        count, floor = sum(map(len, hidden)), np.mean(np.concatenate(hidden) == known.argmax())
        print(f"\naccuracy {found['masked_lm_accuracy']:.4f} of {count:,} hidden tokens (most frequent: {floor:.4f})")
        print(f"accuracy {found['next_sentence_accuracy']:.4f} of {len(data.pairs):,} pairs (guessed: 0.5)")
        for words in [text.split()[: args.max_tokens // 5] for text in parts[2][:3]]:
            words[len(words) // 2] = HOLE
            print(f"\n  hidden    {' '.join(words)}\n  restored  {fill(model, tokenizer, ' '.join(words), args)}")
    print(f"\nwritten: {path}\nagain:", shlex.join([sys.executable, *sys.argv, "--saved", str(path)]))


if __name__ == "__main__":
    main(arguments)
