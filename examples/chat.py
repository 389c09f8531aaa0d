"""Train a model to answer, measure how well it foresees answers that it has not seen, and talk to it.

    python examples/chat.py                                 # the exchanges of chatterbot-corpus, in English
    python examples/chat.py --language german --model transformer
    python examples/chat.py --tsv exchanges.tsv             # your own: what is said, a tab, what is answered
    python examples/chat.py --saved outputs/chat.keras --talk

`gpt` continues what was said, `transformer` reads it and writes the answer. Both are scored alike: the perplexity of a
piece of an answer. The floor is that of a model that knows nothing but how frequent the pieces are. Ctrl-C ends the
training early. Needs `pip install ".[examples]"` in a clone, and a backend.
To copy it, take `exchanges.py`, `reading.py` and `tasks.py` along.
"""

import contextlib
import shlex
import sys

import reading
import tasks

SIZES = {"vocabulary_size": 1500, "layers": 2, "heads": 4, "hidden_dim": 128, "max_tokens": 64, "batch_size": 32}
SIZES |= {"limit": 20_000, "dropout": 0.2, "learning_rate": 3e-3}
SIZES |= {"temperature": (0.7, "of answers: below 1 safer, above 1 wilder")}


def parse_arguments(argv=None):
    parser = tasks.options(__doc__, minutes=2.0, **SIZES)
    parser.add_argument("--model", choices=("gpt", "transformer"), default="gpt", help="default: gpt")
    parser.add_argument("--language", default="english", help="of chatterbot-corpus; default: english")
    parser.add_argument("--talk", action="store_true", help="answer what you type, by --saved; an empty line ends it")
    args = tasks.parse_with_pairs(parser, argv)
    if args.talk and not args.saved:
        parser.error("--talk needs --saved")
    return args


if __name__ == "__main__":
    arguments = parse_arguments()
    tasks.choose_backend(arguments)

import keras
import numpy as np

import keras_transformer as kt
from exchanges import exchanges


class Answers(kt.objectives.CausalLM):
    """Rows are what was said, a start token, and the answer, of which alone the tokens count.

    An answer of more than `most` tokens was cut off, and does not end there.
    """

    def __init__(self, start_token_id, stop_token_id, most, seed=0):
        super().__init__(start_token_id, stop_token_id, seed=seed)
        self.most = most

    def example(self, row, number=0):
        said, found = row.index(self.front[0]) + 1, super().example(row, number)
        found["weights"] = [0] * said + found["weights"][said:]
        return {name: ids[: said + self.most + 1] for name, ids in found.items()}


def batches(pairs, tokenizer, args):
    said, replies = (tokenizer.encode(side) for side in (pairs.sources, pairs.targets))
    too_long = sum(max(map(len, pair)) > args.max_tokens for pair in zip(said, replies))
    print(f"{too_long:,} of {len(pairs):,} exchanges have a side of more than {args.max_tokens} tokens, and are cut")
    said, most = [row[: args.max_tokens] for row in said], args.max_tokens
    if args.model == "transformer":
        cut = {"max_length": (most, most + 1), "overlong": "truncate"}
        return kt.data.BucketedPairs(said, replies, batch_size=args.batch_size, buckets=1, seed=args.seed, **cut)
    start, stop = tokenizer.start_token_id, tokenizer.stop_token_id
    rows = [[*before, start, *reply] for before, reply in zip(said, replies)]
    return kt.objectives.Batches(rows, Answers(start, stop, most, args.seed), args.batch_size, 2 * most + 2)


def build(tokenizer, args):
    sizes = {"num_layers": args.layers, "num_heads": args.heads, "hidden_dim": args.hidden_dim}
    sizes |= {"intermediate_dim": 4 * args.hidden_dim, "dropout": args.dropout}
    sizes |= {name: getattr(tokenizer, name) for name in ("pad_token_id", "start_token_id", "stop_token_id")}
    size = tokenizer.vocabulary_size
    if args.model == "transformer":
        return kt.models.transformer(size, size, **sizes, share_embeddings="all", norm_placement="pre")
    return kt.models.gpt(None, size, max_sequence_length=2 * args.max_tokens + 2, **sizes)


def unigram_perplexity(known, new, tokenizer, length):
    """Of new answers by how often each token is in the known ones (and once more, so that none has probability 0)."""
    known, new = tokenizer.encode(known), tokenizer.encode(new)
    known, new = ([[*row, tokenizer.stop_token_id][: length + 1] for row in side] for side in (known, new))
    counts = 1 + np.bincount(np.concatenate(known), minlength=tokenizer.vocabulary_size)
    return np.exp(-np.log(counts / counts.sum())[np.concatenate(new)].mean())


def answer(model, tokenizer, texts, args, seed=0):
    """An answer to each text."""
    rows, start = [row[: args.max_tokens] for row in tokenizer.encode(texts)], tokenizer.start_token_id
    options = {"temperature": args.temperature, "top_p": 0.9, "seed": seed}
    if len(model.inputs) == 2:
        return tokenizer.decode(kt.generate(model, rows, args.max_tokens, **options))
    rows = [[start, *row, start] for row in rows]
    found = kt.generate(model, rows, args.max_tokens, **options)
    return tokenizer.decode([new[len(row) :] for row, new in zip(rows, found)])


def talk(model, tokenizer, args):
    with contextlib.suppress(EOFError, KeyboardInterrupt):  # Ctrl-D and Ctrl-C end it as well
        while text := input("you: ").strip():
            print("it: ", *answer(model, tokenizer, [text], args, args.seed))
            args.seed += 1  # another answer another time


def main(args):
    keras.utils.set_random_seed(args.seed)
    with tasks.one_line_errors():
        path = args.saved or args.output / "chat.keras"
        if args.talk:
            return talk(*kt.data.load_text_model(path), args)
        train, valid, test = reading.read_pairs(args, lambda limit: exchanges(args.language, limit))
        args.output.mkdir(parents=True, exist_ok=True)
        if not args.saved:
            tokenizer = kt.data.train_tokenizer(train.sources + train.targets, args.vocabulary_size)
            data, model = [batches(pairs, tokenizer, args) for pairs in (train, valid)], build(tokenizer, args)
            history = tasks.fit(model, *data, args, args.learning_rate, best=("val_perplexity", "min"))
            kt.inspect.plot_history(history, args.output / "chat.png")
            kt.data.save_text_model(model, tokenizer, path)
        model, tokenizer = kt.data.load_text_model(path)  # the file, also just after the training
        args.model = "transformer" if len(model.inputs) == 2 else "gpt"
        model.compile(loss=kt.training.MaskedCrossentropy(), weighted_metrics=[kt.training.Perplexity()])
        found = model.evaluate(batches(test, tokenizer, args), verbose=0, return_dict=True)["perplexity"]
        floor = unigram_perplexity(train.targets or test.targets, test.targets, tokenizer, args.max_tokens)
        print(f"\nperplexity {found:.1f} of {len(test):,} answers (by frequency alone: {floor:.1f})")
        shown = test[:: -(-len(test) // 5)]
        answers = answer(model, tokenizer, [said for said, _ in shown], args, args.seed)
    for (said, reply), ours in zip(shown, answers):
        print(f"\n  said       {said}\n  answered   {ours}\n  reference  {reply}")
    print(f"\nwritten: {path}\ntalk:", shlex.join([sys.executable, sys.argv[0], "--saved", str(path), "--talk"]))


if __name__ == "__main__":
    main(arguments)
