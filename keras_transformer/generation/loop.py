"""The decoding loop: prompts, then one token after another until every row has ended.

Letters: B batch, V vocabulary, C tokens per chunk.

The loop runs inside one compiled function per cache size. A chunk ends when the cache is full; the cache is then
doubled, so that a short text never pays for a long one and a long one compiles a handful of shapes. All that changes
from call to call (limits, stop ids, weights) is an argument.
"""

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.generation.compile import can_compile, compile_function
from keras_transformer.generation.constraints import Constraint
from keras_transformer.generation.decoders import FullForward
from keras_transformer.generation.processors import Text, count_tokens
from keras_transformer.generation.prompts import bucket, pad_rows, row_positions
from keras_transformer.generation.sampling import most_probable, sample

SMALLEST_CACHE = 64
SMALLEST_PROMPT = 16
SMALLEST_SOURCE = 16
SMALLEST_STOP_LIST = 4


class LoopBase:
    """What every way to write texts with one model and one decoder shares.

    Args:
        decoder: a `CachedDecoder`, `CachedEncoderDecoder` or `FullForward`.
        model: the model whose weights are passed along, or a tuple of several.
        source, target: the `Side`s of the model; a fixed length of theirs is the size of every buffer.
    """

    def __init__(self, decoder, model, source, target):
        self.decoder = decoder
        self.source, self.target = source, target
        # Only a Keras model can be traced; any other callable may work on NumPy inside.
        self._while_loop = ops.while_loop if can_compile(model) else _while_loop

    @property
    def pads_source(self):
        """Whether sources of different lengths may share a batch."""
        return self.decoder.pads_source

    def _extend(self, loop, length):
        """The same loop with room for `length` tokens."""
        loop = {**loop, "state": self.decoder.extend(loop["state"], length)}
        if "text" in loop:
            loop["text"] = {**loop["text"], "token_ids": _pad_columns(loop["text"]["token_ids"], length + 1)}
        return loop

    def _room(self, length):
        """A buffer's size: padding takes slots of a cache, but no positions; in a full forward it takes both."""
        if isinstance(self.decoder, FullForward):
            length = self.target.fixed_length or min(length, self.target.max_sequence_length or length)
            return self.decoder.longest(length)
        return length

    def _batch(self, rows, source_rows, batch_size, before=None):
        """The tensors of a batch, in shapes of which there are few, and the size of its first cache.

        Of rows whose beginnings were kept, `before`, only the rest is read.
        """

        def filled(some):
            return [*some, *[some[0]] * (batch_size - len(some))]

        whole, begins = filled(rows), filled(_begins(rows, before))
        rest, longest = _from(begins, whole), self._longest_rest(rows, before)
        prompt_length = self._room(bucket(longest, SMALLEST_PROMPT if source_rows is None else 1)) if longest else 0
        positions = [row_positions(row, self.target.masked_token_id) for row in whole]
        # What stands on padding is an id that the model has; the ones that it masks, where there are such.
        batch = {
            "token_ids": pad_rows(rest, self.target.masked_token_id or 0, prompt_length),
            "positions": pad_rows(_from(begins, positions), -1, prompt_length),
            "last": np.asarray([len(row) - 1 for row in rest], "int32"),
            "next_position": np.asarray([row[-1] + 1 for row in positions], "int32"),
        }
        used = prompt_length
        if before is not None:
            rows_kept = np.asarray(filled(before.index), "int32")
            batch["before"] = {"state": before.kept.state, "logits": before.kept.logits, "rows": rows_kept}
            batch["text_ids"] = pad_rows(whole, 0, bucket(max(map(len, whole)), SMALLEST_PROMPT))
            batch["text_lengths"] = np.asarray([len(row) for row in whole], "int32")
            used += before.kept.used
        elif source_rows is not None:
            batch |= self._sources(filled(source_rows))
        return keras.tree.map_structure(_tensor, batch), max(self._room(bucket(used + 1, SMALLEST_CACHE)), used)

    def _sources(self, rows):
        length = longest = max(map(len, rows))
        if self.source.fixed_length is not None:
            length = self.source.fixed_length
        elif self.decoder.pads_source:
            length = bucket(longest, SMALLEST_SOURCE)
            length = max(longest, min(length, self.source.max_sequence_length or length))
        positions = [row_positions(row, self.source.masked_token_id) for row in rows]
        token_ids = pad_rows(rows, self.source.masked_token_id or 0, length)
        return {"source_ids": token_ids, "source_positions": pad_rows(positions, -1, length)}

    def _slots_taken(self, rows, before):
        """Slots, or columns, in use after the prompt."""
        return self._longest_rest(rows, before) + (0 if before is None else before.kept.used)

    @staticmethod
    def _longest_rest(rows, before):
        return max(map(len, _from(_begins(rows, before), rows)))

    def _text(self, batch, rule, vocabulary_size, length):
        token_ids, lengths = batch["token_ids"], batch["last"] + 1
        if "before" in batch:
            token_ids, lengths = batch["text_ids"], batch["text_lengths"]
        # One more than the cache holds: the last token of a text is not fed yet.
        token_ids = _pad_columns(token_ids, length + 1)
        text = {"token_ids": token_ids, "lengths": lengths, "num_new": ops.zeros((lengths.shape[0], 1), "int32")}
        if rule.counts_tokens:
            is_token = ops.arange(token_ids.shape[1], dtype="int32") < ops.expand_dims(lengths, -1)
            text["counts"] = count_tokens(token_ids, is_token, vocabulary_size)
        return text

    def _position(self, loop):
        """Positions (B,) of the tokens to feed."""
        return self._positions(loop["position"], ops.expand_dims(loop["token"], -1))[:, 0]

    def _positions(self, position, tokens):
        """Positions of tokens (B, T) to feed, of which the first comes at `position` (B,).

        A row counts from its first token that the model does not mask.
        """
        positions = ops.expand_dims(position, -1) + ops.arange(tokens.shape[1], dtype="int32")
        if self.target.masked_token_id is None:
            return positions
        is_masked = ops.cast(ops.equal(tokens, self.target.masked_token_id), "int32")
        is_before_text = ops.cumprod(is_masked, axis=1) * ops.cast(ops.equal(positions[:, :1], 0), "int32")
        return positions - ops.cumsum(is_before_text, axis=1)


