"""Gemma 2: sandwich norms, soft caps, and a window in every other layer."""

from keras_transformer.convert import gemma, heads, llama
from keras_transformer.convert.config import Field, always, same
from keras_transformer.convert.rows import rms_norm, under

MODEL_TYPES = ("gemma2",)
KIND, HEADS = "ForCausalLM", heads.LLAMA
PREFIX = llama.PREFIX

# Of the second one and the third.
COMMON = [
    *gemma.COMMON,
    *always(norm_placement="sandwich"),
    Field("num_key_value_heads", "num_key_value_heads", default=4),
    Field("query_pre_attn_scalar", "query_scale", power=-0.5, default=256),
    Field("hidden_activation", "activation", {"gelu_pytorch_tanh": "gelu_tanh"}, "gelu_pytorch_tanh"),
    Field("sliding_window", "sliding_window", default=4096),
]

FIELDS = [
    *COMMON,
    *always(layer_types=("sliding_attention", "full_attention")),
    *same(layer_types="layer_types", rope_theta="rotary_base"),
    Field("attn_logit_softcapping", "attention_soft_cap", default=50.0),
    Field("final_logit_softcapping", "logits_soft_cap", default=30.0),
    Field("rope_scaling", "rotary_scaling", filled=llama.LENGTH),
    Field("rope_parameters", "rotary_scaling", filled=llama.LENGTH),
    Field("rope_parameters.rope_theta", "rotary_base"),
]

NORMS = [
    *rms_norm("input_layernorm", "self_attention_norm"),
    *rms_norm("post_attention_layernorm", "self_attention_output_norm"),
    *rms_norm("pre_feedforward_layernorm", "feed_forward_norm"),
    *rms_norm("post_feedforward_layernorm", "feed_forward_output_norm"),
]

LAYER = llama.ATTENTION_AND_FEED_FORWARD + NORMS
ROWS = [*llama.AROUND, *under("model.layers.{i}.", "decoder_block_{i}/", LAYER)]

IGNORED, TIED = llama.IGNORED, llama.TIED
