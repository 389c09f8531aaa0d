"""Can this model be decoded through a cache? Asked once per model, answered by trying."""

import numpy as np
from keras import ops

from keras_transformer.ops.cache import CannotCache

LENGTH = 6
SOURCE_LENGTH = 4


def reason_against_cache(cached, full, ids, with_source, is_float32):
    """None if prefill and steps through the cache give the logits of the full forward, else why not.

    Args:
        cached, full: the two decoders to compare.
        ids: ids to draw from; padding is not among them.
        with_source: whether the model has an encoder.
        is_float32: whether the model computes in float32; 16-bit logits may differ by more.
    """
    random = np.random.default_rng(0)
    source_ids = random.choice(ids, (1, SOURCE_LENGTH)) if with_source else None
    ids = random.choice(ids, (1, LENGTH))
    half = LENGTH // 2
    try:
        logits, state = cached.start(_batch(ids[:, :half], source_ids), LENGTH)
        if not state["cache"]["layers"]:
            return "none of its layers keeps a cache"
        for i in range(half, LENGTH):
            logits, state = cached.step(state, _int32(ids[:, i]), _int32([i]))
    except CannotCache as error:
        return str(error)
    expected, _ = full.start(_batch(ids, source_ids), LENGTH)
    logits, expected = (ops.convert_to_numpy(ops.cast(x, "float32")) for x in (logits, expected))
    error = float(np.abs(logits - expected).max() / max(np.abs(expected).max(), 1e-30))
    if error <= (1e-4 if is_float32 else 5e-2):
        return None
    return f"through a cache its logits differ by {error:.1e} of the largest"


def _batch(ids, source_ids):
    batch = {"token_ids": ids, "positions": np.arange(ids.shape[1])[None], "last": [ids.shape[1] - 1]}
    if source_ids is not None:
        batch |= {"source_ids": source_ids, "source_positions": np.arange(SOURCE_LENGTH)[None]}
    return {name: _int32(value) for name, value in batch.items()}


def _int32(x):
    return ops.convert_to_tensor(np.asarray(x, "int32"))
