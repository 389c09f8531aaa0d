"""The five layers, the small ones they are made of, and the recurrent ones that came before them."""

from keras_transformer.layers.activations import gelu_tanh
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.blocks import DecoderBlock, EncoderBlock
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.heads import AddBias, SpanLogits, StateAtToken, TokensAt
from keras_transformer.layers.last_state import LastState
from keras_transformer.layers.mixture_of_experts import MixtureOfExperts
from keras_transformer.layers.model_card import HeadCard, ModelCard, read_card, read_head
from keras_transformer.layers.normalization import RMSNorm
from keras_transformer.layers.padding_mask import PaddingMask
from keras_transformer.layers.patches import ClassToken, PatchEmbedding
from keras_transformer.layers.pooling import Pooler, SequencePooling
from keras_transformer.layers.position_bias import AlibiBias, RelativePositionBias
from keras_transformer.layers.positional import PositionalEmbedding
from keras_transformer.layers.recurrent import Recurrent
from keras_transformer.layers.recurrent_attention import BahdanauAttention, LuongAttention
from keras_transformer.layers.rotary import Rotary
from keras_transformer.layers.segment_embedding import SegmentEmbedding
from keras_transformer.layers.soft_cap import SoftCap

__all__ = [
    "AddBias",
    "AlibiBias",
    "BahdanauAttention",
    "ClassToken",
    "DecoderBlock",
    "EncoderBlock",
    "FeedForward",
    "HeadCard",
    "LastState",
    "LuongAttention",
    "MixtureOfExperts",
    "ModelCard",
    "MultiHeadAttention",
    "PaddingMask",
    "PatchEmbedding",
    "Pooler",
    "PositionalEmbedding",
    "RMSNorm",
    "Recurrent",
    "RelativePositionBias",
    "Rotary",
    "SegmentEmbedding",
    "SequencePooling",
    "SoftCap",
    "SpanLogits",
    "StateAtToken",
    "TokensAt",
    "gelu_tanh",
    "read_card",
    "read_head",
]
