"""Pure functions: masks from positions, attention, sinusoids, grids, and the decoding scope with its cache."""

from keras_transformer.ops.attention import attend
from keras_transformer.ops.cache import CannotCache, DecodingScope, current_scope, extend_cache
from keras_transformer.ops.capture import ScoresScope
from keras_transformer.ops.interpolate import interpolate_positions
from keras_transformer.ops.masks import attention_mask, index_positions, token_positions
from keras_transformer.ops.sinusoid import sinusoidal_positions

__all__ = [
    "CannotCache",
    "DecodingScope",
    "ScoresScope",
    "attend",
    "attention_mask",
    "current_scope",
    "extend_cache",
    "index_positions",
    "interpolate_positions",
    "sinusoidal_positions",
    "token_positions",
]
