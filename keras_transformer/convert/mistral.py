"""Mistral: Llama with a window."""

from keras_transformer.convert import heads, llama
from keras_transformer.convert.config import same

MODEL_TYPES = ("mistral",)
KIND, HEADS = "ForCausalLM", heads.LLAMA
PREFIX = llama.PREFIX

FIELDS = [*llama.COMMON, *same(sliding_window="sliding_window")]

ROWS, IGNORED, TIED = llama.ROWS, llama.IGNORED, llama.TIED
