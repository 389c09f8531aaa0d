"""Declarative tables between a checkpoint's tensors and a model's variables, read in both directions.

A table is a list of rows (their name, our variable path, reversible change). `{i}` stands for the number of a layer,
`{e}` for that of an expert, whose tensors are one variable of ours.
A row takes part if the model has its variables, so one table serves every option of a family; what is missing on
either side is an error, never a guess.
"""

import functools
import re
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_transformer.convert.lora import is_adapter, merged
from keras_transformer.convert.rows import LAYER, Row


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
    """Give a built model's variables the values of a checkpoint's tensors, one after another: see `values_of`."""
    values = values_of(model, tensors, rows, ignored, prefix, tied, zeros)
    for variable in model.variables:
        if variable.path in values:
            variable.assign(values.pop(variable.path)())


def values_of(model, tensors, rows, ignored=(), prefix="", tied=(), zeros=()):
    """What a checkpoint's tensors say for each variable of a model, checked and not read yet.

    Args:
        model: a functional model, whose variables need no values.
        tensors: mapping from name to array, or to what has a `shape` and becomes an array when it is needed.
        rows: the family's table.
        ignored: regular expressions of names that need not be used.
        prefix: what names may lack: a model without its head is saved without it.
        tied: pairs of names; the first, where no row uses it, must hold what the second does.
        zeros: those of names that need not be used if there is nothing but zeros.

    Returns:
        {path of the variable: function that reads its value, to be called once}. A tensor of several variables is read
        for the first of them and kept up to the last.

    Raises:
        ValueError: a tensor is missing, of another shape, or used by no row.
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
    readers = [(row, _Reader(row, tensors, variables)) for row in rows]
    return {path: functools.partial(reader, path) for row, reader in readers for path in row.paths}


class _Reader:
    """Reads what a row says for its variables."""

    def __init__(self, row, tensors, variables):
        self.row, self.tensors, self.variables, self.left = row, tensors, variables, {}

    def __call__(self, path):
        if path not in self.left:
            names = self.row.names(self.variables)
            parts = [parts_of(self.row, self.tensors[name], self.variables) for name in names]
            self.left = dict(zip(self.row.paths, zip(*parts, strict=True), strict=True))
        of_each = self.left.pop(path)
        return np.stack(of_each) if self.row.of_experts else of_each[0]


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
    found = {}
    for name, in_table in names_in_table(tensors, rows, ignored, prefix).items():
        found.setdefault(in_table, []).append(name)
    twice = sorted(name for names in found.values() if len(names) > 1 for name in names)
    if twice:
        raise ValueError(
            f"The checkpoint has these tensors twice, with and without {prefix!r} or by older names: {twice}"
        )
    return {name: tensors[names[0]] for name, names in found.items()}


def names_in_table(names, rows, ignored=(), prefix=""):
    """{name of a tensor: what it is called in the table}, where there may be a prefix, or a newer name of a norm."""
    known = re.compile("|".join(f"(?:{pattern})" for pattern in [*(row.pattern() for row in rows), *ignored]))
    found = {}
    for name in names:
        newer = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        found[name] = next(filter(known.fullmatch, (name, prefix + name, newer, prefix + newer)), name)
    return found


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
