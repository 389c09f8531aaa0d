"""Checkpoints in and out: every family and head of `transformers`, on every backend.

    python benchmarks/parity.py [--backend jax]

A small random model of theirs is saved, loaded as ours, saved again by us and loaded by them. "in" is the largest
difference between their outputs and ours, "out" the one between their outputs before and behind, on texts with padding
or on images; "bitwise" says whether every tensor of their file came back as it was.
"""

import json
import tempfile
from pathlib import Path

import common

ROUNDS_IN_ONE_PROCESS = 8  # models, so that one process does not grow too large


def measure(names):
    """{class of theirs: [in, out, bitwise]}, in this process."""
    import numpy as np
    import safetensors.numpy
    import transformers

    import keras_transformer as kt
    from tests.convert import zoo  # the same models as in the tests

    found = {}
    for name in names:
        right = zoo.theirs(name)
        with tempfile.TemporaryDirectory() as folder:
            theirs, ours = Path(folder, "theirs"), Path(folder, "ours")
            right.save_pretrained(theirs)
            model = kt.convert.load_pretrained(theirs)
            kt.convert.save_pretrained(model, ours)
            again, told = getattr(transformers, name).from_pretrained(ours, output_loading_info=True)
            assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
            before, after = (safetensors.numpy.load_file(path / "model.safetensors") for path in (theirs, ours))
        pairs, back = zoo.outputs(model, right), zoo.outputs(model, again.eval())
        error_in = max(float(np.abs(mine - their).max()) for mine, their in pairs)
        error_out = max(float(np.abs(a - b).max()) for (_, a), (_, b) in zip(pairs, back, strict=True))
        # What is lost may only be zeros that theirs begins with, such as a bias that is never trained.
        bitwise = all(
            x.tobytes() == after[key].tobytes() if key in after else not x.any() for key, x in before.items()
        )
        found[name] = [error_in, error_out, bitwise and set(after) <= set(before)]
    return found


def main():
    arguments = common.argument_parser(__doc__).parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure.split(","))))
        return
    from tests.convert import zoo

    names = [*zoo.FAMILIES, *zoo.KINDS]
    groups = [names[i : i + ROUNDS_IN_ONE_PROCESS] for i in range(0, len(names), ROUNDS_IN_ONE_PROCESS)]
    backends, results = arguments.backend or common.BACKENDS, {}
    for backend in backends:
        results[backend] = {}
        for group in groups:
            results[backend] |= common.measure(__file__, backend, ",".join(group))
    rows = []
    for name in names:
        of_each = [results[backend][name] for backend in backends]
        rows.append(
            [name, *(cell for a, b, same in of_each for cell in (f"{a:.1e}", f"{b:.1e}", "yes" if same else "no"))]
        )
    header = ["model", *(f"{backend}: {what}" for backend in backends for what in ("in", "out", "bitwise"))]
    print(common.table(header, rows))
    common.write_json(arguments.output, results)


if __name__ == "__main__":
    main()
