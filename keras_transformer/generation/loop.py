"""The decoding loop: prompts, then one token after another until every row has ended.

Letters: B batch, V vocabulary, C tokens per chunk.

Prompts are read by one compiled function, and the loop runs inside another per cache size. A chunk ends when the cache
is full; the cache is then doubled, so that a short text never pays for a long one and a long one compiles a handful of
shapes. All that changes from call to call (limits, stop ids, weights) is an argument.
"""

import numpy as np
from keras import ops

from keras_transformer.generation.broken import note_broken, note_processed, refuse_broken
from keras_transformer.generation.compile import compile_function
from keras_transformer.generation.constraints import Constraint
from keras_transformer.generation.loop_base import LoopBase, as_tensor, once_read, repeat_all
from keras_transformer.generation.processors import Text
from keras_transformer.generation.prompts import bucket, pad_rows
from keras_transformer.generation.sampling import most_probable, sample
from keras_transformer.ops.rows import at

SMALLEST_STOP_LIST = 4


class Loop(LoopBase):
    """Writes one token after another into every row: the most probable, or one that is drawn."""

    tokens_fed_at_start = 0  # beside the prompt

    def __init__(self, decoder, model, source, target):
        super().__init__(decoder, model, source, target)
        self._first = compile_function(self._first_tokens, model)
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
        loop, first = self._start(batch, as_tensor(done), told, noise.draw(1, 1), length=length, **static)
        refuse_broken(loop)
        used = self._slots_taken(rows, request.before) + self.tokens_fed_at_start
        yield _as_numpy(first, 1, num_results)
        remaining, chunk = request.max_new_tokens - 1, 1 if grows else largest_chunk
        while remaining > 0 and not (done := ops.convert_to_numpy(loop["done"])).all():
            if used == length:
                length = self._room(2 * length)
                loop = self._extend(loop, length)
            if constraint.is_given:
                told |= constraint.after(loop["text"], ~done)
            if used >= length:
                raise RuntimeError(f"There is no room behind {used} tokens, which should have been refused before.")
            limit = min(remaining, length - used, chunk or remaining)
            chunk = min(2 * chunk, largest_chunk) if grows else chunk
            loop, written, count = self._chunk(
                loop, told, as_tensor(np.int32(limit)), noise.draw(limit, length), size=length, rule=request.rule
            )
            refuse_broken(loop)
            count = int(ops.convert_to_numpy(count))
            yield _as_numpy(written, count, num_results)
            used, remaining = used + count, remaining - count

    @staticmethod
    def _told(request, **more):
        """What a compiled loop is told at each call, as tensors."""
        stop = pad_rows([request.stop_token_ids], -1, bucket(len(request.stop_token_ids), SMALLEST_STOP_LIST))[0]
        return {name: as_tensor(value) for name, value in {**request.parameters, "stop": stop, **more}.items()}

    def _start(self, batch, done, told, noise, length, rule, repeats, spare=0):
        """Read the prompts and choose the first token behind each."""
        logits, state = self._read(batch, length=length, spare=spare)
        static = {"rule": rule, "repeats": repeats, "length": length}
        loop, written = self._first(once_read(batch), logits, done, told, noise, **static)
        return {**loop, "state": self._repeated(state, repeats)}, written

    def _first_tokens(self, batch, logits, done, told, noise, rule, repeats, length):
        loop = {"position": batch["next_position"], "done": done}
        if rule.reads_text:
            loop["text"] = self._text(batch, rule, logits.shape[-1], length)
        if repeats > 1:
            loop, logits = repeat_all((loop, logits), repeats)
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
        is_open = ops.logical_not(loop["done"])
        loop = note_processed(note_broken(loop, logits, is_open), allowed, is_open, rule)
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
            written["log_probs"] = at(log_probs, token)
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
        return as_tensor(noise)


def _as_numpy(written, count, num_results):
    return {name: ops.convert_to_numpy(x)[:num_results, :count] for name, x in written.items()}
