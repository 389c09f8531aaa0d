"""What drafts tokens for `SpeculativeLoop`: a smaller model, or the text itself.

A drafter offers functions of tensors, of which `propose` and `accept` are compiled with the loop:

    prompts(rows, source_rows, batch_size)           -> what `start` needs, and the room for tokens in it
    start(batch, length, spare)                      -> a state from which `spare` tokens may be taken back at once
    check_vocabulary(size)                           raises where it is not that of the drafts
    propose(loop, room, told, noise, rule, draft)    -> drafts (B, N), what they were drawn from (B, N, V), the state
    accept(state, fed, tokens, kept)                 -> the state after the first `kept` (B,) of tokens (B, N + 1)

Letters: B batch, V vocabulary, N drafted tokens per round, L room for the text.

Source: prompt lookup: Saxena 2023 (https://github.com/apoorvumang/prompt-lookup-decoding).
"""

from keras import ops

from keras_transformer.generation.loop_base import LoopBase
from keras_transformer.generation.processors import Text, write_runs
from keras_transformer.generation.prompts import bucket, pad_rows
from keras_transformer.generation.sampling import draw, most_probable, normalised
from keras_transformer.ops.cache import CannotCache, LooksBothWays
from keras_transformer.ops.masks import NOT_A_TOKEN
from keras_transformer.ops.rows import at


class DraftCannotCache(CannotCache):
    """The model that drafts cannot be decoded through a cache."""


def check_vocabulary(size, size_of_draft):
    """Refuse a draft of another vocabulary; None is not known yet."""
    if None not in (size, size_of_draft) and size != size_of_draft:
        raise ValueError(
            f"`assistant_model` must have the vocabulary of the model, which gives {size} logits. "
            f"Received: an assistant_model that gives {size_of_draft}"
        )


def cannot_draft(error):
    """The error of a model that looks both ways, naming the argument that it came as."""
    return LooksBothWays(f"`assistant_model` cannot draft: {error}")


class ModelDrafter(LoopBase):
    """Drafts with a model of the same vocabulary, by the same sampler, processors and filters as the text.

    The arguments are those of `LoopBase`, for that model.
    """

    @property
    def pads_source(self):
        return self.source is None or self.decoder.pads_source

    def prompts(self, rows, source_rows, batch_size):
        return self._batch(rows, None if self.source is None else source_rows, batch_size)

    def start(self, batch, length, spare):
        try:
            logits, state = self._read(batch, length=length, spare=spare)
        except CannotCache as error:
            raise DraftCannotCache(str(error)) from error
        except LooksBothWays as error:
            raise cannot_draft(error) from error
        self.vocabulary_size = logits.shape[-1]  # known from here on, as every loop begins here
        return {"state": state, "position": ops.max(batch["positions"], axis=1) + 1}

    def check_vocabulary(self, size):
        check_vocabulary(size, self.vocabulary_size)

    def propose(self, loop, room, told, noise, rule, draft):
        (num_drafts, _), batch_size = draft, loop["token"].shape[0]
        state = loop["draft"]
        values = {**state, "token": loop["token"], "drafts": ops.zeros((batch_size, num_drafts + 1), "int32")}
        if rule.sampler == "sample":
            values["shares"] = ops.zeros((batch_size, num_drafts + 1, self.vocabulary_size), "float32")
        if rule.reads_text:
            values["text"] = loop["text"]

        # One more step than drafts, so that the last draft is fed as well: it may stay.
        def body(number, values):
            position = self._position(values)
            is_fed = ops.where(number < room, position, NOT_A_TOKEN)
            logits, state = self.decoder.step(values["state"], values["token"], is_fed)
            values = {**values, "state": state, "position": position + 1}
            now = ops.slice(noise, (0, number), (batch_size, 1))[:, 0] if rule.sampler == "sample" else None
            return number + 1, self._draw(values, logits, number, told, now, rule)

        start = ops.zeros((), "int32"), values
        _, values = self._while_loop(lambda number, values: number <= num_drafts, body, start)
        shares = values["shares"][:, :-1] if "shares" in values else None
        return values["drafts"][:, :-1], shares, {**state, "state": values["state"]}

    def _draw(self, values, logits, number, told, noise, rule):
        logits = ops.cast(logits, "float32")
        if rule.reads_text:
            logits = rule.process(logits, Text(**values["text"]), told, told["stop"])
            nothing = ops.logical_not(ops.any(logits > float("-inf"), axis=-1, keepdims=True))
            logits = ops.where(nothing, _only_first(logits), logits)
        new = {}
        if rule.sampler == "sample":
            share = normalised(logits, rule.filters, told)
            new["shares"] = ops.slice_update(values["shares"], (0, number, 0), ops.expand_dims(share, 1))
            token = draw(share, noise)
        else:
            token = most_probable(logits)
        if rule.reads_text:
            new["text"] = Text(**values["text"]).append(token).tensors()
        new["drafts"] = ops.slice_update(values["drafts"], (0, number), ops.expand_dims(token, -1))
        return {**values, "token": token, **new}

    def accept(self, state, fed, tokens, kept):
        if fed is None:  # the first token of all is fed in the first round
            return state
        positions = self._positions(state["position"], fed)
        position = at(positions, ops.maximum(kept - 1, 0)) + 1
        return {"state": self.decoder.take_back(state["state"], fed.shape[1], kept), "position": position}

    def room(self, length):
        return self._room(length)

    def extend(self, state, length):
        return {**state, "state": self.decoder.extend(state["state"], length)}

    def slots_used(self, state):
        return self.decoder.slots_used(state["state"])


