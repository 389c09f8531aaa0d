"""Which key may a query see: one function of positions.

Letters: B batch, T query length, S key length, N heads.

A position is the index of a token in its own sequence, counted from 0; -1 marks what is not a token: padding on
either side, a cache slot that has not been written, a row that has ended. Masks are boolean, True means attend.
The idea that a mask is a function of positions is penzai's.
"""

from keras import ops

NOT_A_TOKEN = -1


def attention_mask(
    query_positions, key_positions, causal=False, sliding_window=None, query_packing_ids=None, key_packing_ids=None
):
    """Boolean mask (B, T or 1, S) from positions.

    Args:
        query_positions: int32 (B or 1, T).
        key_positions: int32 (B or 1, S); -1 is never attended to.
        causal: a query sees keys at its own position and before.
        sliding_window: a query sees keys less than this many positions away, on both sides (with `causal`,
            the last `sliding_window` keys, as in Mistral).
        query_packing_ids, key_packing_ids: int32 (B or 1, T) and (B or 1, S); with packed rows a query sees its
            own sequence only.

    Example:
    ```python
    attention_mask(ops.arange(3)[None], [[-1, 0, 1]], causal=True)
    # [[[False, True, False], [False, True, True], [False, True, True]]]
    ```
    """
    key_positions = ops.expand_dims(key_positions, -2)  # (B, 1, S)
    allowed = key_positions > NOT_A_TOKEN
    if causal or sliding_window is not None:
        distance = ops.expand_dims(query_positions, -1) - key_positions  # (B, T, S)
    if causal:
        allowed = ops.logical_and(allowed, distance >= 0)
    if sliding_window is not None:
        allowed = ops.logical_and(allowed, ops.abs(distance) < sliding_window)
    if query_packing_ids is not None:
        same = ops.equal(ops.expand_dims(query_packing_ids, -1), ops.expand_dims(key_packing_ids, -2))
        allowed = ops.logical_and(allowed, same)
    return allowed


def indices(length):
    """The positions of a row without padding, int32 (1, T)."""
    return ops.expand_dims(ops.arange(length, dtype="int32"), 0)


def index_positions(mask):
    """Positions that keep each token's index and mark the masked ones: (B, T) bool -> int32.

    Attention needs only distances, so holes and left padding may keep their index here.
    """
    return ops.where(ops.cast(mask, "bool"), indices(ops.shape(mask)[1]), NOT_A_TOKEN)


def token_positions(mask):
    """Positions counted from each row's first token, int32 (B, T); holes keep their index, what lies before is -1."""
    mask = ops.cast(mask, "bool")
    first = ops.argmax(ops.cast(mask, "int32"), axis=-1)
    positions = indices(ops.shape(mask)[1]) - ops.cast(ops.expand_dims(first, -1), "int32")
    has_token = ops.any(mask, axis=-1, keepdims=True)
    return ops.where(has_token, ops.maximum(positions, NOT_A_TOKEN), NOT_A_TOKEN)


def combine(*masks):
    """Logical and of the masks that are not None; None when all are."""
    combined = None
    for mask in masks:
        if mask is not None:
            mask = ops.cast(mask, "bool")
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined
