"""Gemma: Llama's wiring with norms around zero and a scaled table of tokens."""

from keras_transformer.convert import heads, llama
from keras_transformer.convert.config import Field, always, same

MODEL_TYPES = ("gemma",)
KIND, HEADS = "ForCausalLM", heads.LLAMA
PREFIX = llama.PREFIX

# Of the first one and those behind it.
COMMON = [
    *llama.SIZES,
    Field("bos_token_id", "start_token_id", default=2),
    Field("eos_token_id", "stop_token_id", default=1),
    *always(zero_centered=True),
    *same(attention_bias="use_bias"),
    Field("hidden_size", "embedding_scale", power=0.5),
    Field("head_dim", "key_dim", default=256),
    Field("tie_word_embeddings", "tie_embeddings", default=True),
    Field("use_bidirectional_attention", None, {None: None, False: None}),
]

FIELDS = [
    *COMMON,
    *same(rope_theta="rotary_base"),
    Field("num_key_value_heads", "num_key_value_heads", default=16),
    # Of the older files "gelu" was meant to be the approximate one.
    Field("hidden_act", "activation", {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu_tanh"}, "gelu_pytorch_tanh"),
    Field("hidden_activation", None, {None: None, "gelu_pytorch_tanh": None}),
    Field("rope_scaling", "rotary_scaling", filled=llama.LENGTH),
    Field("rope_parameters", "rotary_scaling", filled=llama.LENGTH),
    Field("rope_parameters.rope_theta", "rotary_base"),
]

ROWS, IGNORED, TIED = llama.ROWS, llama.IGNORED, llama.TIED
