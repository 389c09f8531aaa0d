"""Ten thousand broken checkpoints: the reader may refuse them with a ValueError, and nothing else.

    python benchmarks/fuzz_checkpoints.py [--files 10000] [--seed 0]

Bytes of the weights' file, its header most of all, and of the config are changed, left out and put in at random
places, and numbers and words of the config are replaced; then the folder is described, its tensors are read, and every
ninth is loaded. Any other exception, or a file that takes longer than a second, ends the run.
"""

import argparse
import json
import struct
import tempfile
import time
from pathlib import Path

import common  # noqa: F401  a clone that is not installed
import numpy as np

LIMIT_SECONDS, LOADED = 1.0, 9  # no divisor of the number of kinds, so that some of each are loaded
VALUES = (None, True, -1, 0, 1, 2**31, 2**63, 1e308, float("nan"), "", "gelu", "../..", [], [1] * 3, {}, {"a": {}})


def mutated(data, random, size):
    """The bytes with one to three changes among the first `size`, or anywhere if that is None."""
    data = bytearray(data)
    for place in random.integers(0, size or len(data), random.integers(1, 4)):
        kind = random.integers(3)
        if kind == 0:
            data[min(place, len(data) - 1)] = random.integers(256)
        elif kind == 1:
            del data[place : place + random.integers(1, 9)]
        else:
            data[place:place] = random.bytes(random.integers(1, 9))
    return bytes(data)


def other_config(config, random):
    """The config with another value for one or two of its entries."""
    names = random.choice([*config], random.integers(1, 3))
    return json.dumps({**config, **{name: VALUES[random.integers(len(VALUES))] for name in names}}).encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    import keras_transformer as kt
    from keras_transformer.convert import files
    from tests.convert import zoo

    random, refused, slowest = np.random.default_rng(args.seed), 0, 0.0
    kinds = ["BertForTokenClassification", "GPT2LMHeadModel", "T5ForConditionalGeneration", "MixtralForCausalLM"]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for kind in kinds:
            zoo.theirs(kind).save_pretrained(folder / kind)
        for i in range(args.files):
            path = folder / kinds[i % len(kinds)]
            weights, config = ((path / name).read_bytes() for name in (files.WHOLE, files.CONFIG))
            if i // len(kinds) % 2:
                header = 8 + struct.unpack("<Q", weights[:8])[0]
                (path / files.WHOLE).write_bytes(mutated(weights, random, header if random.integers(4) else None))
            elif random.integers(2):
                (path / files.CONFIG).write_bytes(mutated(config, random, None))
            else:
                (path / files.CONFIG).write_bytes(other_config(json.loads(config), random))
            start = time.process_time()
            try:
                kt.convert.describe(path)
                tensors = files.Tensors(path)
                assert all(np.asarray(x).shape == x.shape for x in tensors.values())
                if i % LOADED == 0:
                    kt.convert.load_pretrained(path)
                    start = time.process_time()  # what can be loaded may take its time
            except ValueError:
                refused += 1
            except BaseException:
                print(f"file {i} of seed {args.seed}:", (path / files.CONFIG).read_bytes()[:2000])
                raise
            slowest = max(slowest, time.process_time() - start)
            if slowest > LIMIT_SECONDS:
                raise SystemExit(f"file {i} of seed {args.seed} took {slowest:.1f} s")
            (path / files.WHOLE).write_bytes(weights)
            (path / files.CONFIG).write_bytes(config)
    print(
        f"{args.files:,} files: {refused:,} refused with a ValueError, nothing else; the slowest took {slowest:.2f} s"
    )


if __name__ == "__main__":
    main()
