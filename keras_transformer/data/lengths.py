"""Length buckets: which few lengths to pad to, and which of them a sequence goes to."""

import numpy as np

from keras_transformer.arguments import check_size

# Fitting looks at this many lengths a side at most, which keeps it well below a second.
_MAX_CANDIDATE_LENGTHS = 50


def length_buckets(lengths, num_buckets=8):
    """Choose the lengths to pad to, so that as few positions as possible are padding.

    A sequence goes to the smallest bucket it fits into (`assign_buckets`). Buckets are added one by one where they save
    most, then each is moved to its best place given the others, until nothing improves.

    Args:
        lengths: `(N,)` lengths of sequences, or `(N, 2)` lengths of pairs.
        num_buckets: int, the largest number of buckets.

    Returns:
        A list of int, or of int tuples for pairs, sorted by size; every sequence fits into one of them.

    Raises:
        ValueError: if there are no lengths or `num_buckets` is below 1.

    Example:

    >>> length_buckets([3, 3, 4, 9, 10, 30], num_buckets=3)
    [4, 10, 30]
    >>> length_buckets([(3, 4), (4, 3), (20, 30)], num_buckets=2)
    [(4, 4), (20, 30)]
    """
    lengths = np.asarray(lengths)
    if not lengths.size:
        raise ValueError("`lengths` is empty: there is nothing to fit buckets to.")
    check_size(num_buckets=num_buckets)
    sides = lengths.reshape(len(lengths), -1).T
    candidates_of_side = [_candidate_lengths(side) for side in sides]
    rounded = [options[np.searchsorted(options, side)] for options, side in zip(candidates_of_side, sides)]
    cells, counts = np.unique(np.stack(rounded), axis=1, return_counts=True)  # (sides, cells)
    candidates = np.stack(np.meshgrid(*candidates_of_side, indexing="ij")).reshape(len(sides), -1)
    fits = (cells[:, None, :] <= candidates[:, :, None]).all(axis=0)
    costs = np.where(fits, candidates.sum(axis=0)[:, None], np.inf)  # (candidates, cells), in positions

    def best_beside(chosen):
        current = costs[chosen].min(axis=0, initial=np.inf)
        totals = np.minimum(costs, current) @ counts
        best = int(totals.argmin())
        return best, totals[best]

    chosen = [len(costs) - 1]  # the longest of every side: all fit
    total = costs[-1] @ counts
    while len(chosen) < num_buckets:
        best, smaller_total = best_beside(chosen)
        if smaller_total >= total:
            break
        chosen.append(best)
        total = smaller_total
    improved = True
    while improved:
        improved = False
        for position in range(len(chosen)):
            best, smaller_total = best_beside(chosen[:position] + chosen[position + 1 :])
            if smaller_total < total:
                chosen[position], total, improved = best, smaller_total, True
    members = assign_buckets(sides.T, candidates.T[chosen])
    tight = {tuple(sides[:, members == index].max(axis=1).tolist()) for index in np.unique(members)}
    buckets = sorted(tight, key=lambda bucket: (sum(bucket), bucket))
    return buckets if lengths.ndim > 1 else [length for (length,) in buckets]


def assign_buckets(lengths, buckets):
    """The number of the smallest bucket that each sequence (or pair) fits into, -1 where none is long enough.

    Args:
        lengths: `(N,)` or `(N, 2)` int.
        buckets: `(K,)` or `(K, 2)` int.

    Returns:
        `(N,)` int array.

    Example:

    >>> assign_buckets([3, 10, 11], [4, 10]).tolist()
    [0, 1, -1]
    """
    buckets = np.asarray(buckets).reshape(len(buckets), -1)
    lengths = np.asarray(lengths).reshape(len(lengths), buckets.shape[1])
    fits = (lengths[:, None, :] <= buckets).all(axis=-1)
    costs = np.where(fits, buckets.sum(axis=-1), np.inf)
    return np.where(fits.any(axis=1), costs.argmin(axis=1), -1)


def _candidate_lengths(lengths):
    """At most `_MAX_CANDIDATE_LENGTHS` of the lengths that occur, the longest among them."""
    occurring = np.unique(lengths)
    if len(occurring) <= _MAX_CANDIDATE_LENGTHS:
        return occurring
    # Half of them where the sequences are, half spread evenly for the thin tail of long ones.
    half = _MAX_CANDIDATE_LENGTHS // 2
    frequent = np.quantile(lengths, np.linspace(0, 1, half + 1)[1:], method="higher")
    even = occurring[np.linspace(0, len(occurring) - 1, half).astype(int)]
    return np.unique(np.concatenate([frequent, even]))
