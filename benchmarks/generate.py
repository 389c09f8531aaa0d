"""Greedy decoding speed: prompts of 16 tokens continued to a length of 128 and 1024, new tokens per second.

    python benchmarks/generate.py --peers DIR --output outputs/generate.json

With `--peers`, the scripts of DIR that do the same work (KerasHub's GPT-2 on each backend, transformers' in PyTorch)
are timed in the same run, each in its own process, ours and theirs in turn.
"""

import json

import common

CALL_LIMIT = 60  # seconds a peer may take for one call, else it is timed once, at a quarter of the length
PEER_CALLS = 4  # a peer's script makes a first call and times three


def measure_generate(batch_size, length):
    """New tokens per second of `kt.generate`, the median of three calls (fewer if they take minutes)."""
    import numpy as np

    import keras_transformer as kt

    model = common.stacked_model(1024)
    shape = (batch_size, common.PROMPT_LENGTH)
    prompts = np.random.default_rng(0).integers(1, common.VOCABULARY_SIZE, shape, "int32")
    new_tokens = length - common.PROMPT_LENGTH

    def generate():
        tokens = kt.generate(model, prompts, new_tokens, stop_token_id=None)
        if tokens.shape != (batch_size, length):
            raise RuntimeError(f"generate returned {tokens.shape} instead of {(batch_size, length)}")

    (first,) = common.timed(generate, repeats=1, warm_up=0)
    seconds = common.timed(generate, repeats=3, warm_up=0, budget=CALL_LIMIT)
    return {
        "tokens_per_second": batch_size * new_tokens / common.median(seconds),
        "first_call_seconds": first,
        "peak_memory_mb": common.peak_memory_mb(),
    }


def peer_speed(path, backend, batch_size, length):
    """`(tokens per second, whether it was measured at a quarter of the length)`."""

    def run(length, timeout):
        return common.peer_tokens_per_second(path, backend, timeout, B=batch_size, T=length)

    new_tokens = length - common.PROMPT_LENGTH
    timeout = PEER_CALLS * CALL_LIMIT + common.START_SECONDS
    if length < 512:
        return run(length, timeout), False
    # The speed at a quarter of the length tells, without waiting for it, whether a whole call is too slow.
    at_a_quarter = run(length // 4, timeout)
    if at_a_quarter is None or batch_size * new_tokens / at_a_quarter > CALL_LIMIT:
        return at_a_quarter, True
    speed = run(length, timeout)
    return (at_a_quarter, True) if speed is None else (speed, False)


def main(args):
    backends = args.backend or common.BACKENDS
    cells = [(batch_size, length) for length in args.length for batch_size in args.batch_size]
    results = []
    for batch_size, length in cells:
        for backend in backends:
            results.append(compare(args, backend, batch_size, length, "KerasHub", "gen_hub.py"))
    if args.peers and "torch" in backends:
        for batch_size, length in cells:
            known = next(
                result["ours"]
                for result in results
                if (result["backend"], result["batch_size"], result["length"]) == ("torch", batch_size, length)
            )
            results.append(compare(args, "torch", batch_size, length, "transformers", "gen_hf.py", known))
    report(args, results)


def compare(args, backend, batch_size, length, peer, script, ours=None):
    """One cell of the table; `ours` is measured unless it is known from an earlier cell of this run."""
    arguments = ("--batch-size", batch_size, "--length", length)
    ours_seen, theirs_seen, is_quarter, details = [], [], False, {}
    for _ in range(args.rounds):
        if ours is None:
            details = common.measure(__file__, backend, "generate", *arguments)
            ours_seen.append(details["tokens_per_second"])
        if args.peers and not is_quarter:  # what is too slow is timed once
            speed, is_quarter = peer_speed(args.peers / script, backend, batch_size, length)
            theirs_seen.append(speed)
    ours, theirs = ours or common.median(ours_seen), common.median(theirs_seen)
    result = {
        "backend": backend,
        "batch_size": batch_size,
        "length": length,
        "ours": ours,
        "peer": peer,
        "theirs": theirs,
        "theirs_at_a_quarter_of_the_length": is_quarter,
        "ratio": common.ratio(ours, theirs),
        **details,
    }
    print(table_of([result]).splitlines()[-1], flush=True)
    return result


def table_of(results):
    header = ("backend", "batch", "length", "ours, tokens/s", "peer", "theirs", "ratio")
    rows = []
    for result in results:
        mark = "*" if result["theirs_at_a_quarter_of_the_length"] else ""
        theirs, ratio = (None if result[key] is None else result[key] for key in ("theirs", "ratio"))
        rows.append(
            (
                result["backend"],
                result["batch_size"],
                str(result["length"]),
                round(result["ours"]),
                result["peer"],
                None if theirs is None else f"{theirs:,.0f}{mark}",
                None if ratio is None else f"{ratio:.2f}{mark}",
            )
        )
    return common.table(header, rows)


def report(args, results):
    print(f"\n{table_of(results)}")
    if any(result["theirs_at_a_quarter_of_the_length"] for result in results):
        print(f"* a call took over {CALL_LIMIT} s: timed once, at a quarter of the length, where a token costs less")
    weights, bandwidth = common.weights_of_products(), common.memory_bandwidth()
    peaks = [common.measure(__file__, backend, "peak")["gflops"] for backend in args.backend or common.BACKENDS]
    for batch_size in args.batch_size:  # a step reads every weight once, and multiplies and adds it for each row
        tokens = max(result["ours"] for result in results if result["batch_size"] == batch_size)
        read, computed = tokens / batch_size * 4 * weights, tokens * 2 * weights
        print(
            f"batch {batch_size}: {tokens:,.0f} tokens/s read {read / 1e9:.1f} GB/s of weights, "
            f"{read / bandwidth:.0%} of what memory gives, and compute {computed / 1e9:.0f} GFLOP/s, "
            f"{computed / max(peaks) / 1e9:.0%} of the matrix peak"
        )
    limits = {"memory_bandwidth": bandwidth, "matrix_peak_gflops": max(peaks)}
    common.write_json(args.output, {"results": results, **limits})


if __name__ == "__main__":
    parser = common.argument_parser(__doc__)
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--length", type=int, nargs="+", default=[128, 1024], help="prompt included")
    args = parser.parse_args()
    if args.measure == "peak":
        print(json.dumps({"gflops": common.matrix_peak()}))
        raise SystemExit
    if args.measure == "generate":
        print(json.dumps(measure_generate(args.batch_size[0], args.length[0])))
    else:
        main(args)
