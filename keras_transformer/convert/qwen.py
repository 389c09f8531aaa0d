"""Qwen 2, Llama with biases of queries, keys and values, and Qwen 3, Llama with their norms."""

from keras_transformer.convert import heads, llama
from keras_transformer.convert.config import Field, same

MODEL_TYPES = ("qwen2", "qwen3")
KIND, HEADS = "ForCausalLM", heads.LLAMA_WITH_ANSWERS
PREFIX = llama.PREFIX

FIELDS = [
    *llama.COMMON,
    *same(bos_token_id="start_token_id", eos_token_id="stop_token_id"),
    *same(sliding_window="sliding_window", layer_types="layer_types"),
    Field("attention_bias", "use_bias", {True: True, False: False}, False),
    Field("model_type", "use_bias", {"qwen2": ("query", "key", "value"), "qwen3": None}),
    Field("model_type", "qk_norm", {"qwen2": None, "qwen3": True}),
    # Which layers slide depends on their number where this is on, so only a list of them says it.
    Field("use_sliding_window", "layer_types", {False: ("full_attention",)}, False, unless="layer_types"),
    Field("num_key_value_heads", "num_key_value_heads", default=32),
]

# What `transformers` wants to be told beside an argument.
BESIDE = {"sliding_window": {"use_sliding_window": True}}

ROWS, IGNORED, TIED = llama.ROWS, llama.IGNORED, llama.TIED
