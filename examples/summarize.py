"""Train a BART or T5 to shorten texts: first by restoring damaged text of the same kind, then on pairs.

    python examples/summarize.py                            # docstrings of installed packages: body -> first line
    python examples/summarize.py --tsv train.tsv --valid valid.tsv --test test.tsv --minutes 10 --model t5
    python examples/summarize.py --tsv all.tsv --columns 0 2     # columns of the long and the short text, from 0
    python examples/summarize.py --tfds cnn_dailymail
    python examples/summarize.py --saved outputs/summarizer.keras --summarize "A long text. It says a lot."

ROUGE stands beside that of the lead, the first words of the text. It knows words of the letters a to z alone, and cuts
English endings off; where texts have other letters, words are of any, as they are. Ctrl-C ends each part of training.
Needs `pip install ".[examples]"` in a clone, and a backend.
To copy it, take `docstrings.py`, `reading.py`, `rouge.py` and `tasks.py` along.
"""

import shlex
import sys

import reading
import tasks

SIZES = {"vocabulary_size": 4000, "layers": 2, "heads": 4, "hidden_dim": 128, "max_tokens": 192, "batch_tokens": 2048}
SIZES |= {"buckets": 4, "beams": 4, "max_new_tokens": 32, "limit": 12_000}
SPECIAL = ("pad_token_id", "start_token_id", "stop_token_id")
SPANS = 40  # sentinels of T5's span corruption


def parse_arguments(argv=None):
    share = (0.4, "share of --minutes that goes into restoring damaged texts, 0 to below 1")
    parser = tasks.options(__doc__, minutes=5.0, **SIZES, dropout=0.1, learning_rate=2e-3, pretrain=share)
    parser.add_argument("--model", choices=("bart", "t5"), default="bart", help="what to train; default: bart")
    parser.add_argument("--summarize", metavar="TEXT", nargs="+", help="shorten these with --saved, and leave")
    args = tasks.parse_with_pairs(parser, argv)
    if args.summarize and not args.saved:
        parser.error("--summarize needs --saved")
    if args.pretrain >= 1:
        parser.error("--pretrain must be below 1")
    return args


if __name__ == "__main__":
    arguments = parse_arguments()
    tasks.choose_backend(arguments)

import keras
import numpy as np

import keras_transformer as kt
from docstrings import find_docstrings
from rouge import rouge


