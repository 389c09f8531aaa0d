"""Beam search: the K most probable beginnings of a text, extended together.

Letters: B prompts, K beams of each, V vocabulary, L room for new tokens, C candidates for the next beams. The beams of
a prompt lie next to each other in the rows of all that the decoder keeps: (B * K, ...).

The score of a finished text is the sum of the log-probabilities of its new tokens, the stop token included, divided by
their number to the power of `length_penalty`: the definition of `transformers`, whose `early_stopping` has the same
three values.

Source: length normalisation: Wu et al. 2016 (https://arxiv.org/abs/1609.08144), without its constant.
"""

import numpy as np
from keras import ops

from keras_transformer.generation.compile import compile_function
from keras_transformer.generation.loop import LoopBase, Result, is_stop, repeat_rows
from keras_transformer.generation.processors import Text
from keras_transformer.generation.prompts import bucket, pad_rows

IMPOSSIBLE = -1e9  # finite, so that sums and quotients of it are; far below any sum of log-probabilities


class BeamLoop(LoopBase):
    """Writes `num_beams` texts for each prompt; each step moves the beams, and with them the rows of the cache."""

    def __init__(self, decoder, model, source, target):
        super().__init__(decoder, model, source, target)
        self._start = compile_function(self._start_beams, model)
        self._chunk = compile_function(self._chunk_of_beams, model, donate=(0,))

    def run(self, rows, source_rows, request):
        """The best `request.repeats` results of each row in turn, the best first."""
        batch_size = bucket(len(rows), 1)
        batch, length = self._batch(rows, source_rows, batch_size, request.before)
        stop = pad_rows([request.stop_token_ids], -1, bucket(len(request.stop_token_ids), 1))[0]
        told = {**request.parameters, "stop": stop, "max_new_tokens": np.int32(request.max_new_tokens)}
        told = {name: ops.convert_to_tensor(value) for name, value in told.items()}
        is_open = ops.convert_to_tensor(np.arange(batch_size) < len(rows))  # the others only fill up the batch
        static = {"rule": request.rule, "beams": request.beams}
        room = bucket(request.max_new_tokens, 16)
        loop = self._start(batch, is_open, told, length=length, room=room, **static)
        used = self._slots_taken(rows, request.before)
        remaining = request.max_new_tokens - 1
        while remaining > 0 and ops.convert_to_numpy(loop["is_open"]).any():
            if used == length:
                length = self._room(2 * length)
                loop = self._extend(loop, length)
            limit = min(remaining, length - used)
            loop, count = self._chunk(loop, told, ops.convert_to_tensor(np.int32(limit)), **static)
            count = int(ops.convert_to_numpy(count))
            used, remaining = used + count, remaining - count
        finished = {name: ops.convert_to_numpy(x) for name, x in loop["finished"].items()}
        return [self._result(finished, i, k) for i in range(len(rows)) for k in range(request.repeats)]

    @staticmethod
    def _result(finished, row, beam):
        score = float(finished["scores"][row, beam])
        if score <= IMPOSSIBLE / 2:  # there are fewer texts than were asked for
            return Result(np.zeros(0, "int32"), None, float("-inf"))
        return Result(finished["tokens"][row, beam, : finished["lengths"][row, beam]], None, score)

    def _start_beams(self, batch, is_open, told, rule, beams, length, room):
        num_beams, _ = beams
        logits, state = self.decoder.start(batch, length)
        loop = {"state": state, "position": batch["next_position"]}
        if rule.reads_text:
            loop["text"] = self._text(batch, rule, logits.shape[-1], length)
        loop, logits = repeat_rows((loop, logits), num_beams)
        shape = batch["last"].shape[0], num_beams
        none = ops.full(shape, IMPOSSIBLE, "float32")
        # All beams of a prompt begin alike, so only the first one counts in the first step.
        sums = ops.where(ops.arange(num_beams) == 0, ops.zeros(shape, "float32"), none)
        texts = ops.zeros((*shape, room), "int32")
        loop["running"] = {"tokens": texts, "sums": sums}
        loop["finished"] = {"tokens": texts, "scores": none, "lengths": ops.zeros(shape, "int32")}
        loop["num_new"], loop["is_open"] = ops.zeros((), "int32"), is_open
        return self._advance(loop, logits, told, rule, beams)

    def _chunk_of_beams(self, loop, told, limit, rule, beams):
        def proceed(count, loop):
            return ops.logical_and(count < limit, ops.any(loop["is_open"]))

        def body(count, loop):
            position = self._position(loop)
            logits, state = self.decoder.step(loop["state"], loop["token"], position)
            loop = {**loop, "state": state, "position": position + 1}
            return count + 1, self._advance(loop, logits, told, rule, beams)

        count, loop = self._while_loop(proceed, body, (ops.zeros((), "int32"), loop))
        return loop, count

    def _advance(self, loop, logits, told, rule, beams):
        """One more token for every beam."""
        num_beams, early_stopping = beams
        log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
        if rule.reads_text:
            log_probs = rule.process(log_probs, Text(**loop["text"]), told, told["stop"])
        running, finished, num_new = loop["running"], loop["finished"], loop["num_new"] + 1
        candidates = _candidates(running, log_probs, told["stop"].shape[0])
        # At the last step every text is finished, as it is.
        ends = ops.logical_or(is_stop(candidates["token"], told["stop"]), num_new >= told["max_new_tokens"])
        penalty = told["length_penalty"]

        # Only those among the best K may finish: the others are there to go on in their place.
        may_finish = ops.logical_and(ends, ops.arange(ends.shape[1]) < num_beams)
        may_finish = ops.logical_and(may_finish, candidates["sums"] > IMPOSSIBLE / 2)
        may_finish = ops.logical_and(may_finish, ops.expand_dims(loop["is_open"], -1))
        texts = _write(_take(running["tokens"], candidates["parent"]), candidates["token"], loop["num_new"])
        lengths = ops.broadcast_to(num_new, may_finish.shape)
        scores = ops.where(may_finish, candidates["sums"] / _power(num_new, penalty), IMPOSSIBLE)
        new = {"tokens": texts, "scores": scores, "lengths": lengths}
        merged = {name: ops.concatenate([finished[name], new[name]], axis=1) for name in finished}
        _, best = ops.top_k(merged["scores"], num_beams)
        finished = {name: _take(x, best) for name, x in merged.items()}

        sums, going_on = ops.top_k(ops.where(ends, IMPOSSIBLE, candidates["sums"]), num_beams)
        running = {"tokens": _take(texts, going_on), "sums": sums}
        parent, token = (_take(candidates[name], going_on) for name in ("parent", "token"))
        rows = ops.reshape(parent + num_beams * ops.expand_dims(ops.arange(parent.shape[0], dtype="int32"), -1), (-1,))
        loop = {**loop, "running": running, "finished": finished, "num_new": num_new}
        loop |= {"state": self.decoder.move(loop["state"], rows), "token": ops.reshape(token, (-1,))}
        loop["position"] = ops.take(loop["position"], rows, axis=0)
        if rule.reads_text:
            moved = {name: ops.take(x, rows, axis=0) if len(x.shape) else x for name, x in loop["text"].items()}
            text = Text(**moved).append(loop["token"])._asdict()
            loop["text"] = {name: x for name, x in text.items() if x is not None}

        # Can the best running text still beat the worst finished one, and is there a running one at all?
        longest = num_new
        if early_stopping == "never":
            longest = ops.where(penalty > 0, told["max_new_tokens"], num_new)
        within_reach = sums[:, 0] / _power(longest, penalty) > finished["scores"][:, -1]
        is_open = ops.logical_and(within_reach, sums[:, 0] > IMPOSSIBLE / 2)
        if early_stopping is True:
            is_open = ops.logical_and(is_open, finished["scores"][:, -1] <= IMPOSSIBLE / 2)
        loop["is_open"] = ops.logical_and(loop["is_open"], is_open)
        return loop


