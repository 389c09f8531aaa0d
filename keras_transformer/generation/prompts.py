"""Prompts in, texts out: ragged lists and padded arrays are one and the same inside."""

import itertools

import numpy as np
from keras import ops


class Prompts:
    """Rows of token ids, whatever form they came in.

    Args:
        inputs: a list of id lists, one id list, or an int array (B, T) or (T,).
        padding_mask: boolean (B, T), True = real token, with arrays only.
        pad_token_id: without a mask, this id at either end of a row is padding; None: nothing is.
        name: what to call the argument in errors.
        may_be_empty: whether rows may have no token.

    Attributes:
        rows: list of int32 arrays, the real tokens of each row.
    """

    def __init__(self, inputs, padding_mask=None, pad_token_id=None, name="inputs", may_be_empty=False):
        self.name = name
        self.array = None
        if hasattr(inputs, "shape"):
            self.array = _int_array(_to_numpy(inputs), name)
            if self.array.ndim == 1:
                self.array = self.array[None]
            if self.array.ndim != 2:
                raise ValueError(f"`{name}` must have shape (batch, length). Received: shape={self.array.shape}")
            mask = self._mask(padding_mask, pad_token_id)
            self.given = self.array
            self.rows = [row[keep] for row, keep in zip(self.array, mask, strict=True)]
        else:
            if padding_mask is not None:
                raise ValueError(f"`padding_mask` goes with an array; `{name}` is a list, whose rows are whole.")
            if isinstance(inputs, (str, dict)) or not hasattr(inputs, "__iter__"):
                raise ValueError(f"`{name}` must be an array of token ids, or a list of them. Received: {inputs!r}")
            rows = list(inputs)
            rows = [rows] if rows and all(map(np.isscalar, rows)) else rows
            self.given = [_int_array(_as_row(row), f"{name}[{i}]") for i, row in enumerate(rows)]
            self.rows = [row[_between(row, pad_token_id)] if row.ndim == 1 else row for row in self.given]
        for i, row in enumerate(self.rows):
            if row.ndim != 1 or (row.size == 0 and not may_be_empty):
                raise ValueError(f"`{name}[{i}]` must hold at least one token id. Received: shape={row.shape}")
        if not self.rows:
            raise ValueError(f"`{name}` is empty: at least one row of token ids is needed.")

    def _mask(self, padding_mask, pad_token_id):
        if padding_mask is not None:
            mask = _to_numpy(padding_mask).astype(bool)
            mask = mask[None] if mask.ndim == 1 else mask
            if mask.shape != self.array.shape:
                raise ValueError(
                    f"`padding_mask` must have the shape of `{self.name}`, {self.array.shape}. "
                    f"Received: shape={mask.shape}"
                )
            return mask
        return _between(self.array, pad_token_id)

    def check(self, side, model="the model"):
        """Refuse ids and lengths that the model's side has no row for."""
        for i, row in enumerate(self.rows):
            if not row.size:
                continue
            low, high = int(row.min()), int(row.max())
            limit = side.vocabulary_size
            if low < 0 or (limit is not None and high >= limit):
                expected = "0 or more" if limit is None else f"between 0 and {limit - 1}"
                wrong = low if low < 0 else high
                raise ValueError(f"`{self.name}[{i}]` holds the token id {wrong}; ids must be {expected}.")
            limits = {"learned positions": side.max_sequence_length, "places in its input": side.fixed_length}
            for what, most in limits.items():
                if most is not None and len(row) > most:
                    raise ValueError(f"`{self.name}[{i}]` has {len(row)} tokens, but {model} has {most} {what}.")

    def put_behind(self, rows):
        """Let each row begin with the one of `rows`, which are whole texts."""
        self.given = [np.concatenate(pair) for pair in zip(rows, self.given, strict=True)]
        self.rows = [np.concatenate(pair) for pair in zip(rows, self.rows, strict=True)]


def _as_row(row):
    try:
        return np.asarray(row)
    except ValueError:  # NumPy's, of lists of several lengths
        return np.asarray(None)


