"""Declarative tables between a checkpoint's tensors and a model's variables, read in both directions.

A table is a list of rows (their name, our variable path, reversible change). `{i}` stands for the number of a layer,
`{e}` for that of an expert, whose tensors are one variable of ours.
A row takes part if the model has its variables, so one table serves every option of a family; what is missing on
either side is an error, never a guess.

Letters: D features, N heads, H head dim, C channels, P patch size.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.convert.lora import is_adapter, merged

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


def match(rows: Sequence[Row], paths):
    """The rows that a model with these variable paths has, `{i}` filled in.

    Raises:
        ValueError: a variable is in no row, in two, or a row has only some of its variables.
    """
    found, taken = [], {}
    for row in rows:
        for number in _numbers(row.paths[0], paths):
            filled = row.at(number)
            if not filled.fits(paths):
                continue
            missing = [path for path in filled.paths if path not in paths]
            if missing:
                raise ValueError(f"{filled.theirs} holds {filled.paths}, of which the model lacks {missing}.")
            for path in filled.paths:
                if path in taken:
                    raise ValueError(f"The variable {path} is in two rows: {taken[path]} and {filled.theirs}.")
                taken[path] = filled.theirs
            found.append(filled)
    left = [path for path in paths if path not in taken]
    if left:
        raise ValueError(f"The table has no row for these variables: {left}")
    return found


def _numbers(pattern, paths):
    """What `{i}` may stand for, "" where there is none."""
    if LAYER not in pattern:
        return [""] if pattern in paths else []
    found = (re.fullmatch(re.escape(pattern).replace(re.escape(LAYER), r"(\d+)"), path) for path in paths)
    return [match[1] for match in found if match]


def load(model, tensors, rows, ignored=(), prefix="", tied=(), zeros=()):
    """Give a model's variables the values of a checkpoint's tensors.

    Args:
        model: a functional model, built.
        tensors: mapping from name to array, or to what has a `shape` and becomes an array when it is needed.
        rows: the family's table.
        ignored: regular expressions of names that need not be used.
        prefix: what names may lack: a model without its head is saved without it.
        tied: pairs of names; the first, where no row uses it, must hold what the second does.
        zeros: those of names that need not be used if there is nothing but zeros.

    Raises:
        ValueError: a tensor is missing, of another shape, or used by no row. Nothing is changed then.
    """
    tensors = _as_in_table(tensors, rows, ignored, prefix)
    variables = {variable.path: variable for variable in model.variables if not _is_seed(variable)}
    rows, unused = match(rows, variables), set(tensors)
    for row in rows:
        for name in row.names(variables):
            if name not in tensors:
                raise ValueError(f"The checkpoint has no tensor {name!r}, which holds {', '.join(row.paths)}.")
            check_shape(row, name, tensors[name], variables)
            unused.discard(name)
    for name, twin in tied:
        if name in unused and twin in tensors:
            if not np.array_equal(tensors[name], tensors[twin]):
                raise ValueError(f"{name!r} is not {twin!r}, which the model has in its place: they are not tied.")
            unused.discard(name)
    unused -= {name for name in _named(zeros, unused) if not np.any(tensors[name])}
    left = sorted(unused - _named(ignored, unused))
    if left:
        raise ValueError(f"The model has no place for these tensors: {left}")
    for row in rows:  # one tensor after another, as a model may take most of the memory
        parts = [parts_of(row, tensors[name], variables) for name in row.names(variables)]
        for path, *of_each in zip(row.paths, *parts, strict=True):
            variables[path].assign(np.stack(of_each) if row.of_experts else of_each[0])


def _named(patterns, names):
    return {name for name in names if any(re.fullmatch(pattern, name) for pattern in patterns)}


def save(model, rows):
    """A model's variables as a checkpoint's tensors: {their name: array}; adapters are added to their kernels."""
    variables = {path: ops.convert_to_numpy(variable) for path, variable in own_variables(model).items()} | merged(
        model
    )
    tensors = {}
    for row in match(rows, variables):
        values = [variables[path] for path in row.paths]
        for i, name in enumerate(row.names(variables)):
            parts = [row.change.to_theirs(value[i] if row.of_experts else value) for value in values]
            tensors[name] = parts[0] if len(parts) == 1 else np.concatenate(parts, row.axis)
    return tensors


def own_variables(model):
    """{path: variable} of those that a checkpoint holds: neither seeds nor adapters."""
    return {x.path: x for x in model.variables if not (_is_seed(x) or is_adapter(x.path))}


def _as_in_table(tensors, rows, ignored, prefix):
    """The tensors under the names of the table, which have the prefix, and no older names of norms."""
    known = re.compile("|".join(f"(?:{pattern})" for pattern in [*(row.pattern() for row in rows), *ignored]))
    found = {}
    for name in tensors:
        newer = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        names = (name, prefix + name, newer, prefix + newer)
        found.setdefault(next(filter(known.fullmatch, names), name), []).append(name)
    twice = sorted(name for names in found.values() if len(names) > 1 for name in names)
    if twice:
        raise ValueError(
            f"The checkpoint has these tensors twice, with and without {prefix!r} or by older names: {twice}"
        )
    return {name: tensors[names[0]] for name, names in found.items()}


def _sizes(row, variables):
    """The shapes that a row's variables have, of theirs."""
    return [row.change.their_shape(shape) for shape in row.shapes(variables)]


def check_shape(row, name, theirs, variables):
    """Refuse a tensor that cannot be the one of a row."""
    expected = _sizes(row, variables)
    whole = tuple(sum(x[row.axis] for x in expected) if i == row.axis else n for i, n in enumerate(expected[0]))
    if tuple(np.shape(theirs)) != whole:
        raise ValueError(f"The tensor {name!r} must have shape {whole}. Received: {tuple(np.shape(theirs))}")


def parts_of(row, theirs, variables):
    """What a row's tensor says for each of its variables, in their shapes."""
    ends = np.cumsum([shape[row.axis] for shape in _sizes(row, variables)])
    pieces = np.split(np.asarray(theirs), ends[:-1], row.axis)
    return [row.change.to_ours(piece, shape) for piece, shape in zip(pieces, row.shapes(variables), strict=True)]


def _is_seed(variable):
    return variable.path.endswith("seed_generator_state")
