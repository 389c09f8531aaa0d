"""What attention changed: recurrent layers and Transformer blocks of one size, measured on the same three questions.

    python benchmarks/rnn_vs_transformer.py --minutes 20 --output outputs/rnn_vs_transformer.png

1. Training time per token, as texts grow longer (the tokens of a batch stay the same).
2. How far back a model learns to copy from: the answer to the last token is the first one, and random tokens lie in
   between. Each model trains the same number of seconds at each distance; right by chance is 1 answer in 32.
3. The norm of the gradient that reaches the first token from the answer, in models that were not trained yet.

All models are decoder-only, of two layers and as many parameters as that of two Transformer blocks. `--minutes` is how
long question 2 trains in total; compiling, and the other two questions, come on top. The numbers are written as JSON
beside the figure.
"""

import argparse
import os
import time
from pathlib import Path

import common

LENGTHS = (16, 32, 64, 128, 256, 512)
DISTANCES = (4, 8, 16, 32, 64, 128, 256)
HIDDEN_DIM, NUM_HEADS, INTERMEDIATE_DIM, NUM_LAYERS = 64, 4, 256, 2
NUM_ANSWERS = 32  # ids 1 to 32 are copied, 33 to 64 lie between, 65 asks for the answer
VOCABULARY_SIZE, ASK = 2 * NUM_ANSWERS + 2, 2 * NUM_ANSWERS + 1
BATCH_TOKENS = 2048
SCALE = HIDDEN_DIM**0.5  # of the embedding, whose vectors begin with variance 1
MODELS = {"Transformer": None, "LSTM": "lstm", "GRU": "gru", "SimpleRNN": "simple"}


def build(cell):
    """A decoder-only model; `cell` None makes it of Transformer blocks."""
    import keras

    import keras_transformer as kt

    ids = keras.Input((None,), dtype="int32")
    x = kt.layers.PositionalEmbedding(
        VOCABULARY_SIZE,
        HIDDEN_DIM,
        position=None if cell else "sinusoidal",
        scale=SCALE,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=1 / SCALE),
        name="embedding",
    )(ids)
    for _ in range(NUM_LAYERS):
        if cell:
            x = kt.layers.Recurrent(units_for(cell), cell)(x)
        else:
            x = kt.layers.DecoderBlock(NUM_HEADS, INTERMEDIATE_DIM, norm_placement="pre")(x)
    if not cell:
        x = keras.layers.LayerNormalization()(x)
    return keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE)(x))


def units_for(cell):
    """Units with which the recurrent layers have about the parameters of the blocks."""
    wanted = NUM_LAYERS * (4 * HIDDEN_DIM**2 + 2 * HIDDEN_DIM * INTERMEDIATE_DIM)
    gates = {"simple": 1, "gru": 3, "lstm": 4}[cell]

    def size(units):
        inputs = HIDDEN_DIM + (NUM_LAYERS - 1) * units
        return gates * units * (inputs + NUM_LAYERS * units) + units * VOCABULARY_SIZE

    return next(units for units in range(8, 1024, 4) if size(units) >= wanted + HIDDEN_DIM * VOCABULARY_SIZE)


def copies(batch_size, distance, random):
    """Ids (B, distance + 1), labels and sample weights: only the answer to the last token counts."""
    import numpy as np

    ids = random.integers(NUM_ANSWERS + 1, ASK, (batch_size, distance + 1), "int32")
    ids[:, 0] = random.integers(1, NUM_ANSWERS + 1, batch_size)
    ids[:, -1] = ASK
    labels, weights = np.zeros_like(ids), np.zeros(ids.shape, "float32")
    labels[:, -1], weights[:, -1] = ids[:, 0], distance + 1  # the mean over all tokens is that over the answers
    return ids, labels, weights


def compiled(cell, optimizer):
    import keras

    model = build(cell)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