def join_rows(rows, new_tokens, pad_token_id):
    """Each row followed by its new tokens, several results in turn, padded on the right."""
    repeats = len(new_tokens) // len(rows)
    joined = [np.concatenate([rows[i // repeats], new]) for i, new in enumerate(new_tokens)]
    return pad_rows(joined, pad_token_id)


def targets(given, num_rows, side, tokenizer, start_token_id, stop_token_ids):
    """What the targets of an encoder-decoder begin with behind the start token, as `Prompts`.

    Args:
        given: None, an array, ragged id lists, strings; or one id list or string, which is the same for all.
        num_rows: number of sources.
        side: the `Side` of the targets.
        tokenizer: for strings; a start token in front and stop tokens behind, which it may add, are left out.
    """
    if given is None or (hasattr(given, "__len__") and len(given) == 0):
        given = [[]] * num_rows
    elif not hasattr(given, "__len__"):
        raise ValueError(f"`decoder_inputs` must be token ids, or texts with `tokenizer`. Received: {given!r}")
    elif tokenizer is not None and all(isinstance(text, str) for text in given):
        rows = [bare(row, tokenizer, start_token_id, stop_token_ids) for row in tokenizer.encode(given)]
        given = rows * num_rows if isinstance(given, str) else rows
    elif np.ndim(given[0]) == 0:
        given = [given] * num_rows
    prompts = Prompts(given, None, side.masked_token_id, "decoder_inputs", may_be_empty=True)
    if len(prompts.rows) != num_rows:
        raise ValueError(
            f"`decoder_inputs` has {len(prompts.rows)} rows, but there are {num_rows} sources in `inputs`."
        )
    prompts.check(side)
    return prompts


def bare(row, tokenizer, start, stop):
    """The ids of a text without the tokens that mark its beginning and end: these ids, or the tokenizer's own."""
    starts, stops = (
        {*as_ids("token_id", marks).tolist(), own}
        for marks, own in ((start, tokenizer.start_token_id), (stop, tokenizer.stop_token_id))
    )
    row = list(row)
    while row and row[-1] in stops:
        row.pop()
    return row[1:] if row and row[0] in starts else row


def pad_rows(rows, pad_token_id, length=None):
    """Rows of different lengths as one int32 array, padded on the right."""
    length = max((len(row) for row in rows), default=0) if length is None else length
    array = np.full((len(rows), length), pad_token_id, "int32")
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array


def row_positions(row, masked_token_id=None):
    """Positions of a row's tokens, int32 (T,): 0, 1, ... from the first id that the model does not mask.

    -1 stands on masked ids that the row begins with.
    """
    return np.maximum(np.arange(len(row)) - _leading(row, masked_token_id), -1).astype("int32")


def _leading(row, token_id):
    """How often the id stands at the beginning of the row."""
    others = np.flatnonzero(np.asarray(row) != token_id) if token_id is not None else [0]
    return others[0] if len(others) else len(row)


def bucket(size, smallest):
    """The power of two that holds `size`: few shapes, few compilations."""
    while smallest < size:
        smallest *= 2
    return smallest


def _between(ids, pad_token_id):
    """True from the first to the last id that is not padding; the same id in between belongs to the text."""
    if pad_token_id is None:
        return np.ones(ids.shape, bool)
    real = ids != pad_token_id
    behind_first = np.logical_or.accumulate(real, -1)
    before_last = np.logical_or.accumulate(real[..., ::-1], -1)[..., ::-1]
    return behind_first & before_last


def _to_numpy(x):
    if isinstance(x, np.ndarray):
        return x
    return ops.convert_to_numpy(x)


def as_ids(name, ids, limit=None):
    """One id, or several, as an int32 array (N,); `limit` is the size of the vocabulary, if they must be in it."""
    array = _int_array(np.atleast_1d(np.asarray([] if ids is None else ids)), name)
    if array.ndim != 1:
        raise ValueError(f"`{name}` must be a token id or a flat list of them. Received: {name}={ids}")
    if limit is not None and array.size and not 0 <= array.min() <= array.max() < limit:
        raise ValueError(f"`{name}` must be a token id from 0 to {limit - 1}. Received: {name}={ids}")
    return array


def _int_array(x, name):
    if x.size and not np.issubdtype(x.dtype, np.integer):
        raise ValueError(f"`{name}` must hold integer token ids. Received: dtype={x.dtype}")
    largest = np.iinfo("int32").max
    if x.size and not -largest <= x.min() <= x.max() <= largest:
        raise ValueError(f"`{name}` holds the token id {max(x.min(), x.max(), key=abs)}, which no vocabulary has.")
    return x.astype("int32")


def batches_of(lengths, batch_size, of_equal_length):
    """Indices of rows of like length, the longest first; in each batch they are in the caller's order."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    groups = [list(same) for _, same in itertools.groupby(order, lengths.__getitem__)] if of_equal_length else [order]
    for group in groups:
        for begin in range(0, len(group), batch_size):
            yield sorted(group[begin : begin + batch_size])
