"""Scaled dot-product attention, the one place that chooses between a fused kernel and explicit scores.

Letters: B batch, T query length, S key length, N heads, K key/value heads, G = N / K query heads per key/value head,
H head dim. Layout (B, T, N, H), as `keras.ops.dot_product_attention`.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1 (https://arxiv.org/abs/1706.03762);
grouped heads: Ainslie et al. 2023, "GQA" (https://arxiv.org/abs/2305.13245).
"""

import math

import keras
from keras import ops

from keras_transformer.ops.masks import attention_mask, indices

# Far below any score, yet finite: a row without an allowed key stays free of NaN in the gradient as well.
MASKED_SCORE = -1e30
# Some hide keys by a bias of -inf or the smallest float: a key that a mask hides is further down all the same.
LOWEST_SCORE = -1e29


def attend(
    query,
    key,
    value,
    mask=None,
    causal=False,
    bias=None,
    scale=None,
    dropout=None,
    flash_attention=None,
    return_scores=False,
    soft_cap=None,
    sinks=None,
):
    """Attention output (B, T, N, H) and, on request, the probabilities (B, N, T, S).

    Args:
        query: (B, T, N, H).
        key, value: (B, S, K, H) with K a divisor of N: heads are shared in consecutive groups.
        mask: (T, S), (B, T, S) or (B, N, T, S), each dimension may be 1; of any dtype, True or non-zero = attend. Three
            dimensions are a mask per row, shared by the heads. A query with no allowed key gives zeros.
        causal: query t sees keys 0..t; no mask is built for it where the kernel can do it.
        bias: additive scores, broadcastable to (B, N, T, S). Of the keys that no mask hides, those at -inf get weight
            only where all are there.
        scale: factor on the scores, 1 / sqrt(H) by default.
        dropout: function applied to the probabilities, None at inference.
        flash_attention: True insists on the backend's flash kernel, False forbids it, None lets the backend choose.
        return_scores: also return the probabilities, before dropout.
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)`, before the bias and the masks.
        sinks: (N,), a logit per head that takes its share of the probabilities and has no value.

    Returns:
        `(output, scores)`, scores is None unless asked for.

    Raises:
        ValueError: a mask of another rank, or `flash_attention=True` where only explicit scores will do. Where the
            kernel itself cannot take the inputs or the device, the error is the backend's.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    mask = _of_rank_4(mask)
    reason = _reason_for_explicit_scores(query, key, value, bias, dropout, return_scores, soft_cap, sinks)
    if reason is None:
        return _fused(query, key, value, mask, causal, scale, flash_attention), None
    if flash_attention:
        raise ValueError(f"`flash_attention=True` cannot be met: {reason}. None uses the kernel where it is possible.")
    return _explicit(query, key, value, mask, causal, bias, scale, dropout, return_scores, soft_cap, sinks)


def without_masked_queries(scores, query_mask):
    """Probabilities (B, N, T, S) that are 0 where the mask (B, T) of the queries, or None, is False."""
    if query_mask is None:
        return scores
    return scores * ops.expand_dims(ops.cast(query_mask, scores.dtype), (1, -1))  # (B, 1, T, 1)


def _of_rank_4(mask):
    """(T, S) as (1, 1, T, S) and (B, T, S) as (B, 1, T, S), boolean."""
    if mask is None:
        return None
    mask = ops.cast(mask, "bool")
    rank = len(mask.shape)
    if rank not in (2, 3, 4):
        raise ValueError(
            "`mask` must have shape (T, S), (B, T, S) or (B, N, T, S), T queries and S keys. "
            f"Received: mask.shape={tuple(mask.shape)}"
        )
    if rank == 2:
        return ops.expand_dims(mask, (0, 1))
    return ops.expand_dims(mask, 1) if rank == 3 else mask


def _reason_for_explicit_scores(query, key, value, bias, dropout, return_scores, soft_cap, sinks):
    """Why no fused kernel can do this, None if one can."""
    if return_scores:
        return "the scores are asked for, and a kernel has none"
    if dropout is not None:
        return "no kernel takes dropout on the probabilities"
    if bias is not None:
        return "no kernel takes a bias next to all masks"
    if soft_cap is not None:
        return "no kernel caps the scores on every backend and device"
    if sinks is not None:
        return "no kernel has sinks"
    backend = keras.config.backend()
    if backend == "tensorflow":
        # What Keras runs there is the explicit form without our float32 scores.
        return "TensorFlow has no fused kernel"
    if backend == "jax" and key.shape[-1] != value.shape[-1]:
        return f"on JAX heads of keys and values must be of one size, not {key.shape[-1]} and {value.shape[-1]}"
    if backend == "jax" and keras.backend.standardize_dtype(query.dtype) == "float16" and not _has_gpu():
        return "JAX compiles it in float16 on a GPU only"
    return None


def _has_gpu():
    return any(device.startswith("gpu") for device in keras.distribution.list_devices())


def _fused(query, key, value, mask, causal, scale, flash_attention):
    has_key = None
    if mask is not None:
        if causal:
            mask = ops.logical_and(mask, _causal_mask(query, key))
            causal = False
        has_key = ops.any(mask, axis=-1, keepdims=True)  # (B, N, T, 1)
        # Kernels disagree about rows without a key (NaN, a mean, zeros): let them see everything, then clear them.
        mask = ops.logical_or(mask, ops.logical_not(has_key))
    output = ops.dot_product_attention(
        query, key, value, mask=mask, scale=scale, is_causal=causal, flash_attention=flash_attention
    )
    return _clear_rows_without_key(output, has_key)


def _explicit(query, key, value, mask, causal, bias, scale, dropout, return_scores, soft_cap, sinks):
    dtype = query.dtype
    num_heads, num_key_value_heads = query.shape[2], key.shape[2]
    if causal:
        causal_mask = _causal_mask(query, key)
        mask = causal_mask if mask is None else ops.logical_and(mask, causal_mask)

    # The scores are float32 from the product on: 16-bit scores near 1e3 are off by whole units.
    query = ops.cast(query, "float32") * scale
    scores = _scores(query, ops.cast(key, "float32"), num_heads, num_key_value_heads)  # (B, N, T, S)
    if soft_cap is not None:
        scores = soft_cap * ops.tanh(scores / soft_cap)
    if bias is not None:
        scores = ops.maximum(scores + ops.cast(bias, "float32"), LOWEST_SCORE)
    has_key = None
    if mask is not None:
        has_key = ops.any(mask, axis=-1, keepdims=True)  # (B, N, T, 1)
        scores = ops.where(mask, scores, MASKED_SCORE)
    probabilities = _softmax(scores, sinks)
    weights = ops.cast(probabilities, dtype)
    if dropout is not None:
        weights = dropout(weights)
    output = _mix(weights, value, num_heads, num_key_value_heads)  # (B, T, N, H)
    output = _clear_rows_without_key(output, has_key)
    if not return_scores:
        return output, None
    if mask is not None:
        probabilities = ops.where(mask, probabilities, 0.0)
    return output, ops.cast(probabilities, dtype)


def _softmax(scores, sinks):
    if sinks is not None:
        sinks = ops.cast(ops.reshape(sinks, (1, -1, 1, 1)), "float32")
        sinks = ops.broadcast_to(sinks, (*ops.shape(scores)[:-1], 1))
        return ops.softmax(ops.concatenate([scores, sinks], axis=-1), axis=-1)[..., :-1]
    # Keras warns of a softmax over one key, which is right here: it gets all of the attention.
    return ops.ones_like(scores) if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)


def _scores(query, key, num_heads, num_key_value_heads):
    if num_heads == num_key_value_heads:
        return ops.einsum("btnh,bsnh->bnts", query, key)
    query = _split_heads(query, axis=2, groups=num_key_value_heads)
    return _merge_heads(ops.einsum("btkgh,bskh->bkgts", query, key), axis=1, num_heads=num_heads)


def _mix(weights, value, num_heads, num_key_value_heads):
    if num_heads == num_key_value_heads:
        return ops.einsum("bnts,bsnh->btnh", weights, value)
    weights = _split_heads(weights, axis=1, groups=num_key_value_heads)
    return _merge_heads(ops.einsum("bkgts,bskh->btkgh", weights, value), axis=2, num_heads=num_heads)


def _split_heads(x, axis, groups):
    shape = ops.shape(x)
    return ops.reshape(x, (*shape[:axis], groups, x.shape[axis] // groups, *shape[axis + 1 :]))


def _merge_heads(x, axis, num_heads):
    shape = ops.shape(x)
    return ops.reshape(x, (*shape[:axis], num_heads, *shape[axis + 2 :]))


def _causal_mask(query, key):
    mask = attention_mask(indices(ops.shape(query)[1]), indices(ops.shape(key)[1]), causal=True)
    return ops.expand_dims(mask, 1)  # (1, 1, T, S)


def _clear_rows_without_key(output, has_key):
    if has_key is None:
        return output
    return ops.where(ops.swapaxes(has_key, 1, 2), output, ops.zeros((), output.dtype))  # (B, T, N, 1)
