"""The invariants of a transformer, for anybody's model."""

from keras_transformer.testing.check import check

__all__ = ["check"]