def _candidates(running, log_probs, num_stops):
    """The best continuations of each prompt's beams, the best first: dict of (B, C).

    Of (1 + stops) * K, at least K do not end with a stop token.
    """
    (batch, num_beams), vocabulary = running["sums"].shape, log_probs.shape[-1]
    totals = ops.reshape(log_probs, (batch, num_beams, vocabulary)) + ops.expand_dims(running["sums"], -1)
    totals = ops.maximum(ops.reshape(totals, (batch, num_beams * vocabulary)), IMPOSSIBLE)
    sums, index = ops.top_k(totals, min((1 + max(1, num_stops)) * num_beams, num_beams * vocabulary))
    index = ops.cast(index, "int32")
    return {"sums": sums, "parent": index // vocabulary, "token": index % vocabulary}


def _take(x, index):
    """Beams (B, C, ...) in the order of index (B, K)."""
    index = ops.reshape(ops.cast(index, "int32"), (*index.shape, *[1] * (len(x.shape) - 2)))
    return ops.take_along_axis(x, index, axis=1)


def _write(texts, token, column):
    """Texts (B, C, L) with token (B, C) in one column."""
    here = ops.equal(ops.arange(texts.shape[-1], dtype="int32"), column)
    return ops.where(here, ops.expand_dims(token, -1), texts)


def _power(length, penalty):
    return ops.power(ops.cast(length, "float32"), penalty)
