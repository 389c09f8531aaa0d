"""The weights of a model as they are now."""

import zlib

import numpy as np
from keras import ops


def bring_back(model):
    """Put the weights back into a model that is being fitted, for a callback to use.

    On JAX `fit` keeps them outside until the epoch ends: meanwhile the model has none, or old ones.
    """
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def fingerprint(model):
    """A tuple that differs when any weight of the model does, or when there are others (LoRA, int8).

    It reads every weight once, about as much work as writing one token.
    """
    return tuple(_checksum(variable) for variable in getattr(model, "weights", ()))


def _checksum(variable):
    array = np.ascontiguousarray(ops.convert_to_numpy(variable.value))
    return array.shape, str(array.dtype), zlib.crc32(array.view("uint8"))
