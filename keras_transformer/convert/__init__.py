"""Published checkpoints: one declarative table per family, read in both directions."""

from keras_transformer.convert.pretrained import load_pretrained

__all__ = ["load_pretrained"]