def build(tokenizer, args):
    sizes = {"vocabulary_size": tokenizer.vocabulary_size, "num_layers": args.layers, "num_heads": args.heads}
    sizes |= {"hidden_dim": args.hidden_dim, "intermediate_dim": 4 * args.hidden_dim, "dropout": args.dropout}
    sizes |= {name: getattr(tokenizer, name) for name in SPECIAL}
    if args.model == "t5":
        return kt.models.t5(None, **sizes, key_dim=args.hidden_dim // args.heads, gated=True)
    room = 4 * args.max_tokens  # of an untrained model a text can have more tokens than it was written with
    return kt.models.bart(None, **sizes, max_sequence_length=room, norm_placement="pre")


def damaged(texts, tokenizer, args, again=True):
    """Batches to pretrain on: the texts in one stream, cut into rows, and damaged as the family's authors do it."""
    row, ids = args.max_tokens // 3, [token_id for text in tokenizer.encode(texts) for token_id in text]
    rows = [ids[i : i + row] for i in range(0, len(ids), row)]
    extra, special = tokenizer.extra_token_ids, {name: getattr(tokenizer, name) for name in SPECIAL}
    if args.model == "t5":
        objective = kt.objectives.SpanCorruption(extra, **special, seed=args.seed)
    else:
        objective = kt.objectives.Denoising(extra[0], **special, seed=args.seed)
    return kt.objectives.Batches(rows, objective, max(1, args.batch_tokens // (2 * row)), again=again)


def encode(texts, tokenizer, args):
    """Ids of the long texts, at most `--max-tokens` of each; it is said how often that is too few."""
    ids = tokenizer.encode(texts)
    if too_long := sum(len(row) > args.max_tokens for row in ids):
        print(f"{too_long:,} of {len(ids):,} texts have more than {args.max_tokens} tokens: their ends are not read")
    return [row[: args.max_tokens] for row in ids]


def train(train_pairs, valid_pairs, path, args):
    texts = train_pairs.sources + train_pairs.targets
    tokenizer = kt.data.train_tokenizer(texts, args.vocabulary_size, extra_tokens=SPANS)
    model = build(tokenizer, args)
    if args.pretrain:
        print("\nrestoring damaged texts")
        parts = zip((train_pairs, valid_pairs), (True, False))
        data = [damaged(pairs.sources, tokenizer, args, again) for pairs, again in parts]
        tasks.fit(model, *data, args, args.learning_rate, share=args.pretrain)

    def pairs_of(pairs, buckets):
        sides = encode(pairs.sources, tokenizer, args), tokenizer.encode(pairs.targets)
        limits = {"max_length": (args.max_tokens, args.max_new_tokens), "overlong": "truncate"}
        limits |= {"batch_tokens": args.batch_tokens, "seed": args.seed}
        data = kt.data.BucketedPairs(*sides, buckets=buckets, **limits)
        print(f"{data.summary()}; {data.num_truncated:,} short texts have {args.max_new_tokens} tokens or more: cut")
        return data

    print("\nshortening texts")
    data = pairs_of(train_pairs, args.buckets)
    valid = pairs_of(valid_pairs, [shape[1:] for shape in data.shapes])  # no further shapes to compile
    told = {"best": ("val_perplexity", "min"), "share": 1 - args.pretrain}
    history = tasks.fit(model, data, valid, args, args.learning_rate / 2, **told)
    kt.inspect.plot_history(history, args.output / "summarizer.history.png")
    kt.data.save_text_model(model, tokenizer, path)


def shorten(model, tokenizer, texts, args):
    ids = kt.generate(model, encode(texts, tokenizer, args), args.max_new_tokens, num_beams=args.beams)
    return tokenizer.decode(ids)


def main(args):
    keras.utils.set_random_seed(args.seed)
    with tasks.one_line_errors():
        path = args.saved or args.output / "summarizer.keras"
        if args.summarize:
            return print(*shorten(*kt.data.load_text_model(path), args.summarize, args), sep="\n")
        train_pairs, valid_pairs, test_pairs = reading.read_pairs(args, find_docstrings)
        args.output.mkdir(parents=True, exist_ok=True)
        if not args.saved:
            train(train_pairs, valid_pairs, path, args)
        model, tokenizer = kt.data.load_text_model(path)  # the file, also just after the training
        summaries = shorten(model, tokenizer, test_pairs.sources, args)
    words = round(np.mean([len(text.split()) for text in train_pairs.targets or test_pairs.targets]))
    leads = [" ".join(text.split()[:words]) for text in test_pairs.sources]
    print(f"\nROUGE-1, -2, -L of {len(test_pairs):,} texts: {rouge(summaries, test_pairs.targets)}")
    print(f"of their first {words} words: {rouge(leads, test_pairs.targets)}")
    for (text, target), summary in list(zip(test_pairs, summaries))[:: -(-len(test_pairs) // 4)]:
        print(f"\n  text       {text[:100]}\n  summary    {summary}\n  reference  {target}")
    text, summary = min(zip(test_pairs.sources, summaries), key=lambda pair: len(pair[0]))
    (text,) = tokenizer.decode(tokenizer.encode(text)[0][: args.max_tokens])  # as much of it as was read
    picture = args.output / "summarizer.png"
    kt.inspect.plot_cross_attention(model, tokenizer, text, summary, picture)
    print(f"\nwritten: {path}, {picture}\nagain:", shlex.join([sys.executable, *sys.argv, "--saved", str(path)]))


if __name__ == "__main__":
    main(arguments)
