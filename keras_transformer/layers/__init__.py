"""The five layers, and the small ones they are made of."""

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.model_card import ModelCard, read_card
from keras_transformer.layers.normalization import RMSNorm
from keras_transformer.layers.position_bias import AlibiBias, RelativePositionBias
from keras_transformer.layers.positional import PositionalEmbedding
from keras_transformer.layers.rotary import Rotary

__all__ = [
    "AlibiBias",
    "DecoderBlock",
    "EncoderBlock",
    "FeedForward",
    "ModelCard",
    "MultiHeadAttention",
    "PositionalEmbedding",
    "RMSNorm",
    "RelativePositionBias",
    "Rotary",
    "read_card",
]
