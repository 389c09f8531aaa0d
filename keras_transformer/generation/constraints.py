"""Constrained decoding: a function of the user's is asked after every token what may come next.

It runs on the host, so a step is compiled for one token and told a mask; what the function answers compiles nothing.

Letters: N rows that are written (prompts times beams or samples), V vocabulary.

Source: decoding along a tree of what may be said: De Cao et al. 2020 (https://arxiv.org/abs/2010.00904).
"""

import numpy as np
from keras import ops

from keras_transformer.generation.prompts import as_ids, bucket

NAME = "prefix_allowed_tokens"  # of the processor, and of the mask among what a compiled step is told
SMALLEST_MASK = 256  # of a model whose vocabulary is not known


class Constraint:
    """Turns the answers of `prefix_allowed_tokens_fn` into masks, True = may be written.

    Args:
        function: takes the number of a prompt in the batch and its tokens so far, int32 (T,); returns ids. None: there
            is no constraint, and `is_given` says so.
        copies: rows that are written for each prompt, next to each other.
        vocabulary_size: ids must be below it; None if it is not known.
    """

    def __init__(self, function, copies, vocabulary_size):
        self.is_given = function is not None
        self._function, self._copies = function, copies
        self._limit, self._size = vocabulary_size, vocabulary_size or SMALLEST_MASK

    def first(self, prompts, batch_size):
        """What a step is told before anything is written: a dict with the mask (N, V), empty without a function."""
        if not self.is_given:
            return {}
        allowed = [self._ask(number, prompt) for number, prompt in enumerate(prompts)]
        allowed += [()] * (batch_size - len(prompts))
        return self._told([ids for ids in allowed for _ in range(self._copies)])

    def after(self, text, is_open):
        """As `first`, for the rows of a `Text` as a dict; those that are not open, boolean (N,), are not asked for."""
        token_ids, lengths = (ops.convert_to_numpy(text[name]) for name in ("token_ids", "lengths"))
        return self._told(
            [
                self._ask(row // self._copies, token_ids[row, : lengths[row]]) if is_open[row] else ()
                for row in range(len(lengths))
            ]
        )

    def _ask(self, number, tokens):
        ids = self._function(number, np.array(tokens, "int32"))
        if ids is None:
            raise ValueError("`prefix_allowed_tokens_fn` must return a list of token ids. Received: None")
        return as_ids("prefix_allowed_tokens_fn(...)", ids, self._limit or 2**31)

    def _told(self, allowed):
        largest = max((int(ids.max()) for ids in allowed if len(ids)), default=0)
        self._size = self._limit or bucket(largest + 1, self._size)
        mask = np.zeros((len(allowed), self._size), "bool")
        for row, ids in zip(mask, allowed, strict=True):
            row[np.asarray(ids, "int32")] = True
        return {NAME: ops.convert_to_tensor(mask)}
