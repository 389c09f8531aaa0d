"""Attention over any axes of a tensor of any rank, reduced to the plain case (B, T, N, H).

Axes that attend are flattened into T, all others into B. For inputs (B, T, D) nothing happens at all.
"""

import math
from numbers import Integral

from keras import ops


class AttentionAxes:
    """The axes that attend, as given by `attention_axes` of `keras.layers.MultiHeadAttention`."""

    def __init__(self, given):
        if isinstance(given, Integral):
            given = (given,)
        if given is not None and not (isinstance(given, (list, tuple)) and all(isinstance(a, Integral) for a in given)):
            raise ValueError(f"`attention_axes` must be an int or a list of ints. Received: attention_axes={given!r}")
        self.given = None if given is None else tuple(map(int, given))
        self.axes = None
        self.rank = None

    def resolve(self, rank):
        """Fix the axes for inputs (B, ..., D) of this rank."""
        self.rank = rank
        if self.given is None:
            self.axes = tuple(range(1, rank - 1))
        else:
            self.axes = tuple(axis if axis >= 0 else rank + axis for axis in self.given)
        if any(not 0 < axis < rank - 1 for axis in self.axes) or len(set(self.axes)) < len(self.axes):
            raise ValueError(
                f"`attention_axes` must be distinct axes between batch and features of rank-{rank} inputs. "
                f"Received: attention_axes={self.given}"
            )
        self.batch_axes = tuple(axis for axis in range(rank - 1) if axis not in self.axes)

    def check_rank(self, **inputs):
        """Refuse inputs of another rank than the layer was built for."""
        for name, x in inputs.items():
            if len(x.shape) != self.rank:
                raise ValueError(
                    f"`{name}` must have {self.rank} dimensions, as those that the layer was built for. "
                    f"Received: {name}.shape={tuple(x.shape)}"
                )

    @property
    def is_plain(self):
        return self.rank == 3 and self.axes == (1,)

    def length(self, shape):
        """How many positions of inputs of this shape (B, ..., D) attend to each other, None if unknown."""
        lengths = self._attending(shape)
        return None if None in lengths else math.prod(lengths)

    def fold(self, x):
        """(B, ..., N, H) -> (B', T', N, H)."""
        if self.is_plain:
            return x
        x = ops.transpose(x, (*self.batch_axes, *self.axes, self.rank - 1, self.rank))
        return ops.reshape(x, (-1, self._size(ops.shape(x), len(self.batch_axes)), *x.shape[-2:]))

    def fold_mask(self, mask):
        """A mask over all positions (B, ...) -> (B', T')."""
        if self.is_plain or mask is None:
            return mask
        mask = ops.transpose(mask, (*self.batch_axes, *self.axes))
        return ops.reshape(mask, (-1, self._size(ops.shape(mask), len(self.batch_axes))))

    def _size(self, shape, first):
        return math.prod(shape[first : first + len(self.axes)])

    def fold_attention_mask(self, mask, query, key):
        """A mask that broadcasts to the scores (batch axes, N, query axes, key axes) -> (B', N or 1, T', S')."""
        if mask is None:
            return None
        mask = ops.convert_to_tensor(mask)
        num_attending = len(self.axes)
        full_rank = len(self.batch_axes) + 1 + 2 * num_attending
        if not 2 * num_attending <= len(mask.shape) <= full_rank:
            raise ValueError(
                f"`attention_mask` must have between {2 * num_attending} and {full_rank} dimensions, "
                f"(batch, heads, query, key). Received: attention_mask.shape={tuple(mask.shape)}"
            )
        mask = ops.cast(mask, "bool")
        while len(mask.shape) < full_rank:
            # Missing dimensions are the heads, then the batch; axes are added where Keras adds them.
            at = -2 * num_attending - 1
            mask = mask[None] if len(mask.shape) == 2 * num_attending else ops.expand_dims(mask, at)
        query_shape, key_shape = (self._attending(ops.shape(x)) for x in (query, key))
        batch = tuple(ops.shape(query)[axis] for axis in self.batch_axes)
        self._check_mask(mask, (*batch, query.shape[-2], *query_shape, *key_shape))
        if self.is_plain:
            return mask
        heads = mask.shape[len(self.batch_axes)]
        mask = ops.broadcast_to(mask, (*batch, heads, *query_shape, *key_shape))
        return ops.reshape(mask, (-1, heads, math.prod(query_shape), math.prod(key_shape)))

    def _attending(self, shape):
        return tuple(shape[axis] for axis in self.axes)

    def _check_mask(self, mask, shape):
        for given, size in zip(mask.shape, shape, strict=True):
            if isinstance(given, int) and isinstance(size, int) and given not in (1, size):
                raise ValueError(
                    f"`attention_mask` must fit the scores, {shape}: batch, heads, query and key lengths. "
                    f"Received: attention_mask.shape={tuple(mask.shape)}, missing dimensions filled in"
                )

    def unfolder(self, query, key):
        """What turns results back: of `query` (B, ..., N, H), before folding."""
        return Unfolder(self, ops.shape(query), ops.shape(key))

    def scores_shape(self, query_shape, key_shape, num_heads):
        """Shape of the scores: (batch axes, N, query axes, key axes)."""
        if self.rank is None:
            self.resolve(len(query_shape))
        batch = tuple(query_shape[axis] for axis in self.batch_axes)
        return (*batch, num_heads, *self._attending(query_shape), *self._attending(key_shape))


class Unfolder:
    """Puts folded outputs and scores back into the caller's axes."""

    def __init__(self, axes, query_shape, key_shape):
        self.axes, self.query_shape, self.key_shape = axes, query_shape, key_shape

    def output(self, x):
        """(B', T', N, H) -> (B, ..., N, H)."""
        axes = self.axes
        if axes.is_plain:
            return x
        order = (*axes.batch_axes, *axes.axes)
        x = ops.reshape(x, (*[self.query_shape[axis] for axis in order], *x.shape[-2:]))
        back = [order.index(axis) for axis in range(axes.rank - 1)]
        return ops.transpose(x, (*back, axes.rank - 1, axes.rank))

    def scores(self, x):
        """(B', N, T', S') -> (batch axes, N, query axes, key axes)."""
        axes = self.axes
        if axes.is_plain:
            return x
        batch = [self.query_shape[axis] for axis in axes.batch_axes]
        lengths = [shape[axis] for shape in (self.query_shape, self.key_shape) for axis in axes.axes]
        return ops.reshape(x, (*batch, x.shape[1], *lengths))
