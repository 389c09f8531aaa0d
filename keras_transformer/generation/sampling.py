"""Drawing a token from its distribution: a pure function of logits, uniform noise and parameters.

All parameters are tensors, so that changing one compiles nothing; only which filters are used is known when compiling.

Letters: B batch, V vocabulary.

Source: nucleus (top-p) sampling: Holtzman et al. 2019 (https://arxiv.org/abs/1904.09751); min-p: Nguyen et al. 2024
(https://arxiv.org/abs/2407.01082); locally typical sampling: Meister et al. 2022 (https://arxiv.org/abs/2202.00666).
"""

import numpy as np
from keras import ops

from keras_transformer.ops.rows import at

BLOCK = 128  # tokens


def sample(logits, noise, filters, parameters):
    """Draw one token for each row.

    Args:
        logits: float32 (B, V); -inf is never drawn.
        noise: uniform float32 (B,) in [0, 1).
        filters: names of the filters to use, of `temperature`, `top_k`, `top_p`, `min_p` and `typical_p`.
        parameters: dict with a scalar tensor for each of them.

    Returns:
        int32 (B,). The tokens that are left are weighted by their probabilities.
    """
    return draw(filtered(logits, filters, parameters), noise)


def most_probable(logits):
    """The first of the largest logits (B, V): int32 (B,). Faster than `argmax`, which XLA does not vectorise."""
    largest = ops.max(logits, axis=-1, keepdims=True)
    index = ops.arange(logits.shape[-1], dtype="int32")
    return ops.min(ops.where(logits >= largest, index, logits.shape[-1] - 1), axis=-1)


def draw(probabilities, noise):
    """One token for each row of probabilities (B, V), which need not be normalised: int32 (B,)."""
    vocabulary_size = probabilities.shape[-1]
    # First the block of tokens, then the one in it: two short cumulative sums take less than a long one.
    padded = ops.pad(probabilities, [(0, 0), (0, -vocabulary_size % BLOCK)])
    blocks = ops.reshape(padded, (padded.shape[0], -1, BLOCK))  # (B, V / BLOCK, BLOCK)
    mass = ops.sum(blocks, axis=-1)
    block, rest = _reached(mass, ops.expand_dims(noise, -1) * ops.sum(mass, axis=-1, keepdims=True))
    within, _ = _reached(at(blocks, block), rest)
    return block * BLOCK + within


def _reached(mass, threshold):
    """Where the cumulative sum of mass (B, M) first exceeds the threshold (B, 1), and what is missing before it."""
    cumulative = ops.cumsum(mass, axis=-1)
    possible = mass > 0
    # Rounding may leave the threshold at the very top: then it is the last one with any mass.
    last = ops.max(ops.where(possible, ops.arange(mass.shape[-1], dtype="int32"), 0), axis=-1)
    reached = ops.logical_and(cumulative > threshold, possible)
    first = ops.where(ops.any(reached, axis=-1), ops.cast(ops.argmax(reached, axis=-1), "int32"), last)
    before = at(cumulative - mass, ops.expand_dims(first, -1))
    return first, threshold - before


def normalised(logits, filters, parameters):
    """The distribution (B, V) that `sample` draws from; zeros in a row where every token is banned."""
    possible = ops.any(logits > float("-inf"), axis=-1, keepdims=True)
    probabilities = ops.where(possible, filtered(ops.where(possible, logits, 0.0), filters, parameters), 0.0)
    return probabilities / ops.maximum(ops.sum(probabilities, axis=-1, keepdims=True), 1e-30)


def filtered(logits, filters, parameters):
    """Probabilities (B, V) after the filters, zero where a token is out; not normalised.

    In this order: temperature, top-k, top-p, min-p, typical; each works on what the ones before it left, normalised.
    Tokens of equal probability are kept or dropped together.
    """
    if "temperature" in filters:
        # The largest one is 0 then, which nothing makes infinite.
        logits = (logits - ops.max(logits, axis=-1, keepdims=True)) / parameters["temperature"]
    probabilities = ops.softmax(logits, axis=-1)
    if {"top_k", "top_p", "min_p"} & set(filters):
        probabilities = _keep_most_probable(probabilities, filters, parameters)
    if "typical_p" in filters:
        probabilities = _keep_typical(probabilities, parameters["typical_p"])
    return probabilities


def _keep_most_probable(probabilities, filters, parameters):
    """Top-k, top-p and min-p all keep the tokens above some probability: it is found for one after the other."""
    if "top_k" in filters:
        count = ops.ones_like(probabilities)
        probabilities = _keep_first(probabilities, probabilities, count, ops.cast(parameters["top_k"], "float32"))
    if "top_p" in filters:
        mass = _share_of(probabilities, parameters["top_p"])
        probabilities = _keep_first(probabilities, probabilities, probabilities, mass)
    if "min_p" in filters:
        least = parameters["min_p"] * ops.max(probabilities, axis=-1, keepdims=True)
        probabilities = ops.where(probabilities >= least, probabilities, 0.0)
    return probabilities


def _keep_typical(probabilities, typical_p):
    """Keep the tokens whose surprise is nearest to the expected one, up to a mass of `typical_p`."""
    probabilities = probabilities / ops.sum(probabilities, axis=-1, keepdims=True)
    possible = probabilities > 0
    surprise = -ops.log(ops.where(possible, probabilities, 1.0))
    entropy = ops.sum(probabilities * surprise, axis=-1, keepdims=True)
    nearness = ops.where(possible, 1 / (1 + ops.abs(surprise - entropy)), 0.0)
    return _keep_first(probabilities, nearness, probabilities, _share_of(probabilities, typical_p))


def _share_of(probabilities, share):
    """The mass that a share of the probabilities (B, V) is, (B, 1); out of reach for all of it."""
    mass = share * ops.sum(probabilities, axis=-1, keepdims=True)
    return ops.where(share < 1, mass, float("inf"))


def _keep_first(probabilities, rank, weights, target):
    """Keep the tokens of highest rank, as many as it takes for their weights to reach the target.

    All are (B, V), the target a scalar or (B, 1); ranks are not negative, and tokens of one rank stay or go together.
    Nothing is sorted, which on a CPU takes longer than running a small model: the rank of the last token that is kept
    is found bit by bit, as the bits of floats that are not negative are in the order of their values.
    """
    bits = ops.view(rank, "int32")
    powers = ops.convert_to_tensor(2 ** np.arange(30, -1, -1, dtype="int32"))

    def add_bit(i, lowest):
        higher = lowest + powers[i]
        is_reached = ops.sum(ops.where(bits >= higher, weights, 0.0), axis=-1, keepdims=True) >= target
        return ops.where(is_reached, higher, lowest)

    lowest = ops.fori_loop(0, 31, add_bit, ops.zeros((bits.shape[0], 1), "int32"))
    return ops.where(bits >= lowest, probabilities, 0.0)