def seconds_per_token(cell):
    """Training time for each length, the median of several batches."""
    import keras
    import numpy as np

    model, random, found = compiled(cell, keras.optimizers.Adam()), np.random.default_rng(0), []
    for length in LENGTHS:
        batch = copies(BATCH_TOKENS // length, length - 1, random)
        seconds = common.timed(lambda batch=batch: model.train_on_batch(*batch), repeats=7, warm_up=2, budget=10)
        found.append(common.median(seconds) / BATCH_TOKENS)
    return found


def accuracy(cell, distance, seconds):
    """Share of right answers on rows that were not trained on, after so many seconds of training, and the steps."""
    import keras
    import numpy as np

    model, random, steps = compiled(cell, keras.optimizers.Adam(2e-3, clipnorm=1.0)), np.random.default_rng(1), 0
    model.train_on_batch(*copies(64, distance, random))  # compiles
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        model.train_on_batch(*copies(64, distance, random))
        steps += 1
    ids, labels, _ = copies(512, distance, np.random.default_rng(2))
    answers = model.predict(ids, batch_size=64, verbose=0)[:, -1].argmax(-1)
    return float((answers == labels[:, -1]).mean()), steps


def gradient_at_first_token(cell, distance):
    """Norm of the answer's gradient with respect to the vector of the first token, the mean over rows.

    Each row begins with an id of its own, so the gradient of that id's embedding is the row's. The momentum of SGD
    after one step from zero is the gradient.
    """
    import keras
    import numpy as np

    optimizer = keras.optimizers.SGD(1.0, momentum=0.5)
    model = compiled(cell, optimizer)
    ids, labels, weights = copies(NUM_ANSWERS, distance, np.random.default_rng(3))
    ids[:, 0] = labels[:, -1] = np.arange(1, NUM_ANSWERS + 1)
    layer = model.get_layer("embedding")
    model.train_on_batch(ids, labels, weights)
    index = next(i for i, v in enumerate(model.trainable_variables) if v is layer.embeddings)
    gradient = keras.ops.convert_to_numpy(optimizer.momentums[index])[ids[:, 0]]
    # The loss is the mean over the rows, and a vector is so many times its row of the table.
    return float(np.linalg.norm(gradient, axis=-1).mean() * len(ids) / SCALE)


def draw(results, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (speed, copy, gradient) = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    for name in MODELS:
        of_model = results[name]
        label = f"{name} ({of_model['parameters']:,} parameters)"
        speed.plot(LENGTHS, [1e6 * x for x in of_model["seconds_per_token"]], "o-", label=label)
        copy.plot(DISTANCES, of_model["accuracy"], "o-", label=name)
        gradient.plot(DISTANCES, of_model["gradient"], "o-", label=name)
    copy.axhline(1 / NUM_ANSWERS, color="grey", linestyle=":", label="by chance")
    seconds = results["seconds_per_training"]
    speed.set(title=f"Training, batches of {BATCH_TOKENS:,} tokens", xlabel="length of a text, tokens")
    speed.set(ylabel="microseconds per token", yscale="log")
    copy.set(title=f"Copying the first token, {seconds:.0f} s of training each", ylabel="right answers", ylim=(0, 1.05))
    gradient.set(title="Gradient at the first token, untrained", ylabel="norm", yscale="log")
    for axes, numbers in ((speed, LENGTHS), (copy, DISTANCES), (gradient, DISTANCES)):
        axes.set_xscale("log", base=2)
        axes.set_xticks(numbers, numbers)
        axes.legend(fontsize="small")
    for axes in (copy, gradient):
        axes.set_xlabel("distance to the first token, tokens")
    figure.suptitle(results["measured_on"])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"written: {path}")


def main(args):
    import keras

    keras.utils.set_random_seed(0)
    seconds = args.minutes * 60 / (len(MODELS) * len(DISTANCES))
    where = f"Keras {keras.__version__} on {keras.backend.backend()}, {os.cpu_count()} CPU cores"
    results = {"measured_on": where, "seconds_per_training": seconds, "lengths": LENGTHS, "distances": DISTANCES}
    for name, cell in MODELS.items():
        of_model = {"parameters": build(cell).count_params(), "seconds_per_token": seconds_per_token(cell)}
        of_model["gradient"] = [gradient_at_first_token(cell, distance) for distance in DISTANCES]
        copied = [accuracy(cell, distance, seconds) for distance in DISTANCES]
        of_model["accuracy"], of_model["steps"] = map(list, zip(*copied))
        results[name] = of_model
        print(f"\n{name}, {of_model['parameters']:,} parameters", flush=True)
        speed = [[length, 1e6 * x] for length, x in zip(LENGTHS, of_model["seconds_per_token"])]
        print(common.table(("length", "us/token"), speed))
        rows = zip(DISTANCES, of_model["accuracy"], of_model["steps"], map("{:.1e}".format, of_model["gradient"]))
        print(common.table(("distance", "accuracy", "steps", "gradient"), [list(row) for row in rows]), flush=True)
    draw(results, args.output)
    common.write_json(args.output.with_suffix(".json"), results)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=common.BACKENDS, default="jax", help="default: jax")
    parser.add_argument("--minutes", type=float, default=20.0, help="of training to copy, all together; default: 20")
    parser.add_argument("--output", type=Path, default=Path("outputs/rnn_vs_transformer.png"), metavar="FILE.png")
    arguments = parser.parse_args()
    os.environ["KERAS_BACKEND"] = arguments.backend  # read when keras is imported
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main(arguments)
