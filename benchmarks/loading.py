"""Loading a GPT-2 small of 500 MB from a folder: this package beside transformers and KerasHub.

    python benchmarks/loading.py [--backend jax] [--rounds 3]

The folder is made of random numbers. Every load happens in its own process, which has imported all it needs and has
read the file once, so that it is in the system's memory: seconds of the call, and how far the process' memory rose
above what it was before it, as a share of the file's size.
"""

import json
import tempfile
import time
from pathlib import Path

import common

CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_positions": 1024}
CONFIG |= {"n_embd": 768, "n_layer": 12, "n_head": 12, "bos_token_id": 50256, "eos_token_id": 50256}
CONFIG |= {"resid_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
FILE = "model.safetensors"


def make(folder):
    """A folder as published, with small random weights."""
    import numpy as np
    from safetensors.numpy import save_file

    D, random = CONFIG["n_embd"], np.random.default_rng(0)
    shapes = {"wte.weight": (CONFIG["vocab_size"], D), "wpe.weight": (CONFIG["n_positions"], D)}
    for i in range(CONFIG["n_layer"]):
        parts = {"attn.c_attn": (D, 3 * D), "attn.c_proj": (D, D), "mlp.c_fc": (D, 4 * D), "mlp.c_proj": (4 * D, D)}
        shapes |= {f"h.{i}.{name}.weight": shape for name, shape in parts.items()}
        shapes |= {f"h.{i}.{name}.bias": shape[1:] for name, shape in parts.items()}
        shapes |= {f"h.{i}.{norm}.{kind}": (D,) for norm in ("ln_1", "ln_2") for kind in ("weight", "bias")}
    shapes |= {f"ln_f.{kind}": (D,) for kind in ("weight", "bias")}
    tensors = {
        f"transformer.{name}": random.standard_normal(shape, dtype="float32") * np.float32(0.02)
        for name, shape in shapes.items()
    }
    save_file(tensors, Path(folder, FILE), metadata={"format": "pt"})
    Path(folder, "config.json").write_text(json.dumps(CONFIG))


def ours(folder):
    import keras_transformer as kt

    return lambda: kt.convert.load_pretrained(folder)


def transformers(folder):
    from transformers import GPT2LMHeadModel

    return lambda: GPT2LMHeadModel.from_pretrained(folder)


def keras_hub(folder):
    import keras_hub

    return lambda: keras_hub.models.GPT2Backbone.from_preset(str(folder))


LIBRARIES = {"ours": ours, "transformers": transformers, "KerasHub": keras_hub}


def measure(library, folder):
    """Seconds, and MB above what the process had before."""
    import keras
    import numpy as np

    path = Path(folder, FILE)
    while_read = path.read_bytes()
    del while_read
    load = LIBRARIES[library](folder)
    keras.ops.convert_to_numpy(keras.ops.matmul(np.ones((8, 8), "float32"), np.ones((8, 8), "float32")))  # started
    Path("/proc/self/clear_refs").write_text("5")  # the highest memory is that of now
    before, start = _memory("VmRSS"), time.perf_counter()
    model = load()
    seconds = time.perf_counter() - start
    assert model is not None
    return {"seconds": seconds, "share": (_memory("VmHWM") - before) / (path.stat().st_size / 1024)}


def _memory(name):
    """KB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def main():
    parser = common.argument_parser(__doc__)
    parser.add_argument("folder", nargs="?")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.folder)))
        return
    results, rows = {}, []
    with tempfile.TemporaryDirectory() as folder:
        make(folder)
        for backend in arguments.backend or common.BACKENDS:
            found = {name: [] for name in LIBRARIES if name != "transformers" or backend == "torch"}
            for _ in range(arguments.rounds):
                for name, of_name in found.items():
                    of_name.append(common.measure(__file__, backend, name, folder))
            for name, of_name in found.items():
                results[f"{backend}, {name}"] = of_name
                cells = [common.median([x[key] for x in of_name]) for key in ("seconds", "share")]
                rows.append([backend, name, *cells])
    print(common.table(["backend", "library", "seconds", "memory / file"], rows))
    common.write_json(arguments.output, results)


if __name__ == "__main__":
    main()
