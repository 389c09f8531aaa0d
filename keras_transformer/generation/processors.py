"""Logits processors: what may not, or rather not, come next, given the text so far.

A processor is a function of logits (B, V) and a `Text` to logits (B, V); -inf bans a token. Those of this file take
their parameters as tensors, so that changing one compiles nothing. A user's own work the same way:

    def no_question_marks(logits, text):
        return ops.where(ops.arange(logits.shape[-1]) == QUESTION_MARK, -float("inf"), logits)

    generate(model, prompts, 20, logits_processors=[no_question_marks])

Letters: B batch, V vocabulary, L room for the text, W number of word sequences, M tokens of the longest of them.

Source: repetition penalty: Keskar et al. 2019, "CTRL" (https://arxiv.org/abs/1909.05858); no repeated n-grams:
Paulus et al. 2017 (https://arxiv.org/abs/1705.04304).
"""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.ops.rows import at, repeat_rows

BANNED = float("-inf")


class Text(NamedTuple):
    """The text so far: the prompt (of an encoder-decoder the start token) and the new tokens.

    token_ids: int32 (B, L), each row's tokens from index 0; what stands behind them means nothing.
    lengths: int32 (B,), tokens of each row.
    num_new: int32 (B, 1), how many of them are new.
    counts: int32 (B, V), how often each id occurs in the row; None unless a penalty asks for it.
    """

    token_ids: Any
    lengths: Any
    num_new: Any
    counts: Any = None

    def append(self, token):
        """The text with one more token (B,) in each row."""
        return self.extend(ops.expand_dims(token, -1), ops.ones_like(self.lengths))

    def extend(self, tokens, how_many):
        """The text with the first `how_many` (B,) of tokens (B, T) behind each row."""
        token_ids = write_runs(self.token_ids, tokens, self.lengths, how_many)
        counts = self.counts
        if counts is not None:
            is_token = ops.arange(tokens.shape[1], dtype="int32") < ops.expand_dims(how_many, -1)
            added = ops.one_hot(ops.where(is_token, tokens, -1), counts.shape[-1], dtype="int32")
            counts = counts + ops.sum(added, axis=1)
        return Text(token_ids, self.lengths + how_many, self.num_new + ops.expand_dims(how_many, -1), counts)

    def ahead(self, tokens):
        """T + 1 texts of each row, next to each other: with none, the first, ... all of tokens (B, T) behind it."""
        batch, how_many = tokens.shape[0], tokens.shape[1] + 1
        steps = ops.arange(how_many, dtype="int32")
        token_ids = write_runs(self.token_ids, tokens, self.lengths)
        counts = self.counts
        if counts is not None:
            added = ops.cumsum(ops.one_hot(tokens, counts.shape[-1], dtype="int32"), axis=1)
            added = ops.pad(added, [(0, 0), (1, 0), (0, 0)])
            counts = ops.reshape(ops.expand_dims(counts, 1) + added, (batch * how_many, -1))
        return Text(
            repeat_rows(token_ids, how_many),
            ops.reshape(ops.expand_dims(self.lengths, -1) + steps, (-1,)),
            ops.reshape(self.num_new + steps, (-1, 1)),
            counts,
        )

    def tensors(self):
        """Its tensors by name, as a loop carries them."""
        return {name: x for name, x in self._asdict().items() if x is not None}

    def last(self, count):
        """The last `count` tokens of each row, int32 (B, count); -1 where a row has fewer."""
        index = ops.expand_dims(self.lengths, -1) - count + ops.arange(count, dtype="int32")
        tokens = at(self.token_ids, ops.maximum(index, 0))
        return ops.where(index >= 0, tokens, -1)


def write_runs(rows, runs, starts, how_many=None):
    """Rows (B, L) in which runs (B, T) stand from each row's own start (B,) on; what does not fit is left out.

    Only the first `how_many` (B,) tokens of each run are written, all by default.
    """
    width = runs.shape[1]
    index = ops.arange(rows.shape[1], dtype="int32") - ops.expand_dims(starts, -1)
    end = width if how_many is None else ops.expand_dims(how_many, -1)
    here = ops.logical_and(index >= 0, index < end)
    if width > 1:  # else the one token stands wherever it may
        runs = at(runs, ops.clip(index, 0, width - 1))
    return ops.where(here, runs, rows)


