"""From the logits of starts and ends to the best spans.

Letters: B batch, T length, L longest span, N number of spans.
"""

from typing import NamedTuple

import numpy as np

from keras_transformer.arguments import check_size


class Spans(NamedTuple):
    """`start`, `end`, int (B, N), the end included, and `score`, (B, N): the best comes first.

    Where a row has fewer spans than asked for, start and end are -1 and the score is -inf.
    """

    start: np.ndarray
    end: np.ndarray
    score: np.ndarray


def best_span(start_logits, end_logits, mask=None, max_length=30, n_best=1):
    """The spans with the highest sum of logits among those that end where they start or later.

    Source: Devlin et al. 2018, "BERT", section 4.2 (https://arxiv.org/abs/1810.04805).

    Args:
        start_logits, end_logits: (B, T), or (T,) for a single text.
        mask: boolean of the same shape, True where a span may start and end, for instance the context's tokens; None:
            everywhere.
        max_length: tokens of a span at most, L.
        n_best: how many spans of each row.

    Returns:
        `Spans`; of equal scores the earlier start and then the shorter span comes first. For a single text B is left
        off.

    Raises:
        ValueError: shapes do not fit together, or a logit that may count is NaN.

    Example:

    >>> best_span([[0.0, 3.0, 1.0]], [[4.0, 0.0, 2.0]])
    Spans(start=array([[1]]), end=array([[2]]), score=array([[5.]]))
    """
    check_size(max_length=max_length, n_best=n_best)
    starts, ends = np.asarray(start_logits, "float64"), np.asarray(end_logits, "float64")
    allowed = np.ones(starts.shape, bool) if mask is None else np.asarray(mask, bool)
    if starts.ndim not in (1, 2) or not starts.shape == ends.shape == allowed.shape or not starts.shape[-1]:
        raise ValueError(
            "`start_logits`, `end_logits` and `mask` must have one shape, (B, T) or (T,) with T > 0. "
            f"Received: {starts.shape}, {ends.shape}, {allowed.shape}"
        )
    if np.isnan(starts[allowed]).any() or np.isnan(ends[allowed]).any():
        raise ValueError("`start_logits` and `end_logits` must not be NaN where a span may start or end.")
    is_single, length = starts.ndim == 1, starts.shape[-1]
    starts, ends = (np.where(allowed, x, -np.inf).reshape(-1, length) for x in (starts, ends))

    # scores[b, t, l] is that of the span from t to t + l
    num_ends = min(int(max_length), length)
    later = np.pad(ends, ((0, 0), (0, num_ends - 1)), constant_values=-np.inf)
    scores = starts[..., None] + np.lib.stride_tricks.sliding_window_view(later, num_ends, axis=1)
    scores = scores.reshape(len(starts), -1)
    scores = np.pad(scores, ((0, 0), (0, max(0, n_best - scores.shape[1]))), constant_values=-np.inf)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :n_best]
    score = np.take_along_axis(scores, order, axis=1)
    start = np.where(score > -np.inf, order // num_ends, -1)
    end = np.where(score > -np.inf, start + order % num_ends, -1)
    return Spans(*(x[0] if is_single else x for x in (start, end, score)))
