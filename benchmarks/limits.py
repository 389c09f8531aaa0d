"""Times that have a limit: importing the package, and a written token as the text before it grows.

    python benchmarks/limits.py --output outputs/limits.json

1. `import keras_transformer` behind `import keras`: at most 0.2 s.
2. Milliseconds per new token behind texts of 32 to 1,024 tokens, batch 1, through the cache: from 32 to 512 less than
   1.5 times as many, from 64 to 1,024 less than twice; beside it by the full forward pass, where they do grow.

The model is that of `generate.py`. Every figure is the median of five.
"""

import json
import subprocess
import sys

import common

REPEATS, NEW_TOKENS, NEW_TOKENS_UNCACHED = 5, 64, 8
CONTEXTS, UNCACHED = (32, 64, 512, 1024), (32, 512)
IMPORT = """
import time
import keras
begin = time.perf_counter()
import keras_transformer
print(time.perf_counter() - begin)
"""


def measure_tokens():
    """Milliseconds per token for each length of the text before, and without a cache."""
    import numpy as np

    import keras_transformer as kt

    model = common.stacked_model(2048)

    def milliseconds(context, cache, new_tokens):
        prompt = np.random.default_rng(0).integers(1, common.VOCABULARY_SIZE, (1, context), "int32")

        def median_of(count):
            def write():
                kt.generate(model, prompt, count, stop_token_id=None, cache=cache)

            return common.median(common.timed(write, repeats=REPEATS))

        # What a call takes for the prompt, and for itself, is in both.
        return 1000 * (median_of(new_tokens + new_tokens // 4) - median_of(new_tokens // 4)) / new_tokens

    return {
        "cached": {context: milliseconds(context, "auto", NEW_TOKENS) for context in CONTEXTS},
        "uncached": {context: milliseconds(context, False, NEW_TOKENS_UNCACHED) for context in UNCACHED},
    }


def import_seconds(backend):
    def run():
        command, environment = [sys.executable, "-c", IMPORT], common.environment(backend)
        return float(
            subprocess.run(command, cwd=common.ROOT, env=environment, check=True, capture_output=True, text=True).stdout
        )

    return common.median([run() for _ in range(REPEATS)])


def main(args):
    rows, results = [], {}
    for backend in args.backend or common.BACKENDS:
        found = {"import_seconds": import_seconds(backend), **common.measure(__file__, backend, "tokens")}
        cached, uncached = ({int(n): x for n, x in found[kind].items()} for kind in ("cached", "uncached"))
        found["growth"] = {
            "32 to 512": cached[512] / cached[32],
            "64 to 1024": cached[1024] / cached[64],
            "32 to 512 uncached": uncached[512] / uncached[32],
        }
        results[backend] = found
        figures = (f"{x:.2f}" for x in (found["import_seconds"], *cached.values(), *found["growth"].values()))
        rows.append((backend, *figures))
        print(rows[-1], flush=True)
    header = ("backend", "import, s", *(f"ms at {n}" for n in CONTEXTS), *found["growth"])
    print(f"\n{common.table(header, rows)}")
    common.write_json(args.output, results)


if __name__ == "__main__":
    parser = common.argument_parser(__doc__)
    args = parser.parse_args()
    if args.measure == "tokens":
        print(json.dumps(measure_tokens()))
    else:
        main(args)
