"""Variables that begin with what a checkpoint holds, instead of with random numbers that it then replaces.

Drawing the numbers takes longer than reading a checkpoint, and keeping both until one is copied to the other takes
twice the memory. Inside a `keras.StatelessScope` a layer makes variables that have a shape and no value yet; as the
scope ends each is made by its initializer, so that is where the checkpoint comes in.
"""

import contextlib
import functools

import numpy as np
from keras import ops


class FirstValues:
    """Reads the first values of a model's variables as the scope ends in which they were made.

    Args:
        model: the model, made in the scope that still lasts.
        values: {path of a variable: function that reads its value, an array}; what is read is taken out.
    """

    def __init__(self, model, values):
        self.model, self.values, self.error = model, values, None
        for variable in model.variables:
            if variable.path in values:
                # Keras has no public name for it. Where this one means nothing, `finish` does all the work.
                variable._initializer = functools.partial(self._read, variable.path)

    def finish(self):
        """After the scope: what could not be read is an error now, and PyTorch is shown all variables."""
        if self.error is not None:
            raise self.error
        for variable in self.model.variables:
            if variable.path in self.values:
                variable.assign(self.values.pop(variable.path)())
        for layer in self.model._flatten_layers():
            getattr(layer, "torch_params", None)  # made when first asked for, which Keras leaves out in the scope

    def _read(self, path, shape, dtype=None):
        if self.error is None:
            try:
                value = ops.convert_to_tensor(np.ascontiguousarray(self.values[path]()), dtype)
                del self.values[path]
                return value
            except BaseException as error:  # Ctrl-C too: Keras makes no model any more once one variable was left out
                self.error = error
        return _nothing(shape, dtype)


@contextlib.contextmanager
def abandoned_on_error(model):
    """Inside a scope: `abandon` the model where an error leaves it."""
    try:
        yield
    except BaseException:
        abandon(model)
        raise


def abandon(model):
    """Let the variables of a model that nobody will use begin with no number at all as the scope ends.

    Left without values, they would be filled at the end of the next scope of the process, for nothing.
    """
    for variable in model.variables:
        variable._initializer = _nothing


def _nothing(shape, dtype=None):
    return ops.zeros((0,), dtype)