class LookupDrafter:
    """Drafts what followed the last tokens where they occurred before, in the source or in the text itself.

    The longest match counts, of equal ones the first, behind which there is most. A draft is certain: each token's
    share is one.

    Args:
        reads_source: whether the ids of the source are those of the text.
    """

    pads_source = True

    def __init__(self, reads_source):
        self.reads_source = reads_source

    def prompts(self, rows, source_rows, batch_size):
        if source_rows is not None and self.reads_source:
            rows = [[*source, NOT_A_TOKEN, *row] for source, row in zip(source_rows, rows, strict=True)]
        rows = [*rows, *[rows[0]] * (batch_size - len(rows))]
        ends = ops.convert_to_tensor([len(row) for row in rows], "int32")
        length = bucket(max(map(len, rows)) + 1, 64)
        return {"token_ids": ops.convert_to_tensor(pad_rows(rows, NOT_A_TOKEN, length)), "ends": ends}, length

    def start(self, batch, length, spare):
        return batch

    def check_vocabulary(self, size):
        pass  # its drafts are of the text itself

    def propose(self, loop, room, told, noise, rule, draft):
        (num_drafts, largest), state = draft, loop["draft"]
        token_ids, ends = state["token_ids"], ops.expand_dims(state["ends"], -1)
        length = token_ids.shape[1]
        # How many tokens before each place are the last ones of the row.
        is_match, matched = True, 0
        for i in range(1, largest + 1):
            last = ops.where(ends >= i, at(token_ids, ops.maximum(ends - i, 0)), NOT_A_TOKEN)
            before = ops.pad(token_ids, [(0, 0), (i, 0)], constant_values=NOT_A_TOKEN)[:, :length]
            is_match = ops.logical_and(is_match, ops.logical_and(last > NOT_A_TOKEN, ops.equal(before, last)))
            matched = matched + ops.cast(is_match, "int32")
        matched = ops.where(token_ids > NOT_A_TOKEN, matched, 0)  # something must follow
        best = ops.expand_dims(ops.cast(ops.argmax(matched, axis=-1), "int32"), -1)
        index = best + ops.arange(num_drafts, dtype="int32")
        drafts = at(token_ids, ops.minimum(index, length - 1))
        is_draft = ops.logical_and(index < length, drafts > NOT_A_TOKEN)
        is_draft = ops.logical_and(is_draft, ops.max(matched, axis=-1, keepdims=True) > 0)
        is_draft = ops.cumprod(ops.cast(is_draft, "int32"), axis=1) > 0
        drafts = ops.where(is_draft, drafts, -1)
        return drafts, None, state

    def accept(self, state, fed, tokens, kept):
        return {"token_ids": write_runs(state["token_ids"], tokens, state["ends"], kept), "ends": state["ends"] + kept}

    def room(self, length):
        return length

    def extend(self, state, length):
        room = length - state["token_ids"].shape[1]
        return {**state, "token_ids": ops.pad(state["token_ids"], [(0, 0), (0, room)], constant_values=NOT_A_TOKEN)}

    def slots_used(self, state):
        return ops.max(state["ends"])


def _only_first(logits):
    """Logits (V,) of certainty: where all is banned, some token must be drafted and its share be known."""
    return ops.where(ops.arange(logits.shape[-1], dtype="int32") > 0, float("-inf"), 0.0)