def repetition_penalty(logits, text, penalty):
    """Logits of ids that occur are divided by the penalty if positive, else multiplied; once, however often."""
    penalised = ops.where(logits > 0, logits / penalty, logits * penalty)
    return ops.where(text.counts > 0, penalised, logits)


def presence_penalty(logits, text, penalty):
    """The penalty is taken off the logits of ids that occur."""
    return logits - penalty * ops.cast(text.counts > 0, logits.dtype)


def frequency_penalty(logits, text, penalty):
    """The penalty is taken off once for every time that an id occurs."""
    return logits - penalty * ops.cast(text.counts, logits.dtype)


def min_new_tokens(logits, text, minimum, stop):
    """No stop id before so many new tokens."""
    vocabulary = ops.arange(logits.shape[-1], dtype="int32")
    is_stop = ops.any(ops.equal(ops.expand_dims(stop, -1), vocabulary), axis=0)
    return ops.where(ops.logical_and(is_stop, text.num_new < minimum), BANNED, logits)


def allowed_token_ids(logits, text, allowed):
    """Only the ids in `allowed`, int32 (M,), of which -1 is none."""
    is_allowed = count_tokens(ops.expand_dims(allowed, 0), allowed >= 0, logits.shape[-1]) > 0  # (1, V)
    return ops.where(is_allowed, logits, BANNED)


def no_repeat_ngram(logits, text, size):
    """No sequence of `size` tokens twice; `size` is a Python int."""
    length = text.token_ids.shape[1]
    if length < size:
        return logits
    # Windows (B, L - size + 1) whose first size - 1 tokens are the last ones of the row; what followed is banned.
    windows = length - size + 1
    prefix = text.last(size - 1)
    matches = ops.expand_dims(text.lengths, -1) >= ops.arange(windows, dtype="int32") + size
    for i in range(size - 1):
        same = ops.equal(text.token_ids[:, i : i + windows], prefix[:, i : i + 1])
        matches = ops.logical_and(matches, same)
    return _ban(logits, text.token_ids[:, size - 1 :], matches)


def bad_words(logits, text, words):
    """None of the sequences in `words`, int32 (W, M), aligned on the right with -1 on the left."""
    prefix, final = words[:, :-1], words[:, -1]
    last = text.last(words.shape[1] - 1) if words.shape[1] > 1 else None
    completes = ops.ones((logits.shape[0], words.shape[0]), "bool")
    if last is not None:
        fits = ops.logical_or(ops.equal(ops.expand_dims(last, 1), prefix), prefix < 0)  # (B, W, M - 1)
        completes = ops.all(fits, axis=-1)
    final = ops.broadcast_to(ops.expand_dims(final, 0), completes.shape)
    return _ban(logits, final, completes)


def prefix_allowed_tokens(logits, text, mask):
    """Only what the mask, boolean (B, any number), allows; ids behind its end are banned."""
    width = logits.shape[-1]
    mask = ops.pad(mask, [(0, 0), (0, max(0, width - mask.shape[1]))])[:, :width]
    return ops.where(mask, logits, BANNED)


def count_tokens(token_ids, is_token, vocabulary_size):
    """How often each id occurs, int32 (B, V), in (B, L) where `is_token`; ids outside the vocabulary count nowhere."""
    is_token = ops.logical_and(is_token, ops.logical_and(token_ids >= 0, token_ids < vocabulary_size))
    batch = token_ids.shape[0]
    rows = ops.expand_dims(ops.arange(batch, dtype="int32"), -1) * vocabulary_size
    index = ops.reshape(rows + ops.clip(token_ids, 0, vocabulary_size - 1), (-1,))
    # Not `ops.scatter`, which on torch is a loop in Python over all tokens.
    counts = ops.segment_sum(ops.reshape(ops.cast(is_token, "int32"), (-1,)), index, batch * vocabulary_size)
    return ops.reshape(counts, (batch, vocabulary_size))


def _ban(logits, token_ids, where):
    """Ban `token_ids` (B, K) where the mask (B, K) says so."""
    return ops.where(count_tokens(token_ids, where, logits.shape[-1]) > 0, BANNED, logits)
