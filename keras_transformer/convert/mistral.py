"""Mistral: Llama with a window."""

from keras_transformer.convert import heads, llama
from keras_transformer.convert.config import Field

MODEL_TYPES = ("mistral",)
KIND, HEADS = "ForCausalLM", heads.MISTRAL
PREFIX = llama.PREFIX

FIELDS = [
    *llama.COMMON,
    *llama.IDS,
    Field("num_key_value_heads", "num_key_value_heads", default=8),
    Field("sliding_window", "sliding_window", default=4096),
]

ROWS, IGNORED, TIED = llama.ROWS, llama.IGNORED, llama.TIED
