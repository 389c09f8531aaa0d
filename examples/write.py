"""Continue a text with a saved decoder-only model, letter by letter on the terminal.

    python examples/write.py MODEL.keras "Once upon" --max-new-tokens 200 --temperature 0.8 --top-p 0.95 --seed 1
    echo "Once upon" | python examples/write.py MODEL.keras --stop-string "The end"
    python examples/write.py MODEL.keras "Once upon" --train TEXT.txt --minutes 5    # makes the model first

Tokens are the most probable ones, or drawn if a temperature, top-k or top-p is given. Beside MODEL.keras lies
MODEL.tokenizer.json, as `kt.data.save_text_model` writes them. Ctrl-C ends the text, or the training, which then keeps
what was learnt. Needs `pip install ".[text]"` in a clone, and a backend.
To copy it, take `reading.py` and `tasks.py` along.
"""

import argparse
import sys
from pathlib import Path

import reading
import tasks

LENGTH, BATCH_SIZE, LEARNING_RATE = 256, 8, 2e-3


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL.keras", type=Path)
    parser.add_argument("text", nargs="?", help="how the text begins (default: standard input)")
    parser.add_argument("--max-new-tokens", type=int, default=200, metavar="N", help="default: 200")
    parser.add_argument("--temperature", type=float, metavar="X", help="draw: below 1 safer, above 1 wilder")
    parser.add_argument("--top-k", type=int, metavar="N", help="draw from the N most probable tokens only")
    parser.add_argument("--top-p", type=float, metavar="X", help="draw from the most probable ones up to this mass")
    parser.add_argument("--repetition-penalty", type=float, metavar="X", help="above 1 repeats less")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed draws the same text")
    parser.add_argument("--stop-string", dest="stop_strings", action="append", metavar="TEXT", help="end behind it")
    parser.add_argument("--backend", choices=("tensorflow", "jax", "torch"), help="default: as Keras is set up")
    parser.add_argument("--train", metavar="TEXT.txt", type=Path, help="train MODEL.keras on this text first")
    parser.add_argument("--minutes", type=float, default=5.0, metavar="X", help="of training; default: 5")
    parser.add_argument("--level", choices=("subword", "character"), default="subword", help="of the tokens to train")
    return parser.parse_args(argv)


if __name__ == "__main__":
    arguments = parse_arguments()
    tasks.choose_backend(arguments)

import keras
import numpy as np

import keras_transformer as kt


def build(vocabulary_size, hidden_dim=128, num_layers=3):
    """A GPT: blocks that look back only, between a table of tokens and the same table in reverse."""
    token_ids = keras.Input((None,), dtype="int32")
    embedding = kt.layers.PositionalEmbedding(vocabulary_size, hidden_dim, pad_token_id=None)
    x = embedding(token_ids)
    for _ in range(num_layers):
        x = kt.layers.DecoderBlock(num_heads=4, intermediate_dim=4 * hidden_dim, norm_placement="pre")(x)
    x = keras.layers.LayerNormalization()(x)
    return keras.Model(token_ids, embedding(x, reverse=True))


def train(args):
    if args.model.suffix != ".keras":
        raise ValueError(f"{args.model} must end in .keras")
    text = reading.read_text(args.train)
    tokenizer = kt.data.train_tokenizer(text.splitlines(keepends=True), 2000, args.level)
    token_ids = np.asarray(tokenizer.encode(text)[0], "int32")
    if len(token_ids) <= LENGTH:
        raise ValueError(f"{args.train} has {len(token_ids)} tokens; more than {LENGTH} are needed")
    rows = (len(token_ids) - 1) // LENGTH
    x, y = (token_ids[i : i + rows * LENGTH].reshape(rows, LENGTH) for i in (0, 1))
    repeats = -(-64 * BATCH_SIZE // rows)  # a short text several times in an epoch, of which each prints a line
    model = build(tokenizer.vocabulary_size)
    print(f"{len(token_ids):,} tokens, {tokenizer.vocabulary_size:,} different; {model.count_params():,} parameters")
    args.model.parent.mkdir(parents=True, exist_ok=True)
    model.compile(keras.optimizers.Adam(LEARNING_RATE), kt.training.MaskedCrossentropy())
    budget = kt.training.Budget(LEARNING_RATE, 50, seconds=60 * args.minutes)
    until = [budget, kt.training.StopOnInterrupt()]
    x, y = (np.tile(part, (repeats, 1)) for part in (x, y))
    model.fit(x, y, batch_size=BATCH_SIZE, epochs=10_000, callbacks=until, verbose=2)
    kt.data.save_text_model(model, tokenizer, args.model)
    print(f"{budget.step:,} batches in {args.minutes:g} minutes, compiling included")
    if budget.step < 300:
        print("too few to learn much: give more --minutes")


def write(args):
    model, tokenizer = kt.data.load_text_model(args.model)
    if len(model.inputs) != 1:
        raise ValueError(f"{args.model} continues no text: it has {len(model.inputs)} inputs, as a translator has")
    text = args.text if args.text is not None else sys.stdin.read().rstrip("\n")
    if not text:
        raise ValueError("there is no text to continue")
    names = ("temperature", "top_k", "top_p", "repetition_penalty", "seed", "stop_strings")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    print(text, end="", flush=True)
    for (piece,) in kt.stream(model, text, args.max_new_tokens, tokenizer=tokenizer, **options):
        print(piece, end="", flush=True)
    print()


def main(args):
    keras.utils.set_random_seed(args.seed or 0)
    with tasks.one_line_errors():
        if args.train:
            train(args)
        try:
            write(args)
        except KeyboardInterrupt:
            print()  # the text ends here


if __name__ == "__main__":
    main(arguments)
