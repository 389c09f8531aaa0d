"""What every way to write texts shares: prompts in shapes of which there are few, positions, and room to grow.

Letters: B batch, V vocabulary, T tokens.
"""

import keras
import numpy as np
from keras import ops

from keras_transformer.generation.compile import can_compile, compile_function
from keras_transformer.generation.decoders import FullForward
from keras_transformer.generation.processors import count_tokens
from keras_transformer.generation.prompts import bucket, pad_rows, row_positions
from keras_transformer.ops.rows import repeat_rows

SMALLEST_CACHE = 64
SMALLEST_PROMPT = 16
SMALLEST_SOURCE = 16


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
        self._read = _compiled_start(decoder)
        self._repeat = compile_function(repeat_all, decoder.model)

    @property
    def pads_source(self):
        """Whether sources of different lengths may share a batch."""
        return self.decoder.pads_source

    def _repeated(self, tree, repeats):
        """Every row of every tensor `repeats` times in turn."""
        return tree if repeats == 1 else self._repeat(tree, repeats=repeats)

    def _extend(self, loop, length):
        """The same loop with room for `length` tokens."""
        loop = {**loop, "state": self.decoder.extend(loop["state"], length)}
        if "text" in loop:
            loop["text"] = {**loop["text"], "token_ids": pad_columns(loop["text"]["token_ids"], length + 1)}
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
        used, smallest = prompt_length, SMALLEST_CACHE
        if before is not None:
            rows_kept = np.asarray(filled(before.index), "int32")
            batch["before"] = {"state": before.kept.state, "logits": before.kept.logits, "rows": rows_kept}
            batch["text_ids"] = pad_rows(whole, 0, bucket(max(map(len, whole)), SMALLEST_PROMPT))
            batch["text_lengths"] = np.asarray([len(row) for row in whole], "int32")
            used += before.kept.used
            smallest = before.kept.state["cache"]["positions"].shape[1]  # a cache grows only
        elif source_rows is not None:
            batch |= self._sources(filled(source_rows))
        size = max(self._room(bucket(max(used + 1, smallest), SMALLEST_CACHE)), used)
        return keras.tree.map_structure(as_tensor, batch), size

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
        if "text_ids" in batch:
            token_ids, lengths = batch["text_ids"], batch["text_lengths"]
        # One more than the cache holds: the last token of a text is not fed yet.
        token_ids = pad_columns(token_ids, length + 1)
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


def _compiled_start(decoder):
    """`decoder.start`, compiled once for all loops: prompts are read alike, whatever is written behind them."""
    if "compiled_start" not in vars(decoder):
        decoder.compiled_start = compile_function(decoder.start, decoder.model)
    return decoder.compiled_start


def once_read(batch):
    """What is still of use of a batch when its prompts were read."""
    return {name: x for name, x in batch.items() if name != "before"}


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


def pad_columns(x, length):
    """The array (B, T) with zeros up to `length` columns."""
    return ops.pad(x, [(0, 0), (0, length - x.shape[1])])


def repeat_all(tree, repeats):
    """Every row of every tensor `repeats` times in turn; scalars stay."""
    return keras.tree.map_structure(lambda x: repeat_rows(x, repeats) if len(x.shape) else x, tree)


def as_tensor(x):
    """A tensor of the current backend."""
    return ops.convert_to_tensor(x)
