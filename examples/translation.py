"""Train a Transformer, or an RNN, to translate, on a CPU, in minutes: its score, its translations, where it looked.

    python examples/translation.py [--language ja]    # phrases in German (or Japanese, ...), made on the spot
    python examples/translation.py --model t5          # or bart: the same sizes in the wiring of another family
    python examples/translation.py --model rnn --cell lstm --attention luong    # what came before the Transformer
    python examples/translation.py --tsv train.tsv --valid valid.tsv --test test.tsv --minutes 20
    python examples/translation.py --tfds ted_hrlr_translate/pt_to_en    # a corpus of TensorFlow Datasets
    python examples/translation.py --translate "in 3 days"               # by the model saved last
    python examples/translation.py --evaluate outputs/translator.keras --test test.tsv

Ctrl-C ends the training early and keeps what was learnt. Needs `pip install ".[demo]"` in a clone.
To copy it, take `families.py`, `phrases.py`, `reading.py` and `tasks.py` along.
"""

import argparse
import math
import shlex
import sys
from pathlib import Path

import reading
import tasks
from families import FAMILIES, build

DEFAULTS = {  # option: (for the phrases, for other text)
    "vocabulary_size": (500, 8000),
    "layers": (2, 3),
    "hidden_dim": (128, 192),
    "heads": (4, 4),
    "intermediate_dim": (512, 768),
    "dropout": (0.0, 0.0),  # a few minutes are too short to learn anything by heart; more of them want 0.1
    "label_smoothing": (0.0, 0.1),
    "batch_tokens": (2048, 2048),
    "max_length": (128, 128),
    "learning_rate": (2e-3, 3e-3),
    "warmup_steps": (200, 100),
}
LEARNING_RATES = {"t5": 0.05}  # of Adafactor, a share of what a weight is
BUDGET = {"epochs": (8.0, None), "minutes": (5.0, 20.0)}  # whichever ends first; one that is given replaces both


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--tsv", metavar="FILE", help="training text in two columns, source and target")
    text.add_argument("--tfds", metavar="NAME", help="a translation corpus of TensorFlow Datasets")
    parser.add_argument("--valid", metavar="FILE", help="as --tsv; without it a part of that is held out")
    parser.add_argument("--test", metavar="FILE", help="as --tsv; without it a part of that is held out")
    parser.add_argument("--language", metavar="CODE", help="of the targets (default for the phrases: de)")
    parser.add_argument("--translate", metavar="TEXT", nargs="+", help="translate with --saved, and leave")
    parser.add_argument("--evaluate", metavar="FILE.keras", type=Path, help="score a saved model, and leave")
    parser.add_argument("--saved", metavar="FILE.keras", type=Path, help="default: translator.keras in --output")
    parser.add_argument("--model", choices=FAMILIES, default="transformer", help="what to train; default: transformer")
    parser.add_argument("--attention", choices=("bahdanau", "luong", "none"), default="bahdanau", help="of --model rnn")
    parser.add_argument("--cell", choices=("gru", "lstm", "simple"), default="gru", help="of --model rnn")
    parser.add_argument("--output", metavar="DIR", type=Path, default=Path("outputs"), help="default: outputs")
    parser.add_argument("--backend", choices=("tensorflow", "jax", "torch"), help="default: as Keras is set up")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches, not of what is held out")
    for name, values in (BUDGET | DEFAULTS).items():
        help = "default: {} for the phrases, {} for other text".format(*(value or "no limit" for value in values))
        help += "; 0.05 with --model t5" if name == "learning_rate" else ""
        help += "; one of epochs and minutes lifts the limit of the other" if name in BUDGET else ""
        parser.add_argument("--" + name.replace("_", "-"), type=type(values[0]), metavar="N", help=help)
    args = parser.parse_args(argv)
    if (args.valid and not args.tsv) or (args.test and not (args.tsv or args.evaluate)):
        parser.error("--valid and --test need --tsv, --test alone --evaluate")
    if not all(text.strip() for text in args.translate or []):
        parser.error("--translate needs text, and it is empty")
    args.learning_rate = args.learning_rate or LEARNING_RATES.get(args.model)
    for name, values in (DEFAULTS | (BUDGET if args.epochs is args.minutes is None else {})).items():
        if getattr(args, name) is None:
            setattr(args, name, values[bool(args.tsv or args.tfds)])
    args.saved = args.saved or args.output / "translator.keras"
    return args


if __name__ == "__main__":
    arguments = parse_arguments()
    tasks.choose_backend(arguments)

import keras
from sacrebleu import BLEU, CHRF

import keras_transformer as kt


def read_texts(args):
    """(train, valid, test), lists of (source, target), and the code of the targets' language."""
    if args.tfds:
        parts = [kt.data.load_tfds_pairs(args.tfds, split) for split in ("train", "validation", "test")]
        return *parts, args.language or args.tfds.rpartition("_to_")[2]
    if args.tsv or args.test:
        train, valid, test = (path and kt.data.read_pairs(path) for path in (args.tsv, args.valid, args.test))
        language = args.language or ((train or test).header or "  ")[1]
        if train and not (valid and test):
            print(train.summary())
            fractions = [0.0 if part else min(0.05, 2000 / len(train)) for part in (valid, test)]
            train, *split_off = kt.data.split_pairs(train, *fractions)
            valid, test = valid or split_off[0], test or split_off[1]
            if not (valid and test):
                raise ValueError(f"{args.tsv} has too few pairs to hold some out: give --valid and --test")
        if train:
            kept = reading.apart(train, valid, test, texts=lambda pair: pair)
            train, valid, test = (kt.data.TextPairs(x, part.name) for x, part in zip(kept, (train, valid, test)))
        return train, valid, test, language
    from phrases import make_phrases, split_phrases

    phrases, left_out = make_phrases(args.language or "de")
    for kind, reason in left_out.items():
        print(f"left out: {kind} ({reason})")
    parts = zip(("training", "validation", "test"), split_phrases(phrases))
    return *(kt.data.TextPairs([phrase[:2] for phrase in part], name) for name, part in parts), args.language or "de"