def _begins(rows, before):
    """How many tokens of each row were kept."""
    return [0] * len(rows) if before is None else before.lengths


def _from(begins, rows):
    return [row[begin:] for row, begin in zip(rows, begins, strict=True)]


def _while_loop(proceed, body, values):
    """`ops.while_loop` in plain Python."""
    while proceed(*values):
        values = body(*values)
    return values


class Loop(LoopBase):
    """Writes one token after another into every row: the most probable, or one that is drawn."""

    tokens_fed_at_start = 0  # beside the prompt

    def __init__(self, decoder, model, source, target):
        super().__init__(decoder, model, source, target)
        self._start = compile_function(self._start_function, model)
        self._chunk = compile_function(self._chunk_function, model, donate=(0,))

    def stream(self, rows, source_rows, request, largest_chunk=None, grows=False):
        """What is new of all rows, as it comes: dicts of arrays (rows * repeats, tokens of this chunk).

        A chunk ends where the cache is full, and after `largest_chunk` tokens; if it `grows`, after 1, 2, 4, ... first.
        """
        num_results = len(rows) * request.repeats
        batch_size = bucket(len(rows), 1)
        batch, length = self._batch(rows, source_rows, batch_size, request.before)
        told = self._told(request)
        constraint = Constraint(request.prefix_allowed_tokens_fn, request.repeats, self.target.vocabulary_size)
        told |= constraint.first(rows, batch_size)
        if constraint.is_given:  # it is asked after every token
            largest_chunk, grows = 1, False
        noise = Noise(request, batch_size)
        done = np.arange(batch_size) >= len(rows)  # rows that only fill up the batch
        static = {"rule": request.rule, "repeats": request.repeats}
        loop, first = self._start(batch, _tensor(done), told, noise.draw(1, 1), length=length, **static)
        used = self._slots_taken(rows, request.before) + self.tokens_fed_at_start
        yield _as_numpy(first, 1, num_results)
        remaining, chunk = request.max_new_tokens - 1, 1 if grows else largest_chunk
        while remaining > 0 and not (done := ops.convert_to_numpy(loop["done"])).all():
            if used == length:
                length = self._room(2 * length)
                loop = self._extend(loop, length)
            if constraint.is_given:
                told |= constraint.after(loop["text"], ~done)
            limit = min(remaining, length - used, chunk or remaining)
            chunk = min(2 * chunk, largest_chunk) if grows else chunk
            loop, written, count = self._chunk(
                loop, told, _tensor(np.int32(limit)), noise.draw(limit, length), size=length, rule=request.rule
            )
            count = int(ops.convert_to_numpy(count))
            yield _as_numpy(written, count, num_results)
            used, remaining = used + count, remaining - count

    @staticmethod
    def _told(request, **more):
        """What a compiled loop is told at each call, as tensors."""
        stop = pad_rows([request.stop_token_ids], -1, bucket(len(request.stop_token_ids), SMALLEST_STOP_LIST))[0]
        return {name: _tensor(value) for name, value in {**request.parameters, "stop": stop, **more}.items()}

    def _start_function(self, batch, done, told, noise, rule, repeats, length, spare=0):
        logits, state = self.decoder.start(batch, length, spare)
        loop = {"state": state, "position": batch["next_position"], "done": done}
        if rule.reads_text:
            loop["text"] = self._text(batch, rule, logits.shape[-1], length)
        if repeats > 1:
            loop, logits = repeat_rows((loop, logits), repeats)
        loop, written = self._choose(loop, logits, told, noise[:, 0], rule)
        return loop, {name: ops.expand_dims(x, -1) for name, x in written.items()}

    def _choose(self, loop, logits, told, noise, rule):
        """The loop with its next token, and what is told of it: dict of (B,)."""
        logits = ops.cast(logits, "float32")
        allowed = logits
        if rule.reads_text:
            allowed = rule.process(logits, Text(**loop["text"]), told, told["stop"])
        if rule.sampler == "sample":
            token = sample(allowed, noise, rule.filters, told)
        else:
            token = most_probable(allowed)
        return self._tell(loop, token, logits, allowed, told, rule)

    @staticmethod
    def _tell(loop, token, logits, allowed, told, rule):
        """The loop with the token chosen from the allowed ones, and what is told of it."""
        written = {"tokens": token}
        done = ops.logical_or(loop["done"], is_stop(token, told["stop"]))
        if rule.reads_text:  # only then can all be banned
            nothing = ops.logical_not(ops.any(allowed > float("-inf"), axis=-1))
            token = ops.where(nothing, 0, token)  # any id will do: the row is cut before it
            done = ops.logical_or(done, nothing)
            written |= {"tokens": token, "banned": nothing}
            loop = {**loop, "text": Text(**loop["text"]).append(token).tensors()}
        if rule.with_log_probs:
            log_probs = ops.log_softmax(logits, axis=-1)
            written["log_probs"] = ops.take_along_axis(log_probs, ops.expand_dims(token, -1), axis=-1)[:, 0]
        return {**loop, "token": token, "done": done}, written

    def _chunk_function(self, loop, told, limit, noise, size, rule):
        batch_size = loop["token"].shape[0]
        written = self._nothing_written(batch_size, size, rule)

        def proceed(count, loop, written):
            return ops.logical_and(count < limit, ops.logical_not(ops.all(loop["done"])))

        def body(count, loop, written):
            now = ops.slice(noise, (0, count), (batch_size, 1))[:, 0] if rule.sampler == "sample" else None
            loop, new = self._next(loop, told, now, rule)
            written = {
                name: ops.slice_update(x, (0, count), ops.expand_dims(new[name], -1)) for name, x in written.items()
            }
            return count + 1, loop, written

        count = ops.zeros((), "int32")
        count, loop, written = self._while_loop(proceed, body, (count, loop, written))
        return loop, written, count

    def _next(self, loop, told, noise, rule):
        """Feed the last token and choose another."""
        position = self._position(loop)
        logits, state = self.decoder.step(loop["state"], loop["token"], position)
        return self._choose({**loop, "state": state, "position": position + 1}, logits, told, noise, rule)

    @staticmethod
    def _nothing_written(batch_size, size, rule):
        """Buffers (B, size) for what is told of the tokens of a chunk."""
        dtypes = {"tokens": "int32"}
        dtypes |= {"banned": "bool"} if rule.reads_text else {}
        dtypes |= {"log_probs": "float32"} if rule.with_log_probs else {}
        return {name: ops.zeros((batch_size, size), dtype) for name, dtype in dtypes.items()}


