"""The low-rank adapters that Keras has put beside the kernels of a model.

Source: Hu et al. 2021, "LoRA" (https://arxiv.org/abs/2106.09685).
"""

import numpy as np
from keras import ops

from keras_transformer.layers import DecoderBlock, EncoderBlock

FIRST, SECOND = "lora_kernel_a", "lora_kernel_b"


def adapters_of(model):
    """{path of a kernel: the two factors of what is added to it, the scale within}, float32.

    The first factor has all axes of the kernel but the last, then the rank; the second has the rank and the last axis.
    """
    found = {}
    for layer in _walk(model):
        if getattr(layer, "lora_enabled", False) and hasattr(layer, FIRST):
            first, second = (ops.convert_to_numpy(getattr(layer, name)).astype("float32") for name in (FIRST, SECOND))
            path = getattr(layer, FIRST).path.replace(FIRST, "kernel")
            found[path] = first, second * np.float32(layer.lora_alpha / layer.lora_rank)
    return found


def _walk(layer):
    """The layers in a model, in its nested ones, and in ours."""
    children = [*getattr(layer, "layers", ()), *getattr(layer, "sublayers", ())]
    if isinstance(layer, (EncoderBlock, DecoderBlock)):
        children += [layer.self_attention, getattr(layer, "cross_attention", None), layer.feed_forward]
    for child in children:
        if child is not None:
            yield child
            yield from _walk(child)


def merged(model):
    """{path: values} of the kernels that have an adapter, with it added."""
    found, variables = {}, {variable.path: variable for variable in model.variables}
    for path, (first, second) in adapters_of(model).items():
        kernel = ops.convert_to_numpy(variables[path])
        found[path] = (kernel.astype("float32") + first @ second).astype(kernel.dtype)
    return found


def is_adapter(path):
    """Whether the variable of this path is a factor of an adapter."""
    return path.endswith((FIRST, SECOND))
