"""keras_transformer: layers, models and decoding for transformers in Keras 3."""

from keras_transformer import layers, models, ops

__version__ = "0.1.0"

__all__ = ["layers", "models", "ops"]
