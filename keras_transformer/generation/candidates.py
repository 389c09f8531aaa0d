"""The candidates of a beam search's step: which texts end and which beams go on.

Letters: B searches (prompts times groups), G groups of each prompt, K beams of a search, C candidates, V vocabulary.

Candidates are ranked by `totals`: the sum of log-probabilities and what coverage is worth at their length, so that
`totals` over the length to the power of `length_penalty` is the score that the text would have if it ended here.

Source: diverse groups: Vijayakumar et al. 2016 (https://arxiv.org/abs/1610.02424).
"""

import keras
from keras import ops

from keras_transformer.generation.loop import is_stop
from keras_transformer.ops.rows import at

# Far below any score, those with a negative length penalty included, and so far above -inf that sums of it are finite.
IMPOSSIBLE = -1e30


def choose(sums, bonus, log_probs, is_open, told, num_new, num_groups):
    """The best continuations of the beams of each search.

    Args:
        sums: (B, K) log-probabilities of the beams.
        bonus: (B, K), what coverage adds to the rank of a beam's continuations, or None.
        log_probs: (B * K, V) of the next token.
        is_open: boolean (B,), which searches are still going on.
        told: dict with `stop`, `max_new_tokens` and, for groups, `diversity_penalty`.
        num_new: (), tokens of a text with the next one.
        num_groups: G. The groups of a prompt choose in turn, and for each beam of an earlier group that goes on with a
            token, `diversity_penalty` is taken off the log-probability of this token.

    Returns:
        `(candidates, chosen)`: dicts with `totals`, `sums`, `parent` and `token`, the best first: (B, C) with `ends`
        for all, and (B, K) with `index` among them for those that go on.
    """
    log_probs = ops.reshape(log_probs, (*sums.shape, log_probs.shape[-1]))
    if num_groups == 1:
        return _choose(sums, bonus, log_probs, told, num_new)
    groups, penalty = [], 0.0
    for group in range(num_groups):
        mine = [None if x is None else _split(x, num_groups)[:, group] for x in (sums, bonus, log_probs, is_open)]
        found = _choose(mine[0], mine[1], mine[2] - penalty, told, num_new)
        goes_on = ops.logical_and(found[1]["totals"] > IMPOSSIBLE / 2, ops.expand_dims(mine[3], -1))
        tokens = ops.one_hot(found[1]["token"], log_probs.shape[-1], dtype="float32")
        count = ops.sum(ops.where(ops.expand_dims(goes_on, -1), tokens, 0.0), axis=1, keepdims=True)
        penalty = penalty + told["diversity_penalty"] * count
        groups.append(found)
    return keras.tree.map_structure(lambda *x: ops.reshape(ops.stack(x, axis=1), (-1, *x[0].shape[1:])), *groups)


def _split(x, num_groups):
    """(B, ...) as (prompts, G, ...)."""
    return ops.reshape(x, (-1, num_groups, *x.shape[1:]))


def _choose(sums, bonus, log_probs, told, num_new):
    """`choose` for one group. Of (1 + stops) * K candidates, at least K do not end with a stop token."""
    batch, num_beams, vocabulary = log_probs.shape
    sums = ops.maximum(log_probs + ops.expand_dims(sums, -1), IMPOSSIBLE)
    totals = sums if bonus is None else ops.maximum(sums + ops.expand_dims(bonus, -1), IMPOSSIBLE)
    sums, totals = (ops.reshape(x, (batch, num_beams * vocabulary)) for x in (sums, totals))
    count = min((1 + max(1, told["stop"].shape[0])) * num_beams, num_beams * vocabulary)
    totals, index = ops.top_k(totals, count)
    index = ops.cast(index, "int32")
    candidates = {"totals": totals, "sums": totals if bonus is None else at(sums, index)}
    candidates |= {"parent": index // vocabulary, "token": index % vocabulary}
    stops = is_stop(candidates["token"], told["stop"])
    totals, going_on = ops.top_k(ops.where(stops, IMPOSSIBLE, totals), num_beams)
    chosen = {name: at(x, going_on) for name, x in candidates.items()}
    chosen |= {"totals": totals, "sums": ops.where(totals > IMPOSSIBLE / 2, chosen["sums"], IMPOSSIBLE)}
    chosen["index"] = ops.cast(going_on, "int32")
    # At the last step every text is finished, as it is.
    return {**candidates, "ends": ops.logical_or(stops, num_new >= told["max_new_tokens"])}, chosen
