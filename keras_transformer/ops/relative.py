"""Position bias: numbers for distances between a query and a key.

Sources: Raffel et al. 2020, "T5", section 2.1 (https://arxiv.org/abs/1910.10683); Press et al. 2022, "ALiBi"
(https://arxiv.org/abs/2108.12409).

Letters: B batch, T query length, S key length, N heads.
"""

import math

import numpy as np
from keras import ops


def distances(query_positions, key_positions):
    """Key position - query position, int32 (B, T, S), of positions (B or 1, T) and (B or 1, S)."""
    queries, keys = (ops.cast(x, "int32") for x in (query_positions, key_positions))
    return ops.expand_dims(keys, 1) - ops.expand_dims(queries, 2)


def relative_buckets(distance, num_buckets=32, max_distance=128, bidirectional=True):
    """The bucket, int32 of the same shape, of each distance (key position - query position).

    Near distances have a bucket each, the others share theirs on a logarithmic scale; from `max_distance` on all are
    in the last one. With `bidirectional`, half of the buckets are for the keys behind the query; without, these are at
    distance 0.

    Example: `relative_buckets([-20, 0, 20])` is `[10, 0, 26]`.
    """
    distance, first = ops.cast(distance, "int32"), 0
    if bidirectional:
        num_buckets //= 2
        first = ops.where(distance > 0, num_buckets, 0)
        distance = -ops.abs(distance)
    steps = ops.minimum(ops.maximum(-distance, 0), max_distance)
    # A table, because at whole powers the last bit of a logarithm decides, and backends differ there.
    return first + ops.take(ops.convert_to_tensor(_bucket_table(num_buckets, max_distance)), steps, axis=0)


def _bucket_table(num_buckets, max_distance):
    """The bucket of each number of steps from 0 to `max_distance`, int32."""
    near, steps = num_buckets // 2, np.arange(max_distance + 1)
    far = np.log(np.maximum(steps, 1).astype("float32") / np.float32(near))
    far = far / np.float32(math.log(max_distance / near)) * np.float32(num_buckets - near)
    far = np.minimum(near + far.astype("int32"), num_buckets - 1)
    return np.where(steps < near, steps, far).astype("int32")


def alibi_slopes(num_heads):
    """What a step of distance costs in each head, float32 (N,).

    For a power of two they are `2 ** (-8 i / N)` with i from 1 to N; what is missing to another number are every second
    ones of twice that power.

    Example: `alibi_slopes(2)` is `[2 ** -4, 2 ** -8]`.
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    slopes += [2.0 ** (-8 * i / (2 * power)) for i in range(1, 2 * (num_heads - power), 2)]
    return np.array(slopes, "float32")