def batches(pairs, tokenizer, args):
    sides = tokenizer.encode(pairs.sources), tokenizer.encode(pairs.targets)
    return kt.data.BucketedPairs(*sides, batch_tokens=args.batch_tokens, max_length=args.max_length, seed=args.seed)


def compile_model(model, args):
    # For the matrices of the feed-forward networks, and Adam for all else: learns more per minute than Adam alone.
    optimizer = keras.optimizers.Muon(args.learning_rate, adam_beta_2=0.98)
    if args.model == "t5":  # as published: its table starts at 1, where Adam's steps, the same for all, lead nowhere
        optimizer = keras.optimizers.Adafactor(args.learning_rate, relative_step=False)
    optimizer.build(model.trainable_variables)  # TensorFlow would build it inside its graph and start twice as slowly
    loss = kt.training.MaskedCrossentropy(args.label_smoothing)
    model.compile(optimizer, loss, weighted_metrics=[kt.training.TokenAccuracy()])
    return model


def score(model, tokenizer, pairs, language, args):
    """Translate held-out pairs, print how well, and return the translations."""
    print(f"\ntranslating {pairs.summary()}", flush=True)
    translations = kt.generate(model, pairs.sources, max_new_tokens=args.max_length, tokenizer=tokenizer)
    exact = sum(ours == theirs for ours, theirs in zip(translations, pairs.targets)) / len(pairs)
    words = {"zh": "zh", "ja": "char"}.get(language.replace("_", "-").partition("-")[0], "13a")
    bleu, chrf = (metric.corpus_score(translations, [pairs.targets]) for metric in (BLEU(tokenize=words), CHRF()))
    print(f"exact match {exact:.2%}, BLEU {bleu.score:.2f} ({words}), chrF {chrf.score:.2f}")
    return translations


def train(args):
    with tasks.one_line_errors():
        train, valid, test, language = read_texts(args)
        print(*(part.summary() for part in (train, valid, test)), sep="\n")
        tokenizer = kt.data.train_tokenizer(train.sources + train.targets, args.vocabulary_size)
        train_batches, valid_batches = (batches(part, tokenizer, args) for part in (train, valid))
        model = compile_model(build(tokenizer, args), args)
        steps = args.epochs and math.ceil(args.epochs * len(train_batches))
        budget = kt.training.Budget(args.learning_rate, args.warmup_steps, steps, args.minutes and args.minutes * 60)
        args.output.mkdir(parents=True, exist_ok=True)
    print(f"in batches: {train_batches.summary()}; {tokenizer.vocabulary_size:,} pieces")
    print(f"{args.model}: {model.count_params():,} parameters, on {keras.backend.backend()}")
    limits = [f"{limit:g} {name}" for name, limit in (("epochs", args.epochs), ("minutes", args.minutes)) if limit]
    print(f"training ends after {' or '.join(limits)}, or at Ctrl-C\n", flush=True)
    until = {"epochs": math.ceil(args.epochs or 1000), "callbacks": [budget, kt.training.StopOnInterrupt()]}
    verbose = 1 if sys.stdout.isatty() else 2
    history = model.fit(train_batches, validation_data=valid_batches, verbose=verbose, **until)
    path = args.output / "translator.keras"
    kt.data.save_text_model(model, tokenizer, path)
    tokens = train_batches.num_real_tokens * budget.step / len(train_batches)
    of_all = f" of {steps:,}" if steps else ""
    print(f"{budget.step:,}{of_all} batches, {tokens / budget.seconds_in_batches:,.0f} tokens/s (padding not counted)")
    translations = score(model, tokenizer, test, language, args)
    samples = list(zip(test.sources, translations, test.targets))[:: math.ceil(len(test) / 5)]
    for sample in samples:
        print("\n  source       {}\n  translation  {}\n  reference    {}".format(*sample))
    source, translation, _ = max(samples, key=lambda sample: len(sample[0]))
    pictures = [args.output / "history.png"]
    kt.inspect.plot_history(history, pictures[0])
    if args.model != "rnn" or args.attention != "none":
        pictures.append(args.output / "attention.png")
        kt.inspect.plot_cross_attention(model, tokenizer, source, translation, pictures[1])
    print(f"\nwritten: {path} (and its tokenizer.json), {', '.join(map(str, pictures))}")
    print("again:", shlex.join([sys.executable, sys.argv[0], "--saved", str(path), "--translate", source]))
    print("again:", shlex.join([sys.executable, *sys.argv, "--evaluate", str(path)]))


def main(args):
    keras.utils.set_random_seed(args.seed)
    if not (args.translate or args.evaluate):
        return train(args)
    with tasks.one_line_errors():
        model, tokenizer = kt.data.load_text_model(args.evaluate or args.saved)
        if len(model.inputs) != 2:
            raise ValueError(f"{args.evaluate or args.saved} is no translator: {len(model.inputs)} input instead of 2")
        if args.translate:
            print(*kt.generate(model, args.translate, max_new_tokens=args.max_length, tokenizer=tokenizer), sep="\n")
        else:
            *_, test, language = read_texts(args)
            score(model, tokenizer, test, language, args)


if __name__ == "__main__":
    main(arguments)
