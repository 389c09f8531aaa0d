"""Training speed of `fit`: batches of 16 x 128 tokens, AdamW, tokens per second on each backend.

    python benchmarks/train.py --peers DIR --output outputs/train.json

With `--peers`, the scripts of DIR that do the same work (KerasHub's layers on each backend, transformers in PyTorch,
and the step written by hand in JAX) are timed in the same run, each in its own process, ours and theirs in turn.
Ours is timed twice: as the scripts of examples/ train, which call `keep_memory` and `end_epochs_at_once`, and plainly.
"""

import json

import common

BATCH_SIZE, LENGTH = 16, 128


def measure_fit(steps, plain):
    """Tokens per second of `fit`, the median of three epochs of `steps` batches."""
    import keras
    import numpy as np

    from keras_transformer.training import MaskedCrossentropy, end_epochs_at_once, keep_memory

    if not plain:
        keep_memory()
        end_epochs_at_once()
    model = common.stacked_model(LENGTH)
    model.compile(optimizer=keras.optimizers.AdamW(1e-3), loss=MaskedCrossentropy())
    token_ids = np.random.default_rng(0).integers(1, common.VOCABULARY_SIZE, (BATCH_SIZE * steps, LENGTH), "int32")
    labels = np.roll(token_ids, -1, axis=1)

    def fit(rows):
        model.fit(token_ids[:rows], labels[:rows], batch_size=BATCH_SIZE, verbose=0)

    fit(BATCH_SIZE * 3)
    seconds = common.timed(lambda: fit(len(token_ids)), repeats=3, warm_up=0)
    return {
        "tokens_per_second": token_ids.size / common.median(seconds),
        "peak_memory_mb": common.peak_memory_mb(),
        "parameters": model.count_params(),
    }


def main(args):
    backends = args.backend or common.BACKENDS
    jobs = {}
    for backend in backends:
        for who, what in (("ours", "fit"), ("ours, plain", "plain_fit")):
            jobs[who, backend] = lambda backend=backend, what=what: common.measure(
                __file__, backend, what, "--steps", args.steps
            )["tokens_per_second"]
        if args.peers:
            jobs["KerasHub", backend] = lambda backend=backend: common.peer_tokens_per_second(
                args.peers / "train_hub.py", backend, N=args.steps
            )
    if args.peers:
        jobs["transformers", "torch"] = lambda: common.peer_tokens_per_second(args.peers / "train_hf.py", N=args.steps)
        if "jax" in backends:
            jobs["by hand", "jax"] = lambda: common.peer_tokens_per_second(args.peers / "train_jax_by_hand.py")

    seen = {job: [] for job in jobs}
    for _ in range(args.rounds):
        for (who, backend), job in jobs.items():
            seen[who, backend].append(job())
            print(f"{who} on {backend}: {seen[who, backend][-1]:,.0f} tokens/s", flush=True)
    speed = {job: common.median(values) for job, values in seen.items()}
    peaks = {backend: common.measure(__file__, backend, "peak")["gflops"] for backend in backends}
    report(args, backends, speed, peaks)


def report(args, backends, speed, peaks):
    flop, peak = common.training_flop_per_token(LENGTH), max(peaks.values())
    header = ("backend", "ours, tokens/s", "KerasHub", "ratio", "ours, plain", "ratio", "share of matrix peak")
    rows = []
    for backend in backends:
        ours, plain = speed["ours", backend], speed["ours, plain", backend]
        theirs = speed.get(("KerasHub", backend))
        share = f"{ours * flop / peak / 1e9:.0%}"
        ratio, plain_ratio = common.ratio(ours, theirs), common.ratio(plain, theirs)
        rows.append((backend, round(ours), common.whole(theirs), ratio, round(plain), plain_ratio, share))
    print(f"\n{common.table(header, rows)}")
    limit = peak * 1e9 / flop
    print(f"\nmatrix peak {peak:.0f} GFLOP/s and {flop / 1e6:.1f} MFLOP a token allow {limit:,.0f} tokens/s")

    ratios = {f"KerasHub on {row[0]}": row[3] for row in rows}
    if args.peers:
        best = max(backends, key=lambda backend: speed["ours", backend])
        ratios["transformers"] = common.ratio(speed["ours", best], speed["transformers", "torch"])
        print(
            f"transformers' loop on torch {speed['transformers', 'torch']:,.0f} tokens/s: "
            f"ours on {best} is {ratios['transformers']:.2f} x as fast"
        )
        if "jax" in backends:
            ratios["by hand in JAX"] = common.ratio(speed["ours", "jax"], speed["by hand", "jax"])
            print(
                f"the step by hand in JAX {speed['by hand', 'jax']:,.0f} tokens/s: "
                f"ours on jax is {ratios['by hand in JAX']:.2f} x as fast"
            )
    results = {
        "tokens_per_second": {f"{who} on {backend}": value for (who, backend), value in speed.items()},
        "ratios": ratios,
        "matrix_peak_gflops": peaks,
        "flop_per_token": flop,
    }
    common.write_json(args.output, results)


if __name__ == "__main__":
    parser = common.argument_parser(__doc__)
    parser.add_argument("--steps", type=int, default=10, help="batches in each of the three timed epochs")
    args = parser.parse_args()
    if args.measure in ("fit", "plain_fit"):
        print(json.dumps(measure_fit(args.steps, plain=args.measure == "plain_fit")))
    elif args.measure == "peak":
        print(json.dumps({"gflops": common.matrix_peak()}))
    else:
        main(args)
