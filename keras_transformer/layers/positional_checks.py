"""What `PositionalEmbedding` refuses, as far as it is known when the layer is called."""

import keras
import numpy as np
from keras import ops

from keras_transformer.ops.cache import concrete


def check_inputs(layer, inputs, reverse):
    """Refuse inputs that are neither ids (B, T) nor vectors (B, T, D), whichever the layer expects."""
    rank = len(inputs.shape)
    vectors = reverse or layer.vocabulary_size is None
    if reverse and layer.vocabulary_size is None:
        raise ValueError("`reverse=True` needs a token table, but vocabulary_size is None.")
    if rank != (3 if vectors else 2):
        expected = "vectors of shape (batch, length, hidden_dim)" if vectors else "ids of shape (batch, length)"
        raise ValueError(f"{layer.name} expects {expected}. Received: inputs.shape={tuple(inputs.shape)}")
    if inputs.shape[1] == 0:
        raise ValueError(
            f"{layer.name} expects at least one position per row. Received: inputs.shape={tuple(inputs.shape)}"
        )
    if not vectors:
        _check_ids(layer, inputs)
    elif inputs.shape[-1] != layer.hidden_dim:
        raise ValueError(
            f"{layer.name} expects vectors of hidden_dim={layer.hidden_dim}. "
            f"Received: inputs.shape={tuple(inputs.shape)}"
        )


def _check_ids(layer, ids):
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if dtype in ("float16", "bfloat16", "bool", "string"):
        raise ValueError(
            f"{layer.name} expects integer ids, but they arrive as {dtype}, which does not hold them exactly. "
            'Declare the input: `keras.Input((None,), dtype="int32")`.'
        )
    values = concrete(ids)
    if values is None or values.size == 0:
        return
    if "float" in dtype and (values != values.round()).any():
        raise ValueError(f"{layer.name} expects integer ids. Received {values[values != values.round()][0]}.")
    for value in (values.min(), values.max()):
        if not 0 <= value < layer.vocabulary_size:
            raise ValueError(
                f"{layer.name} received the token id {int(value)}, outside vocabulary_size={layer.vocabulary_size}."
            )


def check_positions(inputs, positions, start_index):
    """Refuse a negative start, and positions that are not one per token."""
    first = start_index if isinstance(start_index, int) else concrete(start_index)
    if first is not None and (np.asarray(first) < 0).any():
        raise ValueError(f"`start_index` must not be negative. Received: start_index={start_index}")
    shape = () if positions is None else tuple(ops.shape(positions))
    rows = shape[0] if len(shape) == 2 else 1
    if (shape and isinstance(shape[-1], int) and inputs.shape[1] not in (None, shape[-1])) or (
        isinstance(rows, int) and rows != 1 and inputs.shape[0] not in (None, rows)
    ):
        raise ValueError(
            f"`positions` must have the shape of the tokens, {tuple(inputs.shape[:2])}. "
            f"Received: positions.shape={shape}"
        )


def check_end(end, limit):
    """Refuse more positions than the table of learned ones has rows; an `end` that is not known passes."""
    if isinstance(end, int) and end > limit:
        raise ValueError(
            f"The sequence reaches position {end - 1}, so it needs {end} learned positions (padding included), "
            f"but the table has max_sequence_length={limit}."
        )
