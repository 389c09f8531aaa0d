"""Beam search: the K most probable beginnings of a text, extended together.

Letters: B searches, K beams of each, V vocabulary, L room for new tokens, C candidates for the next beams. A prompt
has one search, or one for each group of its beams. The beams of a prompt lie next to each other in the rows of all
that the decoder keeps: (B * K, ...).

The score of a finished text is the sum of the log-probabilities of its new tokens, the stop token included, divided by
their number to the power of `length_penalty`: the definition of `transformers`, whose `early_stopping` has the same
three values. What `diversity_penalty` took off is part of the sum, and `coverage_penalty` times the logarithm of the
coverage is added to the quotient.

Source: length normalisation: Wu et al. 2016 (https://arxiv.org/abs/1609.08144), without its constant.
"""

import numpy as np
from keras import ops

from keras_transformer.generation import coverage
from keras_transformer.generation.broken import note_broken, note_processed, refuse_broken
from keras_transformer.generation.candidates import IMPOSSIBLE, choose
from keras_transformer.generation.compile import compile_function
from keras_transformer.generation.constraints import Constraint
from keras_transformer.generation.loop_base import LoopBase, once_read, repeat_all
from keras_transformer.generation.processors import Text
from keras_transformer.generation.prompts import bucket, pad_rows
from keras_transformer.generation.results import Result
from keras_transformer.ops.rows import at, repeat_rows


