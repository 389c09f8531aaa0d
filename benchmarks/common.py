"""What the benchmarks share: the model, processes that measure one thing each, tables and result files.

The model is the one of the scripts that `--peers` names: decoder-only, vocabulary 8000, hidden 256, 4 heads, 4 layers,
feed-forward 1024, GELU, norm first, learned positions, untied head, no dropout.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a clone that is not installed

BACKENDS = ("tensorflow", "jax", "torch")
VOCABULARY_SIZE, HIDDEN_DIM, NUM_HEADS, NUM_LAYERS, INTERMEDIATE_DIM = 8000, 256, 4, 4, 1024
PROMPT_LENGTH = 16  # of the decoding benchmark
START_SECONDS = 120  # allowed for imports, building and compiling, on top of what is timed


def stacked_model(length):
    """The model, stacked from the layers of this package, for up to `length` tokens."""
    import keras

    import keras_transformer as kt

    token_ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = kt.layers.PositionalEmbedding(
        VOCABULARY_SIZE, HIDDEN_DIM, max_sequence_length=length, position="learned", pad_token_id=None
    )(token_ids)
    for _ in range(NUM_LAYERS):
        x = kt.layers.DecoderBlock(NUM_HEADS, INTERMEDIATE_DIM, activation="gelu", norm_placement="pre")(x)
    x = keras.layers.LayerNormalization()(x)
    return keras.Model(token_ids, keras.layers.Dense(VOCABULARY_SIZE, use_bias=False)(x))


def training_flop_per_token(length):
    """Multiplications and additions of the matrix products of one training step, per token.

    The backward pass costs two products for each of the forward pass. Attention is counted as the full square.
    """
    attention = NUM_LAYERS * 2 * length * HIDDEN_DIM
    return 3 * 2 * (weights_of_products() + attention)


def weights_of_products():
    """Numbers in the kernels that every token goes through; of the tables it takes a row each."""
    return NUM_LAYERS * (4 * HIDDEN_DIM**2 + 2 * HIDDEN_DIM * INTERMEDIATE_DIM) + HIDDEN_DIM * VOCABULARY_SIZE


def matrix_peak():
    """The best float32 matrix product of this process's backend, in GFLOP/s."""
    import keras

    best = 0.0
    for rows, inner, columns in ((2048, 256, 1024), (2048, 1024, 256), (2048, 2048, 2048)):
        a, b = keras.random.normal((rows, inner)), keras.random.normal((inner, columns))
        seconds = min(timed(lambda: float(keras.ops.matmul(a, b)[0, 0]), repeats=8))  # noqa: B023
        best = max(best, 2 * rows * inner * columns / seconds / 1e9)
    return best


def memory_bandwidth():
    """Bytes per second that all cores together read of arrays that no cache holds."""
    import numpy as np

    arrays = [np.ones(2**26, "float32") for _ in range(os.cpu_count())]
    with ThreadPoolExecutor(len(arrays)) as pool:
        seconds = min(timed(lambda: list(pool.map(lambda x: x.dot(x), arrays)), repeats=8))
    return sum(x.nbytes for x in arrays) / seconds


def timed(function, repeats, warm_up=1, budget=None):
    """Seconds of each of `repeats` calls after the warm-up; fewer, but one at least, once `budget` seconds are over."""
    for _ in range(warm_up):
        function()
    seconds = []
    while len(seconds) < repeats and (not seconds or budget is None or sum(seconds) < budget):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return seconds


def peak_memory_mb():
    """The largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def argument_parser(doc):
    """Options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=BACKENDS, action="append", help="repeatable; all three by default")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="folder of scripts to time in the same run")
    parser.add_argument("--rounds", type=int, default=1, help="times that ours and theirs alternate; medians are shown")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # what a child process does, and prints as JSON
    return parser


def environment(backend=None, **variables):
    """Environment of a child process."""
    variables = {name: str(value) for name, value in variables.items()}
    if backend:
        variables["KERAS_BACKEND"] = backend
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1", **variables}


def measure(script, backend, what, *arguments):
    """Run `script --measure WHAT` in its own process; its last line is a JSON object."""
    command = [sys.executable, str(script), "--measure", what, *map(str, arguments)]
    return json.loads(_last_line(_run(command, environment(backend)), "{"))


def peer_tokens_per_second(path, backend=None, timeout=None, **variables):
    """Run a peer's script in its own process and read `tok/s NUMBER` from its output; None when it takes too long."""
    try:
        output = _run([sys.executable, str(path)], environment(backend, **variables), timeout)
    except subprocess.TimeoutExpired:
        return None
    return float(re.search(r"tok/s\s+([\d.]+)", _last_line(output, "")).group(1))


def _run(command, environment, timeout=None):
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{result.stderr[-4000:]}")
    return result.stdout


def _last_line(output, start):
    lines = [line for line in output.splitlines() if line.startswith(start) and line.strip()]
    return lines[-1]


def median(values):
    """The median of the values that are there, or None."""
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def ratio(ours, theirs):
    """How many times as fast ours is, or None."""
    return ours / theirs if ours and theirs else None


def table(header, rows):
    """Rows of cells as aligned text; None shows as a dash, floats get two decimals, ints their thousands."""

    def text(cell):
        if cell is None:
            return "-"
        return f"{cell:.2f}" if isinstance(cell, float) else f"{cell:,}" if isinstance(cell, int) else cell

    cells = [list(header), *[[text(cell) for cell in row] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def whole(number):
    """Rounded for a table; None stays None."""
    return None if number is None else round(number)


def write_json(path, results):
    """Write the results, whole or not at all."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    unfinished.write_text(json.dumps(results, indent=2) + "\n")
    os.replace(unfinished, path)
    print(f"written: {path}")
