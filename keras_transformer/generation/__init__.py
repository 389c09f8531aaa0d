"""Decoding for any stacked model."""

from keras_transformer.generation.generate import generate, prefill, stream
from keras_transformer.generation.prefix import Prefix
from keras_transformer.generation.processors import Text

__all__ = ["Prefix", "Text", "generate", "prefill", "stream"]
