"""The rows of a table: which tensor of a checkpoint is which variable of a model, and how it becomes that.

Letters: D features, N heads, H head dim, C channels, P patch size.
"""

import re
from typing import NamedTuple

import numpy as np

LAYER = "{i}"
EXPERT = "{e}"


class Change(NamedTuple):
    """How a tensor of theirs becomes a variable of ours: transposed, then given our shape.

    Attributes:
        inputs: how many axes of ours, from the front, are one axis of theirs; the others are the other one. Negative:
            counted from the end. None: theirs is flat.
        transposed: whether theirs has outputs first, as `torch.nn.Linear`.
        axes: the order of axes of a kernel of a convolution, instead of both.
        leading: whether theirs has one more axis in front, of size 1, instead of all these.
    """

    inputs: int | None = None
    transposed: bool = False
    axes: tuple | None = None
    leading: bool = False

    def their_shape(self, shape):
        """The shape of theirs for one of ours."""
        if self.leading:
            return (1, *shape)
        if self.axes is not None:
            return tuple(shape[self.axes.index(i)] for i in range(len(shape)))
        if self.inputs is None:
            return (int(np.prod(shape)),)
        pair = int(np.prod(shape[: self.inputs])), int(np.prod(shape[self.inputs :]))
        return pair[::-1] if self.transposed else pair

    def to_ours(self, theirs, shape):
        """A tensor of theirs in our shape."""
        if self.axes is not None:
            return theirs.transpose(self.axes)
        return (theirs.T if self.transposed else theirs).reshape(shape)

    def to_theirs(self, ours):
        """A variable of ours in their shape."""
        if self.axes is not None:
            return ours.transpose(np.argsort(self.axes))
        if not self.transposed:
            return ours.reshape(self.their_shape(ours.shape))
        return ours.reshape(self.their_shape(ours.shape)[::-1]).T


FLAT = Change()  # biases (N, H), norms (D,)
TABLE = Change(1)  # embeddings (V, D)
LINEAR = Change(1, transposed=True)  # (D, F), and into heads (D, N, H)
FROM_HEADS = Change(-1, transposed=True)  # out of heads (N, H, D)
LEADING = Change(leading=True)  # tokens or positions (T, D) of one row
CONV1D = Change(1)  # GPT-2 keeps inputs first
CONV1D_FROM_HEADS = Change(-1)
PATCHES = Change(axes=(2, 3, 1, 0))  # (D, C, P, P) to (P, P, C, D)


class Row(NamedTuple):
    """A tensor of a checkpoint and the variable, or the variables one behind the other, that it holds.

    Attributes:
        theirs: its name, with `{i}` for the number of a layer, `{e}` for the index in the first axis of ours.
        ours: the path of the variable, or several, fused along `axis` of theirs.
        change: how it becomes ours.
        axis: of theirs, along which several lie behind each other.
        when, unless: path of another variable, without which, or with which, the row does not take part.
    """

    theirs: str
    ours: str | tuple
    change: Change = FLAT
    axis: int = 0
    when: str | None = None
    unless: str | None = None

    @property
    def paths(self):
        """Our paths, always a tuple."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    def at(self, number):
        """The row of one layer."""
        return self._renamed(lambda name: name.replace(LAYER, number), lambda path: path.replace(LAYER, number))

    @property
    def of_experts(self):
        """Whether each index of the variables' first axis is a tensor of its own."""
        return EXPERT in self.theirs

    def names(self, variables):
        """The names of their tensors: one, or one for each expert."""
        number = variables[self.paths[0]].shape[0] if self.of_experts else 1
        return [self.theirs.replace(EXPERT, str(i)) for i in range(number)]

    def pattern(self):
        """A regular expression for their names, with a group for the number of a layer."""
        return re.escape(self.theirs).replace(re.escape(LAYER), r"(\d+)").replace(re.escape(EXPERT), r"\d+")

    def shapes(self, variables):
        """The shapes of its variables, of one expert."""
        return [tuple(variables[path].shape)[self.of_experts :] for path in self.paths]

    def fits(self, paths):
        """Whether a model with these paths says that the row takes part."""
        return (self.when is None or self.when in paths) and self.unless not in paths

    def _renamed(self, theirs, ours):
        others = {key: path and ours(path) for key, path in (("when", self.when), ("unless", self.unless))}
        return self._replace(theirs=theirs(self.theirs), ours=tuple(map(ours, self.paths)), **others)


def dense(theirs, ours, change=LINEAR):
    """The rows of a dense layer: its kernel and its bias."""
    return [Row(f"{theirs}.weight", f"{ours}/kernel", change), Row(f"{theirs}.bias", f"{ours}/bias")]


def fused(theirs, ours, change=LINEAR):
    """The rows of several dense layers with the same input, kept as one."""
    axis = 0 if change.transposed else 1
    return [
        Row(f"{theirs}.weight", tuple(f"{path}/kernel" for path in ours), change, axis),
        Row(f"{theirs}.bias", tuple(f"{path}/bias" for path in ours)),
    ]


def layer_norm(theirs, ours):
    """The rows of a layer normalisation."""
    return [Row(f"{theirs}.weight", f"{ours}/gamma"), Row(f"{theirs}.bias", f"{ours}/beta")]


def rms_norm(theirs, ours):
    """The row of a root mean square normalisation."""
    return [Row(f"{theirs}.weight", f"{ours}/scale")]


def under(theirs, ours, rows):
    """The rows with something in front of both sides."""
    return [row._renamed(lambda name: theirs + name, lambda path: ours + path) for row in rows]