def is_stop(token, stop):
    """Whether tokens (B,), or of any shape, are among the stop ids, of which -1 is none."""
    return ops.any(ops.equal(ops.expand_dims(token, -1), stop), axis=-1)


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


class Noise:
    """Uniform numbers for every result and token, the same however the text is cut into chunks and batches."""

    def __init__(self, request, batch_size):
        self.is_needed = request.rule.sampler == "sample"
        seeds = [(seed, i) for seed in request.seeds for i in range(request.repeats)] if self.is_needed else []
        self.generators = [np.random.default_rng(seed) for seed in seeds]
        self.num_results = batch_size * request.repeats

    def draw(self, count, room):
        """A tensor (results, room) with `count` new columns."""
        noise = np.zeros((self.num_results, room if self.is_needed else 1), "float32")
        for i, generator in enumerate(self.generators):
            noise[i, :count] = generator.random(count, "float32")
        return _tensor(noise)


def _pad_columns(x, length):
    return ops.pad(x, [(0, 0), (0, length - x.shape[1])])


def repeat_rows(tree, repeats):
    """Every row of every tensor `repeats` times in turn; scalars stay."""
    return keras.tree.map_structure(lambda x: ops.repeat(x, repeats, axis=0) if len(x.shape) else x, tree)


def _as_numpy(written, count, num_results):
    return {name: ops.convert_to_numpy(x)[:num_results, :count] for name, x in written.items()}


def _tensor(x):
    return ops.convert_to_tensor(x)
