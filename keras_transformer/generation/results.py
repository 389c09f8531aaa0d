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
    results = []
    for i, row in enumerate(tokens):
        ends = np.flatnonzero(np.isin(row, stop_token_ids)) + 1
        ends = [*ends[:1], *np.flatnonzero(banned[i])[:1]] if banned is not None else ends[:1]
        end = min(ends, default=len(row))
        told = {"log_probs": log_probs, "drafted": drafted}
        whole = Result(row, **{name: x[i] for name, x in told.items() if x is not None})
        results.append(whole.shortened(end))
    return results


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
