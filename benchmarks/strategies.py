"""Decoding by other strategies, the first call, and memory: this package beside KerasHub and transformers.

    python benchmarks/strategies.py --backend jax --output outputs/strategies.json

The model is that of `generate.py`. Every cell is measured in its own process: the first call, which compiles, the
median of three more, and how far the process' memory rose above what it was before the first call.
"""

import json
import resource

import common

STRATEGIES = ("greedy", "top_p", "beam")
LIBRARIES = ("ours", "KerasHub", "transformers")
TOP_P, NUM_BEAMS = 0.9, 4
CALL_LIMIT = 60  # seconds of a call, after which it is not repeated


def ours(strategy, prompts, length):
    """A function that generates once."""
    import keras_transformer as kt

    model = common.stacked_model(1024)
    options = {"greedy": {}, "top_p": {"top_p": TOP_P, "seed": 0}, "beam": {"num_beams": NUM_BEAMS}}[strategy]
    return lambda: kt.generate(model, prompts, length - prompts.shape[1], stop_token_id=[], **options)


def keras_hub(strategy, prompts, length):
    """The same with KerasHub's GPT-2."""
    import keras_hub
    import numpy as np

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=common.VOCABULARY_SIZE,
        num_layers=common.NUM_LAYERS,
        num_heads=common.NUM_HEADS,
        hidden_dim=common.HIDDEN_DIM,
        intermediate_dim=common.INTERMEDIATE_DIM,
        max_sequence_length=1024,
    )
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    samplers = {
        "greedy": keras_hub.samplers.GreedySampler,
        "top_p": lambda: keras_hub.samplers.TopPSampler(p=TOP_P, seed=0),
        "beam": lambda: keras_hub.samplers.BeamSampler(num_beams=NUM_BEAMS),
    }
    model.compile(sampler=samplers[strategy]())
    room = [(0, 0), (0, length - prompts.shape[1])]
    inputs = {"token_ids": np.pad(prompts, room), "padding_mask": np.pad(np.ones_like(prompts), room)}
    return lambda: model.generate(inputs, stop_token_ids=None)


def transformers(strategy, prompts, length):
    """The same with the GPT-2 of transformers."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=common.VOCABULARY_SIZE,
        n_positions=1024,
        n_embd=common.HIDDEN_DIM,
        n_layer=common.NUM_LAYERS,
        n_head=common.NUM_HEADS,
    )
    model, token_ids = GPT2LMHeadModel(config).eval(), torch.tensor(prompts, dtype=torch.int64)
    options = {
        "greedy": {"do_sample": False},
        "top_p": {"do_sample": True, "top_p": TOP_P, "top_k": 0},
        "beam": {"do_sample": False, "num_beams": NUM_BEAMS},
    }[strategy]
    new_tokens = length - prompts.shape[1]
    options |= {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "pad_token_id": 0}
    return lambda: model.generate(token_ids, attention_mask=torch.ones_like(token_ids), **options)


def measure(library, strategy, batch_size, length):
    """What the table tells of one cell."""
    import keras
    import numpy as np

    shape = (batch_size, common.PROMPT_LENGTH)
    prompts = np.random.default_rng(0).integers(1, common.VOCABULARY_SIZE, shape, "int32")
    make = {"ours": ours, "KerasHub": keras_hub, "transformers": transformers}[library]
    generate = make(strategy, prompts, length)
    float(keras.ops.sum(keras.ops.ones((8, 8))))  # the backend is awake
    before = _resident_mb()
    (first,) = common.timed(generate, repeats=1, warm_up=0)
    seconds = common.timed(generate, repeats=3, warm_up=0, budget=CALL_LIMIT)
    return {
        "tokens_per_second": batch_size * (length - common.PROMPT_LENGTH) / common.median(seconds),
        "first_call_seconds": first,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before,
    }


def _resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def main(args):
    results = []
    for backend in args.backend or common.BACKENDS:
        for strategy in args.strategy:
            for length in args.length:
                cell = {"backend": backend, "strategy": strategy, "batch_size": args.batch_size, "length": length}
                for library in args.library:
                    if library == "transformers" and backend != "torch":
                        continue
                    options = ("--library", library, "--strategy", strategy, "--length", length)
                    told = common.measure(__file__, backend, "cell", *options, "--batch-size", args.batch_size)
                    results.append({**cell, "library": library, **told})
                    print(table_of(results).splitlines()[-1], flush=True)
    print(f"\n{table_of(results)}")
    common.write_json(args.output, {"results": results})


def table_of(results):
    header = ("backend", "strategy", "batch", "length", "library", "tokens/s", "first call, s", "memory, MB")
    keys = ("backend", "strategy", "batch_size", "length", "library")
    rows = [
        (
            *(str(result[key]) for key in keys),
            round(result["tokens_per_second"]),
            result["first_call_seconds"],
            round(result["memory_mb"]),
        )
        for result in results
    ]
    return common.table(header, rows)


if __name__ == "__main__":
    parser = common.argument_parser(__doc__)
    parser.add_argument("--strategy", choices=STRATEGIES, nargs="+", default=STRATEGIES)
    parser.add_argument("--library", choices=LIBRARIES, nargs="+", default=LIBRARIES)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, nargs="+", default=[128], help="prompt included")
    args = parser.parse_args()
    if args.measure == "cell":
        print(json.dumps(measure(args.library[0], args.strategy[0], args.batch_size, args.length[0])))
    else:
        main(args)
