"""The five layers, the small ones they are made of, and the recurrent ones that came before them."""

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.last_state import LastState
from keras_transformer.layers.model_card import ModelCard, read_card
from keras_transformer.layers.normalization import RMSNorm
from keras_transformer.layers.positional import PositionalEmbedding
from keras_transformer.layers.recurrent import Recurrent
from keras_transformer.layers.recurrent_attention import BahdanauAttention, LuongAttention

__all__ = [
    "BahdanauAttention",
    "DecoderBlock",
    "EncoderBlock",
    "FeedForward",
    "LastState",
    "LuongAttention",
    "ModelCard",
    "MultiHeadAttention",
    "PositionalEmbedding",
    "RMSNorm",
    "Recurrent",
    "read_card",
]
