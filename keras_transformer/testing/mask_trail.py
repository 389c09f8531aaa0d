"""Where on its way through a functional model the padding mask is lost."""

import keras
from keras import ops

from keras_transformer.layers.position_bias import PositionBias


def where_the_mask_ends(model, inputs):
    """A sentence that names the first operation whose input has a mask and whose output has none; "" if none is found.

    Only steps that keep the length are named: pooling over time ends the mask rightly, and so does a position bias.
    """
    if not isinstance(model, keras.Model) or not hasattr(model, "operations"):
        return ""
    steps = [operation for operation in model.operations if not isinstance(operation, keras.layers.InputLayer)]
    tensors = [keras.tree.flatten(_tensors(operation)) for operation in steps]
    trail = keras.Model(model.inputs, [both for pair in tensors for both in pair])
    values = trail(_by_order(model, inputs), training=False)
    position = 0
    for operation, pair in zip(steps, tensors, strict=True):
        seen = values[position : position + len(pair)]
        position += len(pair)
        num_outputs = len(keras.tree.flatten(keras.Operation.output.fget(operation)))
        before, after = seen[:-num_outputs], seen[-num_outputs:]
        lost = any(_mask(x) is not None for x in before) and all(_mask(x) is None for x in after)
        if lost and any(len(x.shape) > 2 for x in after) and not isinstance(operation, PositionBias):
            kind = type(operation).__name__
            return (
                f" The padding mask ends at {operation.name!r} ({kind}): it takes a masked input and passes no mask on."
            )
    return ""


def _tensors(operation):
    return [keras.Operation.input.fget(operation), keras.Operation.output.fget(operation)]


def _by_order(model, inputs):
    inputs = keras.tree.map_structure(ops.convert_to_tensor, inputs)
    return [inputs[tensor.name] for tensor in model.inputs] if isinstance(inputs, dict) else [inputs]


def _mask(x):
    return getattr(x, "_keras_mask", None)
