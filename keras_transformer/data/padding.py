"""Ragged lists of token ids as padded arrays, ids shifted to the right, and the check that ids are ids.

Letters: B rows, T length.
"""

import itertools
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.arguments import check_id, check_size


def check_in_vocabulary(ids, vocabulary_size, name="token_ids"):
    """Raise unless every id is an integer of the vocabulary.

    Compiled code cannot raise: there an id outside the table gives a row of NaN in our layers, and in others what the
    backend makes of it.

    Args:
        ids: ids in any shape: an array or tensor, a list, or ragged lists.
        vocabulary_size: int, ids must be in `[0, vocabulary_size)`.
        name: str, what the error calls the ids.

    Raises:
        ValueError: naming the first id outside and the limit; for ids that are not integers, their type.

    Example:

    >>> check_in_vocabulary([[5, 9], [3]], vocabulary_size=10)
    >>> check_in_vocabulary([[5, 10], [3]], vocabulary_size=10)
    Traceback (most recent call last):
        ...
    ValueError: `token_ids` must be in [0, 10), the vocabulary. Received the id 10.
    """
    flat = _integers(ids, name)
    outside = flat[(flat < 0) | (flat >= vocabulary_size)]
    if len(outside):
        raise ValueError(f"`{name}` must be in [0, {vocabulary_size}), the vocabulary. Received the id {outside[0]}.")


def pad_batch(ragged, pad_token_id=0, length=None, side="right"):
    """Put ragged id lists into one array.

    Args:
        ragged: list of B lists of non-negative int ids.
        pad_token_id: int, fills the rest of each row.
        length: int, T; None takes the longest row's (at least 1).
        side: `"right"` or `"left"`, where the padding goes.

    Returns:
        `(token_ids, padding_mask)`: `(B, T)` int32, and `(B, T)` bool, True where a token is, also if the token has
        the id `pad_token_id`.

    Raises:
        ValueError: if there is no row, an id is not a non-negative integer, or a row is longer than `length`.

    Example:

    >>> token_ids, padding_mask = pad_batch([[5, 6, 7], [8]], side="left")
    >>> token_ids.tolist(), padding_mask[1].tolist()
    ([[5, 6, 7], [0, 0, 8]], [False, False, True])
    """
    if side not in ("right", "left"):
        raise ValueError(f'`side` must be "right" or "left". Received: side={side!r}')
    check_id(pad_token_id=pad_token_id)
    rows = RaggedIds.from_lists(ragged, "ragged")
    if not len(rows.lengths):
        raise ValueError("`ragged` must hold at least one row. Received an empty batch.")
    longest = int(rows.lengths.max())
    length = max(1, longest) if length is None else length
    check_size(length=length)
    if longest > length:
        raise ValueError(f"`length` must be at least {longest}, the longest row's. Received: length={length}")
    return rows.pad(length, pad_token_id, side)


def shift_right(labels, start_token_id, pad_token_id=0, ignore_id=-100):
    """The decoder's input for teacher forcing: a start token in front, the last label gone.

    Args:
        labels: `(B, T)` or `(T,)` int ids.
        start_token_id: int, the first token of every row.
        pad_token_id: int, stands where `labels` has `ignore_id`.
        ignore_id: int, marks labels that count for nothing.

    Returns:
        int32 array of the shape of `labels`.

    Raises:
        ValueError: if `labels` are not integers or another negative id occurs.

    Example:

    >>> shift_right([[0, 8, 2, -100, -100, -100]], start_token_id=2, pad_token_id=1).tolist()
    [[2, 0, 8, 2, 1, 1]]
    """
    check_id(start_token_id=start_token_id, pad_token_id=pad_token_id)
    try:
        shape = np.shape(labels)
    except ValueError as error:
        raise ValueError("`labels` must have rows of one length; `pad_batch` makes them so.") from error
    labels = _integers(labels, "labels").reshape(shape)
    labels = np.where(labels == ignore_id, pad_token_id, labels)
    if (labels < 0).any():
        raise ValueError(
            f"`labels` must not be negative, except for `ignore_id`={ignore_id}. Received the id {labels.min()}."
        )
    if (labels >= 2**31).any():
        raise ValueError(f"`labels` must be below 2**31. Received the id {labels.max()}.")
    shifted = np.empty(shape, "int32")
    shifted[..., :1] = start_token_id
    shifted[..., 1:] = labels[..., :-1]
    return shifted


class RaggedIds(NamedTuple):
    """B sequences of ids end to end in `flat`, with their `lengths` (B,)."""

    flat: np.ndarray
    lengths: np.ndarray

    @classmethod
    def from_lists(cls, ragged, name):
        """Take over a list of id lists (or a 2D array); `name` is what errors call it."""
        rows = list(ragged)
        if any(np.ndim(row) == 0 for row in rows[:1]):
            raise ValueError(f"`{name}` must be a list of id lists. Received a list of {type(rows[0]).__name__}.")
        flat = _integers(rows, name)
        lengths = np.fromiter(map(len, rows), "int64", len(rows))
        if len(flat) != lengths.sum():
            raise ValueError(f"`{name}` must be a list of flat id lists. Received nested lists.")
        if len(flat) and not 0 <= flat.min() <= flat.max() < 2**31:
            wrong = flat.min() if flat.min() < 0 else flat.max()
            raise ValueError(f"`{name}` must hold ids in [0, 2**31). Received the id {wrong}.")
        return cls(flat.astype("int32"), lengths)

    def insert(self, token_id, at_end=False):
        """The same sequences, each with one more id in front or at the end."""
        ends = np.cumsum(self.lengths)
        return RaggedIds(np.insert(self.flat, ends if at_end else ends - self.lengths, token_id), self.lengths + 1)

    def take(self, rows, lengths):
        """Some of the sequences, each cut to its first `lengths` ids."""
        starts = (np.cumsum(self.lengths) - self.lengths)[rows]
        offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return RaggedIds(self.flat[np.repeat(starts, lengths) + offsets], lengths)

    def pad(self, length, pad_token_id, side="right"):
        """`(B, length)` int32 ids, and where they are tokens."""
        mask = np.arange(length) < self.lengths[:, None]
        mask = mask if side == "right" else mask[:, ::-1]
        ids = np.full(mask.shape, pad_token_id, "int32")
        ids[mask] = self.flat
        return ids, mask


def _integers(ids, name):
    """All ids in one flat integer array; anything but integers is refused, never rounded."""
    if hasattr(ids, "dtype"):
        flat = ids if isinstance(ids, np.ndarray) else keras.ops.convert_to_numpy(ids)
    else:
        try:
            rows = list(ids)
            flat = np.asarray(rows if not rows or np.ndim(rows[0]) == 0 else list(itertools.chain.from_iterable(rows)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"`{name}` must hold integer ids in flat lists. {error}") from error
    if flat.ndim > 1 and not hasattr(ids, "dtype"):
        raise ValueError(f"`{name}` must hold integer ids in flat lists. Received nested lists.")
    if flat.size and not np.issubdtype(flat.dtype, np.integer):
        raise ValueError(f"`{name}` must hold integer ids. Received: dtype={flat.dtype}")
    return flat.astype("int64").ravel()
