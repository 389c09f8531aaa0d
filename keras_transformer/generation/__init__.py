"""Decoding for any stacked model."""

from keras_transformer.generation.generate import generate, stream
from keras_transformer.generation.processors import Text

__all__ = ["Text", "generate", "stream"]
