"""keras_transformer: layers, models and decoding for transformers in Keras 3."""

from keras_transformer import convert, data, inspect, layers, models, objectives, ops, testing, training
from keras_transformer.data import shift_right
from keras_transformer.generation import generate, prefill, stream

__version__ = "0.1.0"

__all__ = [
    "convert",
    "data",
    "generate",
    "inspect",
    "layers",
    "models",
    "objectives",
    "ops",
    "prefill",
    "shift_right",
    "stream",
    "testing",
    "training",
]
