"""Activations that Keras knows only as an option of another one, under names that can be saved."""

import keras

from keras_transformer.layers.common import register


@register
def gelu_tanh(x):
    """GELU by the hyperbolic tangent, as in GPT-2 and T5 v1.1; "gelu" is the exact one.

    Source: Hendrycks and Gimpel 2016 (https://arxiv.org/abs/1606.08415).

    Example: `FeedForward(2048, activation=gelu_tanh)(x)`
    """
    return keras.activations.gelu(x, approximate=True)
