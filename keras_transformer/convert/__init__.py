"""Published checkpoints: one declarative table per family, read in both directions."""

from keras_transformer.convert.adapters import load_adapter, save_adapter
from keras_transformer.convert.describe import describe
from keras_transformer.convert.keras_hub import from_keras_hub
from keras_transformer.convert.pretrained import load_pretrained, save_pretrained
from keras_transformer.convert.tokenizer import load_tokenizer

__all__ = [
    "describe",
    "from_keras_hub",
    "load_adapter",
    "load_pretrained",
    "load_tokenizer",
    "save_adapter",
    "save_pretrained",
]
