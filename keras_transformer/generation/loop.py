"""The decoding loop: prompts, then one token after another until every row has ended.

Letters: B batch, V vocabulary, C tokens per chunk.

The loop runs inside one compiled function per cache size. A chunk ends when the cache is full; the cache is then
doubled, so that a short text never pays for a long one and a long one compiles a handful of shapes. All that changes
from call to call (limits, stop ids, weights) is an argument.
"""

import keras
import numpy as np
from keras import ops

from keras_transformer.generation.compile import compile_function
from keras_transformer.generation.decoders import FullForward
from keras_transformer.generation.prompts import bucket, pad_rows, row_positions

SMALLEST_CACHE = 64
SMALLEST_PROMPT = 16
SMALLEST_SOURCE = 16
SMALLEST_STOP_LIST = 4


class Loop:
    """The compiled functions of one model and one way to step it.

    Args:
        decoder: a `CachedDecoder`, `CachedEncoderDecoder` or `FullForward`.
        model: the model whose weights are passed along.
        source, target: the `Side`s of the model.
        fixed_length: length of a fixed-length `Input`, which then is the size of every buffer.
    """

    def __init__(self, decoder, model, source, target, fixed_length=None):
        self.decoder = decoder
        self.source, self.target = source, target
        self.fixed_length = fixed_length
        # Only a Keras model can be traced; any other callable may work on NumPy inside.
        self._while_loop = ops.while_loop if isinstance(model, keras.layers.Layer) else _while_loop
        self._start = compile_function(self._start_function, model)
        self._chunk = compile_function(self._chunk_function, model, donate=(0,))

    def run(self, rows, source_rows, max_new_tokens, stop_token_ids):
        """New tokens of each row, a list of int32 arrays; each ends with its stop token if it met one."""
        num_rows = len(rows)
        if max_new_tokens == 0:
            return [np.zeros(0, "int32") for _ in rows]
        batch_size = bucket(num_rows, 1)
        batch, length = self._batch(rows, source_rows, batch_size)
        stop = pad_rows([stop_token_ids], -1, bucket(len(stop_token_ids), SMALLEST_STOP_LIST))[0]
        done = np.arange(batch_size) >= num_rows  # rows that only fill up the batch
        loop = self._start(batch, _tensor(done), _tensor(stop), length=length)
        used = self.decoder.slots_taken(batch["token_ids"].shape[1], max(len(row) for row in rows))
        chunks = [ops.convert_to_numpy(loop["token"])[:, None]]
        remaining = max_new_tokens - 1
        while remaining > 0 and not ops.convert_to_numpy(loop["done"]).all():
            if used == length:
                length = self._room(2 * length)
                loop["state"] = self.decoder.extend(loop["state"], length)
            limit = min(remaining, length - used)
            loop, tokens, count = self._chunk(loop, _tensor(stop), _tensor(np.int32(limit)), size=length)
            count = int(ops.convert_to_numpy(count))
            chunks.append(ops.convert_to_numpy(tokens)[:, :count])
            used, remaining = used + count, remaining - count
        return _cut(np.concatenate(chunks, axis=1)[:num_rows], stop_token_ids)

    def _room(self, length):
        """A buffer's size: padding takes slots of a cache, but no positions; in a full forward it takes both."""
        if isinstance(self.decoder, FullForward):
            return self.fixed_length or min(length, self.target.max_sequence_length or length)
        return length

    def _batch(self, rows, source_rows, batch_size):
        """The tensors of a batch, in shapes of which there are few, and the size of its first cache."""

        def filled(some):
            return [*some, *[some[0]] * (batch_size - len(some))]

        rows = filled(rows)
        longest = max(len(row) for row in rows)
        prompt_length = self._room(bucket(longest, SMALLEST_PROMPT if source_rows is None else 1))
        # What stands on padding is an id that the model has; the ones that it masks, where there are such.
        batch = {
            "token_ids": pad_rows(rows, self.target.masked_token_id or 0, prompt_length),
            "positions": row_positions(rows, prompt_length, self.target.masked_token_id),
            "last": np.asarray([len(row) - 1 for row in rows], "int32"),
        }
        if source_rows is not None:
            source_rows = filled(source_rows)
            source_length = longest = max(len(row) for row in source_rows)
            if self.decoder.pads_source:
                source_length = bucket(longest, SMALLEST_SOURCE)
                source_length = max(longest, min(source_length, self.source.max_sequence_length or source_length))
            batch["source_ids"] = pad_rows(source_rows, self.source.masked_token_id or 0, source_length)
            batch["source_positions"] = row_positions(source_rows, source_length, self.source.masked_token_id)
        length = self._room(bucket(prompt_length + 1, SMALLEST_CACHE))
        return {name: _tensor(value) for name, value in batch.items()}, max(length, prompt_length)

    def _start_function(self, batch, done, stop, length):
        logits, state = self.decoder.start(batch, length)
        token = _greedy(logits)
        done = ops.logical_or(done, _is_stop(token, stop))
        position = ops.max(batch["positions"], axis=1) + 1
        return {"state": state, "token": token, "position": position, "done": done}

    def _chunk_function(self, loop, stop, limit, size):
        batch_size = loop["token"].shape[0]
        tokens = ops.zeros((batch_size, size), "int32")

        def proceed(count, loop, tokens):
            return ops.logical_and(count < limit, ops.logical_not(ops.all(loop["done"])))

        def body(count, loop, tokens):
            position = self._position(loop)
            logits, state = self.decoder.step(loop["state"], loop["token"], position)
            token = _greedy(logits)
            tokens = ops.slice_update(tokens, (0, count), ops.expand_dims(token, -1))
            done = ops.logical_or(loop["done"], _is_stop(token, stop))
            loop = {"state": state, "token": token, "position": position + 1, "done": done}
            return count + 1, loop, tokens

        count = ops.zeros((), "int32")
        count, loop, tokens = self._while_loop(proceed, body, (count, loop, tokens))
        return loop, tokens, count

    def _position(self, loop):
        """Positions (B,) of the tokens to feed: a row counts from its first token that the model does not mask."""
        masked = self.target.masked_token_id
        if masked is None:
            return loop["position"]
        is_before_text = ops.logical_and(ops.equal(loop["position"], 0), ops.equal(loop["token"], masked))
        return loop["position"] - ops.cast(is_before_text, "int32")


def _while_loop(proceed, body, values):
    """`ops.while_loop` in plain Python."""
    while proceed(*values):
        values = body(*values)
    return values


def _greedy(logits):
    return ops.cast(ops.argmax(logits, axis=-1), "int32")


def _is_stop(token, stop):
    return ops.any(ops.equal(ops.expand_dims(token, -1), stop), axis=-1)


def _cut(tokens, stop_token_ids):
    """Cut each row behind its first stop token."""
    rows = []
    for row in tokens:
        ends = np.flatnonzero(np.isin(row, stop_token_ids))
        rows.append(row[: ends[0] + 1] if ends.size else row)
    return rows


def _tensor(x):
    return ops.convert_to_tensor(x)
