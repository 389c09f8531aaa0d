"""Writing some slots of a large tensor without copying the others where that can be avoided.

XLA updates in place by itself when nobody else needs the old tensor. PyTorch copies, unless it is told that the old
tensor is not needed any more.
"""

import keras
from keras import ops

from keras_transformer.ops.scope import Scope


class OverwriteScope(Scope):
    """Inside it tensors that are updated may be overwritten: nobody needs them as they were."""


def update_slots(x, index, new, axis):
    """The tensor `x` with `new` from slot `index`, an int or a scalar tensor, of one axis on."""
    if keras.config.backend() == "torch":
        slots = ops.cast(index + ops.arange(new.shape[axis], dtype="int32"), "int64")
        x = x if OverwriteScope.current() else x.clone()
        return x.index_copy_(axis, slots, ops.cast(new, x.dtype))
    start = [index if i == axis else 0 for i in range(len(x.shape))]
    return ops.slice_update(x, start, new)
