"""Train a language model on any text and measure it in bits per character of text that it has not seen.

    python examples/language_model.py                                   # the source of Python's standard library
    python examples/language_model.py --data novel.txt --minutes 10 --model llama
    python examples/language_model.py --data train.txt --valid valid.txt --test test.txt
    python examples/language_model.py --data FOLDER --pattern "*.md"    # a folder; files are held out as a whole
    python examples/language_model.py --tfds tiny_shakespeare           # a data set with a feature `text`
    python examples/language_model.py --saved outputs/language_model.keras --prompt "Once upon"

Bits per character compare models of any vocabulary, and compressors: the floor is what xz needs for the held-out text
behind the one to train on, of which at most `--limit` characters are read. Ctrl-C ends the training early.
Needs `pip install ".[examples]"` in a clone, and a backend.
To copy it, take `reading.py` and `tasks.py` along.
"""

import lzma
import math
import shlex
import sys
from pathlib import Path

import reading
import tasks

SIZES = {"vocabulary_size": 2000, "length": 128, "batch_size": 16, "layers": 4, "heads": 4, "hidden_dim": 192}
SIZES |= {"limit": (4_000_000, "most characters to train on"), "learning_rate": 3e-3}
SIZES |= {"temperature": (0.7, "of the sample: below 1 safer, above 1 wilder")}


def parse_arguments(argv=None):
    parser = tasks.options(__doc__, minutes=5.0, **SIZES)
    parser.add_argument("--model", choices=("gpt", "llama"), default="gpt", help="what to train; default: gpt")
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--data", metavar="PATH", type=Path, help="a text file, or a folder of them")
    text.add_argument("--tfds", metavar="NAME", help="a data set of TensorFlow Datasets")
    parser.add_argument("--pattern", metavar="GLOB", default="*.txt", help="of the files in a folder; default: *.txt")
    for part in ("--valid", "--test"):
        parser.add_argument(part, metavar="FILE", type=Path, help="without it, a part of the text is held out")
    parser.add_argument("--prompt", metavar="TEXT", help="what the sample begins with; default: as the test text does")
    args = parser.parse_args(argv)
    if not bool(args.valid) == bool(args.test) <= bool(args.data):
        parser.error("--valid and --test go together, with --data")
    return args


if __name__ == "__main__":
    arguments = parse_arguments()
    tasks.choose_backend(arguments)

import keras
import numpy as np

import keras_transformer as kt


def read_texts(args):
    """(train, valid, test), lists of texts: whole ones where there are several, else beginning, middle and end."""
    if args.test:
        return tuple([reading.read_text(path)] for path in (args.data, args.valid, args.test))
    if args.data and args.data.is_file():
        return reading.in_three(reading.read_text(args.data), args.data)
    if args.data and not args.data.is_dir():
        raise ValueError(f"{args.data} is neither a file nor a folder")
    if args.tfds:
        texts = [text.decode() for (text,) in reading.tfds_rows(args.tfds, "text")]
        if len(texts) == 1:
            return reading.in_three(*texts, args.tfds)
    else:
        files = sorted(args.data.rglob(args.pattern)) if args.data else reading.python_files()
        texts = [text for _, text in reading.read_all(files)]
    return reading.split(texts, key=str, valid=0.02, test=0.02)


def encode(texts, tokenizer):
    """One stream of ids. Line by line, since a tokenizer puts a space before each text: words are the same anywhere."""
    ids = []
    for text in texts:
        lines = tokenizer.encode(text.splitlines(keepends=True))
        ids += [token_id for line in lines for token_id in line] + [tokenizer.stop_token_id]
    return ids


def build(tokenizer, args):
    sizes = {"num_layers": args.layers, "num_heads": args.heads, "hidden_dim": args.hidden_dim, "dropout": 0.0}
    sizes |= {"vocabulary_size": tokenizer.vocabulary_size, "stop_token_id": tokenizer.stop_token_id}
    if args.model == "llama":
        return kt.models.llama(None, **sizes, intermediate_dim=args.hidden_dim * 8 // 3, tie_embeddings=True)
    return kt.models.gpt(None, **sizes, intermediate_dim=args.hidden_dim * 4, max_sequence_length=args.length)


def train(texts, valid, args):
    tokenizer = kt.data.train_tokenizer("".join(texts).splitlines(keepends=True), args.vocabulary_size)

    def batches(ids, **options):
        rows = [ids[i : i + args.length + 1] for i in range(0, len(ids) - 1, args.length)]  # they share a token
        objective = kt.objectives.CausalLM(seed=args.seed)
        return kt.objectives.Batches(rows, objective, args.batch_size, args.length, **options)

    ids = encode(texts, tokenizer)
    print(f"{sum(map(len, texts)):,} characters, {len(ids):,} tokens, {tokenizer.vocabulary_size:,} different")
    model = build(tokenizer, args)
    valid_data = batches(encode(valid, tokenizer)[: 64 * args.length], again=False)
    history = tasks.fit(model, batches(ids), valid_data, args, args.learning_rate)
    kt.inspect.plot_history(history, args.output / "language_model.png")
    kt.data.save_text_model(model, tokenizer, args.output / "language_model.keras")


def bits_per_character(model, ids, characters, args):
    """Every token is predicted once, most of them behind half a row of tokens at least."""
    ids, step = [ids[-1], *ids], args.length // 2  # a text begins where another one has ended
    starts = range(0, max(1, len(ids) - 1 - step), step)
    rows = [ids[start : start + args.length + 1] for start in starts]
    inputs, labels, weights = kt.objectives.CausalLM()(rows, length=args.length)
    weights[1:, : args.length - step] = 0
    model.compile(loss=kt.training.MaskedCrossentropy(), weighted_metrics=[kt.training.TokenCrossentropy()])
    found = model.evaluate(inputs, labels, args.batch_size, 0, weights, return_dict=True)
    return found["token_crossentropy"] * (len(ids) - 1) / math.log(2) / characters


def xz_bits_per_character(train, test):
    """What the test text adds to the size of the compressed training text."""
    before, after = (len(lzma.compress(text.encode())) for text in (train, train + test))
    return 8 * (after - before) / len(test)


def main(args):
    keras.utils.set_random_seed(args.seed)
    with tasks.one_line_errors():
        train_texts, valid, test = read_texts(args)
        train_texts = reading.cut(train_texts, args.limit)
        args.output.mkdir(parents=True, exist_ok=True)
        if not args.saved:
            train(train_texts, valid, args)
        path = args.saved or args.output / "language_model.keras"
        model, tokenizer = kt.data.load_text_model(path)  # the file, also just after the training
        text = "".join(test)
        ids = tokenizer.encode(args.prompt or text.lstrip().partition("\n")[0])[0][: args.length // 2]
        ours = bits_per_character(model, encode(test, tokenizer), len(text), args)
        xz = xz_bits_per_character("".join(train_texts), text)
        print(f"\n{len(text):,} characters held out: {ours:.3f} bits per character (xz: {xz:.3f})\n")
        options = {"temperature": args.temperature, "top_p": 0.95, "seed": args.seed, "stop_token_id": []}
        sample = kt.generate(model, [ids], args.length - len(ids), **options)
        print(tokenizer.decode(np.asarray(sample))[0].replace("\n ", "\n"))
        print("\nagain:", shlex.join([sys.executable, *sys.argv, "--saved", str(path)]))


if __name__ == "__main__":
    main(arguments)