class BeamLoop(LoopBase):
    """Writes `num_beams` texts for each prompt; each step moves the beams, and with them the rows of the cache."""

    def __init__(self, decoder, model, source, target):
        super().__init__(decoder, model, source, target)
        self._first = compile_function(self._first_beams, model)
        self._watch = compile_function(self._read_and_watch, model)
        self._chunk = compile_function(self._chunk_of_beams, model, donate=(0,))

    def run(self, rows, source_rows, request):
        """The best `request.repeats` results of each row in turn, the best first."""
        if request.beams.covers:
            coverage.check_decoder(self.decoder)
        batch_size = bucket(len(rows), 1)
        batch, length = self._batch(rows, source_rows, batch_size, request.before)
        stop = pad_rows([request.stop_token_ids], -1, bucket(len(request.stop_token_ids), 1))[0]
        told = {**request.parameters, "stop": stop, "max_new_tokens": np.int32(request.max_new_tokens)}
        told = {name: ops.convert_to_tensor(value) for name, value in told.items()}
        constraint = Constraint(request.prefix_allowed_tokens_fn, request.beams.num_beams, self.target.vocabulary_size)
        told |= constraint.first(rows, batch_size)
        is_open = ops.convert_to_tensor(np.arange(batch_size) < len(rows))  # the others only fill up the batch
        static = {"rule": request.rule, "beams": request.beams}
        room = bucket(request.max_new_tokens, 16)
        attention = None
        if request.beams.covers:
            logits, state, attention = self._watch(batch, length=length)
        else:
            logits, state = self._read(batch, length=length, spare=0)
        loop = self._first(once_read(batch), logits, attention, is_open, told, length=length, room=room, **static)
        loop["state"] = self._repeated(state, request.beams.num_beams)
        refuse_broken(loop)
        used = self._slots_taken(rows, request.before)
        remaining = request.max_new_tokens - 1
        while remaining > 0 and ops.convert_to_numpy(loop["is_open"]).any():
            if used == length:
                length = self._room(2 * length)
                loop = self._extend(loop, length)
            limit = min(remaining, length - used)
            if constraint.is_given:
                told |= constraint.after(loop["text"], _open_rows(loop))
                limit = 1
            loop, count = self._chunk(loop, told, ops.convert_to_tensor(np.int32(limit)), **static)
            refuse_broken(loop)
            count = int(ops.convert_to_numpy(count))
            used, remaining = used + count, remaining - count
        return _results(loop["finished"], len(rows), request)

    def _read_and_watch(self, batch, length):
        return coverage.run(self.decoder.start, batch, length)

    def _first_beams(self, batch, logits, attention, is_open, told, rule, beams, length, room):
        loop = {"position": batch["next_position"]}
        if beams.covers:
            loop["coverage"] = coverage.start(attention, batch, self.source.masked_token_id)
        if rule.reads_text:
            loop["text"] = self._text(batch, rule, logits.shape[-1], length)
        loop, logits = repeat_all((loop, logits), beams.num_beams)
        shape = batch["last"].shape[0] * beams.num_groups, beams.num_beams // beams.num_groups
        none = ops.full(shape, IMPOSSIBLE, "float32")
        # All beams of a search begin alike, so only the first one counts in the first step.
        sums = ops.where(ops.arange(shape[1]) == 0, ops.zeros(shape, "float32"), none)
        texts = ops.zeros((*shape, room), "int32")
        loop["running"] = {"tokens": texts, "sums": sums}
        loop["finished"] = {"tokens": texts, "scores": none, "lengths": ops.zeros(shape, "int32")}
        loop["num_new"], loop["is_open"] = ops.zeros((), "int32"), repeat_rows(is_open, beams.num_groups)
        return self._advance(loop, logits, told, rule, beams)

    def _chunk_of_beams(self, loop, told, limit, rule, beams):
        def proceed(count, loop):
            return ops.logical_and(count < limit, ops.any(loop["is_open"]))

        def body(count, loop):
            fed = loop["state"], loop["token"], self._position(loop)
            loop = {**loop, "position": fed[2] + 1}
            if beams.covers:
                logits, loop["state"], attention = coverage.run(self.decoder.step, *fed)
                loop["coverage"] = coverage.add(loop["coverage"], attention)
            else:
                logits, loop["state"] = self.decoder.step(*fed)
            return count + 1, self._advance(loop, logits, told, rule, beams)

        count, loop = self._while_loop(proceed, body, (ops.zeros((), "int32"), loop))
        return loop, count

    def _advance(self, loop, logits, told, rule, beams):
        """One more token for every beam."""
        logits = ops.cast(logits, "float32")
        is_open = repeat_rows(loop["is_open"], loop["running"]["sums"].shape[1])
        loop = note_broken(loop, logits, is_open)
        log_probs = ops.log_softmax(logits, axis=-1)
        if rule.reads_text:
            log_probs = rule.process(log_probs, Text(**loop["text"]), told, told["stop"])
            loop = note_processed(loop, log_probs, is_open, rule)
        running, num_new = loop["running"], loop["num_new"] + 1
        quotient = _power(num_new, told["length_penalty"])
        bonus = None
        if beams.covers:
            logs = told["coverage_penalty"] * coverage.log_coverage(loop["coverage"])
            bonus = ops.reshape(logs, running["sums"].shape) * quotient
        candidates, chosen = choose(running["sums"], bonus, log_probs, loop["is_open"], told, num_new, beams.num_groups)
        texts = _write(at(running["tokens"], candidates["parent"]), candidates["token"], loop["num_new"])
        loop = {**loop, "num_new": num_new}
        loop["finished"] = _finish(loop, candidates, texts, candidates["totals"] / quotient)
        loop["running"] = {"tokens": at(texts, chosen["index"]), "sums": chosen["sums"]}
        loop["is_open"] = _is_open(loop, chosen["totals"][:, 0] / quotient, told)
        return self._move(loop, chosen, rule)

    def _move(self, loop, chosen, rule):
        """All that is kept of a row, behind the beam that it comes from and with its new token."""
        num_searches, num_beams = chosen["parent"].shape
        first = num_beams * ops.expand_dims(ops.arange(num_searches, dtype="int32"), -1)
        rows = ops.reshape(chosen["parent"] + first, (-1,))
        token = ops.reshape(chosen["token"], (-1,))
        loop = {**loop, "token": token}
        if "state" in loop:  # behind the prompt all beams are alike
            loop["state"] = self.decoder.move(loop["state"], rows)
        loop["position"] = ops.take(loop["position"], rows, axis=0)
        if "coverage" in loop:
            loop["coverage"] = coverage.move(loop["coverage"], rows)
        if rule.reads_text:
            moved = {name: ops.take(x, rows, axis=0) if len(x.shape) else x for name, x in loop["text"].items()}
            text = Text(**moved).append(token)._asdict()
            loop["text"] = {name: x for name, x in text.items() if x is not None}
        return loop


