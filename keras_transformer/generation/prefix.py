"""Prefixes: texts that a model has read once, to be continued any number of times.

Letters: B batch, V vocabulary.
"""

import math
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer import weights
from keras_transformer.generation.loop_base import LoopBase
from keras_transformer.generation.prompts import bucket


class Kept(NamedTuple):
    """What a model left in memory of the texts that it read.

    state: the decoder's state, a nested dict of tensors whose rows are the texts.
    logits: (B, V), what comes next.
    used: int, slots of the cache that are taken.
    """

    state: Any
    logits: Any
    used: int


class Before(NamedTuple):
    """What was kept of the beginnings of a batch's rows: of row i, `lengths[i]` tokens in row `index[i]` of `kept`."""

    kept: Kept
    index: Any
    lengths: list


class Prefix:
    """Texts that a model has read, made by `kt.prefill`. Using it does not use it up.

    Attributes:
        rows: list of int32 arrays, the token ids of each text, of an encoder-decoder those of the target so far.
        sources: list of int32 arrays, the sources of an encoder-decoder, else None.
        kept: what spares the model reading them again; None for models without a cache.
        cache_dtype: of the cache in it.
    """

    def __init__(self, model, rows, sources, kept, cache_dtype=None):
        self.model, self.rows, self.sources, self.kept, self.cache_dtype = model, rows, sources, kept, cache_dtype
        self._weights = weights.fingerprint(model)

    def __len__(self):
        return len(self.rows)

    @property
    def nbytes(self):
        """Bytes that the prefix takes in memory."""
        return sum(_nbytes(x) for x in keras.tree.flatten(self.kept))

    def is_of(self, model):
        """Whether the model has the weights that it had when it read the texts."""
        return self._weights == weights.fingerprint(model)

    def rows_for(self, num_inputs):
        """Which row of the prefix each input continues."""
        if len(self) not in (1, num_inputs):
            raise ValueError(
                f"`prefix` has {len(self)} rows and `inputs` has {num_inputs}: there must be one input for each, or "
                "a prefix of one row for all."
            )
        return [self._row_for(i) for i in range(num_inputs)]

    def _row_for(self, index):
        return index if len(self) > 1 else 0

    def before(self, chosen):
        """What was kept of the beginnings of the inputs with these indices; None if nothing was."""
        if self.kept is None:
            return None
        index = [self._row_for(i) for i in chosen]
        return Before(self.kept, np.asarray(index, "int32"), [len(self.rows[i]) for i in index])


def check_prefix(prefix, model, cache_dtype):
    """Refuse what is no prefix, or was made by another model, with other weights or for another cache."""
    if not isinstance(prefix, Prefix):
        raise ValueError(f"`prefix` must be made by `prefill`. Received: prefix={prefix!r}")
    if prefix.model is not model:
        name = getattr(model, "name", model)
        raise ValueError(f"`prefix` was made by another model than {name!r}: call `prefill` with this one.")
    if not prefix.is_of(model):
        raise ValueError(
            "`prefix` was made before the weights of the model changed, by training, LoRA or quantising: call "
            "`prefill` again."
        )
    if cache_dtype not in (None, prefix.cache_dtype):
        raise ValueError(
            f"`prefix` was made with cache_dtype={prefix.cache_dtype!r}. Received: cache_dtype={cache_dtype!r}"
        )


class Reader(LoopBase):
    """Reads texts and writes nothing."""

    def read(self, rows, source_rows, before=None):
        """What is `Kept` of the rows; None if the decoder keeps nothing."""
        if not self.decoder.keeps:
            return None
        batch, length = self._batch(rows, source_rows, bucket(len(rows), 1), before)
        logits, state = self._read(batch, length=length, spare=0)
        return Kept(state, logits, self._slots_taken(rows, before))


def _nbytes(x):
    if not hasattr(x, "dtype"):
        return 0
    bits = "".join(filter(str.isdigit, keras.backend.standardize_dtype(x.dtype))) or 8  # a bool takes a byte
    return math.prod(x.shape) * int(bits) // 8
