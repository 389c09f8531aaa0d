"""Which expert a token is sent to, which place it takes there, and how evenly tokens are spread.

Letters: T tokens, E experts, k experts of a token, C capacity of an expert.
"""

from keras import ops


def route(logits, num_experts_per_token, normalize):
    """Probabilities (T, E), and the weights and the numbers of the k most probable experts, each (T, k)."""
    probabilities = ops.softmax(logits, axis=-1)
    weights, chosen = ops.top_k(probabilities, num_experts_per_token)
    if normalize:
        weights = weights / ops.sum(weights, axis=-1, keepdims=True)
    return probabilities, weights, chosen


def balancing_loss(probabilities, chosen, real=None):
    """`E * sum over e of (tokens sent to e / tokens) * (mean probability of e)` over the real tokens (T,), float32.

    Source: Fedus et al. 2021, equations 4 to 6 (https://arxiv.org/abs/2101.03961).
    """
    num_experts = probabilities.shape[-1]
    sent = ops.sum(ops.one_hot(chosen, num_experts, dtype="float32"), axis=1)  # (T, E)
    return num_experts * ops.sum(_mean(sent, real) * _mean(probabilities, real))


def z_loss(logits, real=None):
    """Mean square of the log of the router's partition function.

    Source: Zoph et al. 2022, equation 5 (https://arxiv.org/abs/2202.08906).
    """
    return _mean(ops.square(ops.logsumexp(logits, axis=-1)), real)


def _mean(x, real):
    """Mean over the first axis of the rows where `real` is 1; 0 if there are none."""
    if real is None:
        return ops.mean(x, axis=0)
    weights = ops.reshape(real, (-1, *[1] * (len(x.shape) - 1)))
    return ops.sum(x * weights, axis=0) / ops.maximum(ops.sum(real), 1.0)


def places_in_experts(chosen, num_experts, capacity, real=None):
    """Where each choice of a token finds a place.

    Args:
        chosen: (T, k) numbers of experts.
        num_experts: E.
        capacity: number of places in an expert, C.
        real: (T,) 1.0 for tokens, 0.0 for padding, which takes no place.

    Returns:
        Of each choice the place (T, k), a number below E * C, and E * C where there is none; of each place the token
        that is in it, (E, C), counted from 1, and 0 for nobody.
    """
    num_tokens, num_choices = ops.shape(chosen)
    wanted = ops.one_hot(chosen, num_experts, dtype="int32")  # (T, k, E)
    if real is not None:
        wanted = wanted * ops.cast(ops.reshape(real, (-1, 1, 1)), "int32")
    # All first choices come before all second ones.
    queue = ops.reshape(ops.transpose(wanted, (1, 0, 2)), (-1, num_experts))  # (k * T, E)
    before = ops.sum((ops.cumsum(queue, axis=0) - queue) * queue, axis=-1)
    finds_place = ops.logical_and(ops.any(queue > 0, axis=-1), before < capacity)
    experts = ops.cast(ops.reshape(ops.transpose(chosen), (-1,)), "int32")
    places = ops.where(finds_place, experts * capacity + before, num_experts * capacity)  # (k * T,)
    tokens = ops.tile(ops.arange(1, num_tokens + 1, dtype="int32"), (num_choices,))
    # The dropped all write to one place more, which is left out again.
    token_at = ops.scatter(ops.expand_dims(places, -1), tokens, (num_experts * capacity + 1,))[:-1]
    places = ops.transpose(ops.reshape(places, (num_choices, num_tokens)))
    return places, ops.reshape(token_at, (num_experts, capacity))
