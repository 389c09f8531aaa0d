"""Activations that Keras has no name for, by name and in saved models."""

import keras

from keras_transformer.layers.common import PACKAGE


@keras.saving.register_keras_serializable(package=PACKAGE)
def gelu_tanh(x):
    """GELU by its approximation with tanh: GPT-2 (`gelu_new`), T5 1.1, Gemma. Keras' "gelu" is the exact one.

    Source: Hendrycks and Gimpel 2016, section 2 (https://arxiv.org/abs/1606.08415).
    """
    return keras.activations.gelu(x, approximate=True)


NAMED = {"gelu_tanh": gelu_tanh}


def get_activation(identifier):
    """A function from a name, of Keras' or of `NAMED`, from a saved configuration, or from a function."""
    if isinstance(identifier, str) and identifier in NAMED:
        return NAMED[identifier]
    return keras.activations.get(identifier)
