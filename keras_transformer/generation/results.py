"""What came out of a loop, row by row."""

from typing import NamedTuple

import numpy as np


def join(parts, stop_token_ids):
    """The results of all rows from the parts of a stream."""
    rows = {name: zip(*(part[name] for part in parts), strict=True) for name in parts[0]}
    whole = {name: [np.concatenate(pieces) for pieces in of_rows] for name, of_rows in rows.items()}
    return cut(stop_token_ids=stop_token_ids, **whole)


def cut(tokens, stop_token_ids, log_probs=None, banned=None, drafted=None):
    """The results of all rows: each cut behind its first stop token, or before the place where all was banned."""
    sizes = np.array([len(row) for row in tokens])
    ends = np.minimum(_first(np.isin(np.concatenate(tokens), stop_token_ids), sizes) + 1, sizes)
    if banned is not None:
        ends = np.minimum(ends, _first(np.concatenate(banned), sizes))
    told = {"tokens": tokens, "log_probs": log_probs, "drafted": drafted}
    told = {name: x for name, x in told.items() if x is not None}
    return [Result(**{name: x[i][:end] for name, x in told.items()}) for i, end in enumerate(ends.tolist())]


def _first(flags, sizes):
    """Of rows that stand one behind the other in `flags`, the index of each one's first flag; its size if it has none.

    All rows at once: there may be thousands of samples.
    """
    begins = np.cumsum(sizes) - sizes
    found = np.append(np.flatnonzero(flags), len(flags))
    return np.minimum(found[np.searchsorted(found, begins)] - begins, sizes)


class Result(NamedTuple):
    """New tokens, int32 (T,), and what is told of them, None where it is not.

    log_probs: their log-probabilities, float32 (T,).
    score: of a beam.
    drafted: which of them were drafted and accepted, bool (T,).
    """

    tokens: np.ndarray
    log_probs: np.ndarray | None = None
    score: float | None = None
    drafted: np.ndarray | None = None

    def shortened(self, length):
        """The first `length` tokens, with what is told of them."""
        told = {"log_probs": self.log_probs, "drafted": self.drafted}
        told = {name: x[:length] for name, x in told.items() if x is not None}
        return self._replace(tokens=self.tokens[:length], **told)
