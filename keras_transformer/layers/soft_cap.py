"""A soft limit on logits."""

import keras
from keras import ops

from keras_transformer.arguments import check_positive_number
from keras_transformer.layers.common import register


@register
class SoftCap(keras.layers.Layer):
    """`cap * tanh(x / cap)`, which keeps numbers between -cap and cap, in float32. Masks are passed on.

    Source: Gemma 2, section 2 (https://arxiv.org/abs/2408.00118).

    Args:
        cap: the limit, above 0.

    Example: `SoftCap(30.0)(logits)`
    """

    def __init__(self, cap, dtype="float32", **kwargs):
        check_positive_number(cap=cap)
        super().__init__(dtype=dtype, **kwargs)
        self.supports_masking = True
        self.cap = cap

    def call(self, inputs):
        x = ops.cast(inputs, "float32")
        return ops.cast(self.cap * ops.tanh(x / self.cap), self.compute_dtype)

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)

    def get_config(self):
        return {**super().get_config(), "cap": self.cap}
