"""Published checkpoints: one declarative table per family, read in both directions."""

from keras_transformer.convert.pretrained import load_pretrained, save_pretrained

__all__ = ["load_pretrained", "save_pretrained"]
