"""Can this model be decoded, and how? Asked once per model, answered by trying it on a short random text."""

import math

import numpy as np
from keras import ops

from keras_transformer.generation.compile import compile_briefly
from keras_transformer.generation.loop_base import SMALLEST_CACHE
from keras_transformer.generation.prompts import bucket
from keras_transformer.ops.cache import CannotCache, LooksBothWays

LENGTH = 24  # a layer that looks back further than this, and never less far, is not found out
STEPS = 3
SOURCE_LENGTH = 4
PADDING = 3


class Probe:
    """Runs two decoders of one model on the same short text.

    Args:
        full: the `FullForward` of the model, against which everything is measured.
        ids: ids to draw from; padding is not among them.
        source, target: the `Side`s of the model; what stands on padding is the id that the target masks.
        tolerance: allowed difference of the logits, as a share of the largest.
    """

    def __init__(self, full, ids, source, target, tolerance):
        random = np.random.default_rng(0)
        self.full, self.tolerance = full, tolerance
        self._start_full = compile_briefly(full.start, full.model)
        self.pad_token_id = target.masked_token_id or 0
        self.fixed_length = target.fixed_length
        inputs = getattr(full.model, "inputs", None) or ()
        self.has_mates = all(tensor.shape[0] is None for tensor in inputs)  # not with a fixed batch of one
        self.source_ids, self.source_padding = None, 0
        if source is not None:
            room = min(SOURCE_LENGTH + PADDING, source.max_sequence_length or SOURCE_LENGTH + PADDING)
            length = source.fixed_length or max(1, room - PADDING)
            self.source_ids = random.choice(ids, (1, length))
            self.source_padding = 0 if source.fixed_length else room - length
        self.token_ids, self.other_ids = (random.choice(ids, (1, LENGTH)) for _ in range(2))
        self.works, self.fails = 0, math.inf  # numbers of tokens with which the model was tried
        self.limit = target.fixed_length or target.max_sequence_length or math.inf
        length = self.longest(min(LENGTH, self.limit))
        self.token_ids, self.other_ids = self.token_ids[:, :length], self.other_ids[:, :length]
        self.expected = self._full_logits(self.token_ids)

    def longest(self, length):
        """The most tokens, up to `length`, for which the model gives numbers.

        A table of positions of a user's own ends somewhere, where nobody sees it.
        """
        if self.works < length < self.fails:
            self._try(min(bucket(length, SMALLEST_CACHE), self.limit))  # few lengths are tried
        while self.works < length and self.fails - self.works > 1:
            self._try((self.works + self.fails) // 2)
        # With a single token every model works, or says by itself what is wrong with it.
        return length if self.works == 0 else min(length, self.fails - 1)

    def _try(self, length):
        try:
            works = not np.isnan(self._full_logits(np.resize(self.token_ids, (1, length)))).any()
        except Exception:  # every backend has its own
            works = False
        if works:
            self.works = length
        else:
            self.fails = length

    def reason_against_cache(self, cached):
        """None if prefill and steps through the cache give the logits of the full forward, else why not."""
        length = self.token_ids.shape[1]
        begin = max(1, length - STEPS)
        try:
            batch = self._batch(self.token_ids[:, :begin], PADDING, self.source_padding)
            start, step = (compile_briefly(function, self.full.model) for function in (cached.start, cached.step))
            logits, state = start(batch, length=length + PADDING)
            if not state["cache"]["layers"]:
                return "none of its layers keeps a cache"
            for i in range(begin, length):
                logits, state = step(state, _int32(self.token_ids[:, i]), _int32([i]))
        except LooksBothWays:
            raise
        except CannotCache as error:
            return str(error)
        except Exception as error:  # whatever a foreign layer makes of a text of one token
            return f"a step of one token fails ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        error = self._error(_array(logits), self.expected)
        return None if error <= self.tolerance else f"through a cache its logits differ by {error:.1e} of the largest"

    def looks_ahead(self):
        """Whether the logits of a token change with the tokens behind it, even in the full forward."""
        half = max(1, self.token_ids.shape[1] // 2)
        changed = np.concatenate([self.token_ids[:, :half], self.other_ids[:, half:]], axis=1)
        one, other = (self._full_logits(ids, last=half - 1) for ids in (self.token_ids, changed))
        return self._error(one, other) > self.tolerance

    def mixes_rows(self):
        """Whether the logits of a row change with the other rows of its batch."""
        if not self.has_mates:
            return False
        mates = self.other_ids, self.other_ids[:, ::-1]
        one, other = (self._full_logits(self.token_ids, mate=mate) for mate in mates)
        return self._error(one, other) > self.tolerance

    def reads_length(self):
        """Whether the logits of a token change with the room behind it, in which a text is to grow."""
        length = self.token_ids.shape[1]
        room = self.longest(min(length + PADDING, self.limit))
        if self.fixed_length is not None or room <= length:
            return False
        return self._error(self._full_logits(self.token_ids, room=room), self.expected) > self.tolerance

    def sees_source_padding(self):
        """Whether the full forward of an encoder-decoder changes with padding behind the source."""
        # At the first token: recurrence may have forgotten the source at the last one.
        padded, bare = (self._full_logits(self.token_ids, 0, width) for width in (self.source_padding, 0))
        return self._error(padded, bare) > self.tolerance

    def _full_logits(self, token_ids, last=None, source_padding=0, mate=None, room=None):
        """The logits of one text beside another one, so that every backend compiles one number of rows."""
        mate = self.other_ids if mate is None else mate
        rows = np.concatenate([token_ids, np.resize(mate, token_ids.shape)]) if self.has_mates else token_ids
        batch, room = self._batch(rows, 0, source_padding, last), room or self.fixed_length or token_ids.shape[1]
        return _array(self._start_full(batch, length=room)[0])[:1]

    def _batch(self, token_ids, padding, source_padding, last=None):
        last, count = token_ids.shape[1] - 1 if last is None else last, len(token_ids)
        batch = {"last": _int32([last] * count)}
        sides = [("token_ids", "positions", token_ids, padding)]
        if self.source_ids is not None:
            sides.append(("source_ids", "source_positions", self.source_ids.repeat(count, axis=0), source_padding))
        for ids_name, positions_name, ids, width in sides:
            positions = np.arange(ids.shape[1])[None].repeat(count, axis=0)
            batch[ids_name] = _int32(np.pad(ids, [(0, 0), (0, width)], constant_values=self.pad_token_id))
            batch[positions_name] = _int32(np.pad(positions, [(0, 0), (0, width)], constant_values=-1))
        return batch

    @staticmethod
    def _error(logits, expected):
        return float(np.abs(logits - expected).max() / max(np.abs(expected).max(), 1e-30))


def _array(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def _int32(x):
    return ops.convert_to_tensor(np.asarray(x, "int32"))
