"""Decoding for any stacked model."""

from keras_transformer.generation.generate import generate

__all__ = ["generate"]
