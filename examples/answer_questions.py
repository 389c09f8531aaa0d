"""Train a BERT to find the answer to a question in a text, and score it on questions that it has not seen.

    python examples/answer_questions.py                     # what parameters are, by docstrings in NumPy's style
    python examples/answer_questions.py --data train.tsv --valid valid.tsv --test test.tsv --minutes 10
    python examples/answer_questions.py --tfds squad        # a data set with `question`, `context` and `answers`
    python examples/answer_questions.py --saved outputs/reader.keras --ask "What is n?" --text "n : int How many."

A TSV file has a header with the columns question, context, answer_start (in characters, from 0) and answer, in any
order. Exact match and F1 are those of SQuAD: without case, punctuation and articles. The floor is the word of the text
that is rarest in the texts to train on. Ctrl-C ends the training early.
Needs `pip install ".[examples]"` in a clone, and a backend.
To copy it, take `docstrings.py`, `encoder.py`, `questions.py`, `reading.py` and `tasks.py` along.
"""

import shlex
import sys

import reading
import tasks

SIZES = {"vocabulary_size": 2000, "layers": 3, "heads": 4, "hidden_dim": 128, "max_tokens": 160, "batch_size": 32}
SIZES |= {"limit": 20_000, "dropout": 0.1, "noise": 0.1, "learning_rate": 2e-3}
SIZES |= {"longest": (30, "most tokens of an answer")}


def parse_arguments(argv=None):
    parser = tasks.options(__doc__, minutes=5.0, **SIZES)
    parser.add_argument("--ask", metavar="QUESTION", help="answer this from --text by --saved, and leave")
    parser.add_argument("--text", help="where the answer stands")
    args = tasks.parse_with_rows(parser, argv, "a TSV file")
    if args.ask and not (args.saved and args.text):
        parser.error("--ask needs --saved and --text")
    return args


if __name__ == "__main__":
    arguments = parse_arguments()
    tasks.choose_backend(arguments)

import keras
import numpy as np

import encoder
import keras_transformer as kt
import questions


def arrays(rows, tokenizer, args):
    """What the model reads (N, T), first and last token of the answers (2, N), and the word of each token (N, T).

    An answer is taken as whole words. -1 stands where it is behind the end of what is read, and for tokens of no word.
    """
    words = [list(encoder.WORD.finditer(row.context)) for row in rows]
    asked = encoder.encode_words([encoder.WORD.findall(row.question) for row in rows], tokenizer)
    told = encoder.encode_words([[word[0] for word in row] for row in words], tokenizer)
    ids, owners, spans = [], [], np.full((2, len(rows)), -1, "int32")
    for number, row in enumerate(rows):
        question = [i for pieces in asked[number] for i in pieces][: args.max_tokens // 2]
        front = [tokenizer.start_token_id, *question, tokenizer.stop_token_id]
        text = [i for pieces in told[number] for i in pieces][: args.max_tokens - len(front) - 1]
        ids.append([*front, *text, tokenizer.stop_token_id])
        begins = np.cumsum([len(front), *map(len, told[number])])
        owners.append(np.searchsorted(begins, np.arange(len(ids[-1])), side="right") - 1)
        owners[-1][-1] = -1
        end = row.start + len(row.answer)
        inside = [i for i, word in enumerate(words[number]) if word.start() < end and word.end() > row.start]
        if inside and begins[inside[-1] + 1] < len(ids[-1]):
            spans[:, number] = begins[inside[0]], begins[inside[-1] + 1] - 1
    return encoder.inputs(ids, tokenizer), spans, kt.data.pad_batch([row + 1 for row in owners])[0] - 1


def data(rows, tokenizer, args):
    """Inputs, labels and weights; rows whose answer is not among what is read are left out, and counted."""
    inputs, spans, _ = arrays(rows, tokenizer, args)
    kept = np.flatnonzero(spans[0] >= 0)
    if left_out := len(rows) - len(kept):
        print(f"{left_out:,} of {len(rows):,} answers stand behind the first {args.max_tokens} tokens: left out")
    labels, weight = dict(zip(("start", "end"), spans[:, kept])), np.ones(len(kept), "float32")
    return {name: x[kept] for name, x in inputs.items()}, labels, {"start": weight, "end": weight}


def train(train_rows, valid_rows, path, args):
    texts = list(dict.fromkeys(text for row in train_rows for text in (row.question, row.context)))
    backbone, tokenizer = encoder.start([" ".join(encoder.WORD.findall(text)) for text in texts], args)
    model = kt.models.with_head(backbone, "question_answering", mask_question=True)
    batches = encoder.NoisyBatches(*data(train_rows, tokenizer, args), tokenizer, args)
    kinds = {"loss": kt.training.MaskedCrossentropy, "weighted_metrics": kt.training.TokenAccuracy}
    options = {name: {end: kind() for end in ("start", "end")} for name, kind in kinds.items()}
    best = ("val_start_token_accuracy", "max")
    history = tasks.fit(model, batches, data(valid_rows, tokenizer, args), args, args.learning_rate, best, **options)
    kt.inspect.plot_history(history, path.with_suffix(".png"))
    lengths = np.bincount([len(encoder.WORD.findall(row.answer)) - 1 for row in train_rows])
    encoder.save(model, tokenizer, path, lengths=lengths.tolist())


def answers(model, tokenizer, lengths, rows, args):
    """The part of each text that answers best; `lengths` are the numbers of known answers of one word, of two, ..."""
    inputs, _, owners = arrays(rows, tokenizer, args)
    logits = model.predict(inputs, verbose=0)
    spans = kt.models.best_span(logits["start"], logits["end"], owners >= 0, args.longest, n_best=20)
    found, prior = [], np.log1p(lengths)
    for row, owner, start, end, score in zip(rows, owners, *spans):
        # The model says where answers start and end, each by itself: how long they are has to be said as well.
        best = np.argmax(score + prior[np.minimum(owner[end] - owner[start], len(prior) - 1)])
        words, first, last = list(encoder.WORD.finditer(row.context)), owner[start[best]], owner[end[best]]
        found.append(row.context[words[first].start() : words[last].end()] if words else "")
    return found


def main(args):
    keras.utils.set_random_seed(args.seed)
    with tasks.one_line_errors():
        path = args.saved or args.output / "reader.keras"
        if not args.ask:
            parts = reading.read_parts(args, *questions.SOURCES, key=lambda row: row.source)
            args.output.mkdir(parents=True, exist_ok=True)
        if not args.saved:
            train(*parts[:2], path, args)
        model, tokenizer = encoder.load(path, args, "question_answering")  # the file, also just after the training
        reader = (model, tokenizer, reading.settings(path)["lengths"])
        if args.ask:
            return print(*answers(*reader, [questions.Row(args.ask, args.text, 0, "", "")], args))
        rows, wanted = parts[2], [row.answer for row in parts[2]]
        found = answers(*reader, rows, args)
    print(f"\n{questions.scores(found, wanted)} of {len(rows):,} questions")
    print(f"{questions.scores(questions.rarest(parts[0] or rows, rows), wanted)} by the rarest word")
    for row, ours in list(zip(rows, found))[:: -(-len(rows) // 4)]:
        print(f"\n  question  {row.question}\n  text      {row.context}\n  answer    {row.answer}\n  found     {ours}")
    print(f"\nwritten: {path}\nagain:", shlex.join([sys.executable, *sys.argv, "--saved", str(path)]))


if __name__ == "__main__":
    main(arguments)
