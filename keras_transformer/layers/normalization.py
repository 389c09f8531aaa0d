"""Normalisation layers that keep masks."""

import keras
from keras import ops

from keras_transformer.arguments import check_positive_number
from keras_transformer.layers.common import check_choice, register


@register
class RMSNorm(keras.layers.Layer):
    """Root mean square normalisation: `x / sqrt(mean(x ** 2) + epsilon) * scale`, computed in float32.

    Source: Zhang and Sennrich 2019 (https://arxiv.org/abs/1910.07467). Unlike `keras.layers.RMSNormalization` it
    passes the padding mask on.

    Args:
        epsilon: added to the mean square, above 0.
        zero_centered: the weight is how far the scale is from 1: `* (1 + scale)`, as in Gemma. Weight decay then pulls
            to 1, and 16 bits hold it more exactly.

    Example: `RMSNorm(epsilon=1e-6)(x)` with x (B, ..., D).
    """

    def __init__(self, epsilon=1e-6, zero_centered=False, **kwargs):
        check_positive_number(epsilon=epsilon)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.epsilon = epsilon
        self.zero_centered = bool(zero_centered)

    def build(self, inputs_shape):
        if inputs_shape[-1] is None:
            raise ValueError(f"{self.name} expects known features. Received: inputs.shape={tuple(inputs_shape)}")
        initializer = "zeros" if self.zero_centered else "ones"
        self.scale = self.add_weight((inputs_shape[-1],), initializer=initializer, name="scale", autocast=False)
        self.built = True

    def call(self, inputs):
        x = ops.cast(inputs, "float32")
        x = x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + self.epsilon)
        scale = ops.cast(self.scale, "float32")
        return ops.cast(x * (1 + scale if self.zero_centered else scale), self.compute_dtype)

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon, "zero_centered": self.zero_centered}


def check_norm(norm, name="norm"):
    """Refuse anything but the name of a norm or the serialised form of a layer."""
    if not isinstance(norm, dict):
        check_choice(("layer", "rms"), **{name: norm})


def make_norm(norm, epsilon, name, dtype):
    """A normalisation layer from `"layer"`, `"rms"`, or the serialised form of a layer, which is the pattern."""
    check_norm(norm)
    if isinstance(norm, dict):
        pattern = keras.saving.deserialize_keras_object(dict(norm))
        return pattern.__class__.from_config({**pattern.get_config(), "name": name})
    if norm == "rms":
        return RMSNorm(epsilon, name=name, dtype=dtype)
    return keras.layers.LayerNormalization(epsilon=epsilon, name=name, dtype=dtype)
