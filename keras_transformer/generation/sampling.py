"""Drawing a token from its distribution: a pure function of logits, uniform noise and parameters.

All parameters are tensors, so that changing one compiles nothing; only which filters are used is known when compiling.

Letters: B batch, V vocabulary.

Source: nucleus (top-p) sampling: Holtzman et al. 2019 (https://arxiv.org/abs/1904.09751); min-p: Nguyen et al. 2024
(https://arxiv.org/abs/2407.01082); locally typical sampling: Meister et al. 2022 (https://arxiv.org/abs/2202.00666).
"""

from keras import ops


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


def draw(probabilities, noise):
    """One token for each row of probabilities (B, V), which need not be normalised: int32 (B,)."""
    cumulative = ops.cumsum(probabilities, axis=-1)
    threshold = ops.expand_dims(noise, -1) * cumulative[:, -1:]
    possible = probabilities > 0
    reached = ops.logical_and(cumulative > threshold, possible)
    # Rounding may leave the threshold at the very top: then it is the last possible token.
    last = ops.max(ops.where(possible, ops.arange(probabilities.shape[-1], dtype="int32"), 0), axis=-1)
    first = ops.cast(ops.argmax(reached, axis=-1), "int32")
    return ops.where(ops.any(reached, axis=-1), first, last)


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
        logits = logits / parameters["temperature"]
    probabilities = ops.softmax(logits, axis=-1)
    if {"top_k", "top_p", "min_p"} & set(filters):
        probabilities = _keep_most_probable(probabilities, filters, parameters)
    if "typical_p" in filters:
        probabilities = _keep_typical(probabilities, parameters["typical_p"])
    return probabilities


def _keep_most_probable(probabilities, filters, parameters):
    """Top-k, top-p and min-p all keep the first so many tokens in the order of probability: one sort for all three."""
    ordered = ops.flip(ops.sort(probabilities, axis=-1), axis=-1)
    left = ordered  # what is left of the ordered probabilities
    if "top_k" in filters:
        left = ops.where(ops.arange(ordered.shape[-1], dtype="int32") < parameters["top_k"], left, 0.0)
    if "top_p" in filters:
        left = left / ops.sum(left, axis=-1, keepdims=True)
        mass_before = ops.cumsum(left, axis=-1) - left
        is_first = ops.arange(ordered.shape[-1], dtype="int32") == 0
        left = ops.where(ops.logical_or(mass_before < parameters["top_p"], is_first), left, 0.0)
    if "min_p" in filters:
        left = ops.where(left >= parameters["min_p"] * left[:, :1], left, 0.0)
    smallest = ops.min(ops.where(left > 0, ordered, 1.0), axis=-1, keepdims=True)
    return ops.where(probabilities >= smallest, probabilities, 0.0)


def _keep_typical(probabilities, typical_p):
    """Keep the tokens whose surprise is nearest to the expected one, up to a mass of `typical_p`."""
    probabilities = probabilities / ops.sum(probabilities, axis=-1, keepdims=True)
    possible = probabilities > 0
    surprise = -ops.log(ops.where(possible, probabilities, 1.0))
    entropy = ops.sum(probabilities * surprise, axis=-1, keepdims=True)
    distance = ops.where(possible, ops.abs(surprise - entropy), float("inf"))
    order = ops.argsort(distance, axis=-1)
    mass = ops.take_along_axis(probabilities, order, axis=-1)
    mass_before = ops.cumsum(mass, axis=-1) - mass
    # The farthest that is kept: the last whose mass before it is below `typical_p`, the first in any case.
    count = ops.maximum(ops.sum(ops.cast(mass_before < typical_p, "int32"), axis=-1, keepdims=True), 1)
    farthest = ops.take_along_axis(ops.take_along_axis(distance, order, axis=-1), count - 1, axis=-1)
    return ops.where(distance <= farthest, probabilities, 0.0)