def _finish(loop, candidates, texts, scores):
    """The best finished texts, those that end now among them.

    Only those among the best K may finish: the others are there to go on in their place.
    """
    finished = loop["finished"]
    num_beams = finished["scores"].shape[1]
    may_finish = ops.logical_and(candidates["ends"], ops.arange(texts.shape[1]) < num_beams)
    may_finish = ops.logical_and(may_finish, candidates["totals"] > IMPOSSIBLE / 2)
    may_finish = ops.logical_and(may_finish, ops.expand_dims(loop["is_open"], -1))
    lengths = ops.broadcast_to(loop["num_new"], may_finish.shape)
    new = {"tokens": texts, "scores": ops.where(may_finish, scores, IMPOSSIBLE), "lengths": lengths}
    merged = {name: ops.concatenate([finished[name], new[name]], axis=1) for name in finished}
    _, best = ops.top_k(merged["scores"], num_beams)
    return {name: at(x, best) for name, x in merged.items()}


def _is_open(loop, best_score, told):
    """Which searches go on: can a running text still beat the worst finished one, and is there one at all?"""
    sums, worst = loop["running"]["sums"], loop["finished"]["scores"][:, -1]
    longest = ops.where(told["length_penalty"] > 0, told["max_new_tokens"], loop["num_new"])
    best_possible = ops.max(sums, axis=1) / _power(longest, told["length_penalty"])  # its source covered in full
    best_score = ops.where(told["stops_when_sure"], best_possible, best_score)
    is_open = ops.logical_and(best_score > worst, ops.max(sums, axis=1) > IMPOSSIBLE / 2)
    has_enough = ops.logical_and(told["stops_early"], worst > IMPOSSIBLE / 2)
    is_open = ops.logical_and(is_open, ops.logical_not(has_enough))
    return ops.logical_and(loop["is_open"], is_open)


def _open_rows(loop):
    """Which rows are beams that are still written, boolean (B * K,), in NumPy."""
    is_open, sums = (ops.convert_to_numpy(x) for x in (loop["is_open"], loop["running"]["sums"]))
    return (is_open[:, None] & (sums > IMPOSSIBLE / 2)).reshape(-1)


def _results(finished, num_rows, request):
    """The best of all groups for each row."""
    num_beams, results = request.beams.num_beams, []
    finished = {name: ops.convert_to_numpy(x) for name, x in finished.items()}
    finished = {name: x.reshape(-1, num_beams, *x.shape[2:]) for name, x in finished.items()}
    for row in range(num_rows):
        tokens, scores, lengths = (finished[name][row] for name in ("tokens", "scores", "lengths"))
        for k in np.argsort(-scores, kind="stable")[: request.repeats]:
            if scores[k] <= IMPOSSIBLE / 2:  # there are fewer texts than were asked for
                results.append(Result(np.zeros(0, "int32"), None, float("-inf")))
            else:
                results.append(Result(tokens[k, : lengths[k]], None, float(scores[k])))
    return results


def _write(texts, token, column):
    """Texts (B, C, L) with token (B, C) in one column."""
    here = ops.equal(ops.arange(texts.shape[-1], dtype="int32"), column)
    return ops.where(here, ops.expand_dims(token, -1), texts)


def _power(length, penalty):
    return ops.power(ops.cast(length, "float32"), penalty)
