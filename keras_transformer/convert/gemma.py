"""Gemma 2 and the text part of Gemma 3."""

from keras_transformer.convert import heads
from keras_transformer.convert.config import Field, always, same
from keras_transformer.convert.llama import AROUND, ATTENTION_AND_FEED_FORWARD, LENGTH, SIZES
from keras_transformer.convert.rows import rms_norm, under

MODEL_TYPES = ("gemma2", "gemma3_text")
KIND, HEADS = "ForCausalLM", heads.LLAMA
PREFIX = "model."

# How layers alternate where the config does not say it layer by layer.
ALTERNATE = ("sliding_attention", "full_attention")
FIVE_TO_ONE = ("sliding_attention",) * 5 + ("full_attention",)

FIELDS = [
    *SIZES,
    *always(norm_placement="sandwich", zero_centered=True),
    Field("hidden_size", "embedding_scale", power=0.5),
    Field("query_pre_attn_scalar", "query_scale", power=-0.5, default=256),
    Field("hidden_activation", "activation", {"gelu_pytorch_tanh": "gelu_tanh"}, "gelu_pytorch_tanh"),
    Field("tie_word_embeddings", "tie_embeddings", default=True),
    Field("model_type", "qk_norm", {"gemma2": None, "gemma3_text": True}),
    Field("model_type", "rotary_base", {"gemma2": 10000.0, "gemma3_text": 1000000.0}),
    Field("model_type", "local_rotary_base", {"gemma2": None, "gemma3_text": 10000.0}),
    Field("model_type", "layer_types", {"gemma2": ALTERNATE, "gemma3_text": FIVE_TO_ONE}),
    Field("sliding_window_pattern", None, {None: None, 6: None}, unless="layer_types"),
    *same(
        attention_bias="use_bias",
        attn_logit_softcapping="attention_soft_cap",
        final_logit_softcapping="logits_soft_cap",
        sliding_window="sliding_window",
        layer_types="layer_types",
        rope_theta="rotary_base",
        rope_local_base_freq="local_rotary_base",
    ),
    Field("rope_scaling", "rotary_scaling", filled=LENGTH),
    Field("rope_parameters", "rotary_scaling", unless="rope_parameters.full_attention", filled=LENGTH),
    Field("rope_parameters.rope_theta", "rotary_base"),
    Field("rope_parameters.full_attention", "rotary_scaling", filled=LENGTH),
    Field("rope_parameters.full_attention.rope_theta", "rotary_base"),
    Field("rope_parameters.sliding_attention.rope_theta", "local_rotary_base"),
    Field("rope_parameters.sliding_attention.rope_type", None, {"default": None}, "default"),
    Field("use_bidirectional_attention", None, {None: None, False: None}),
]

NORMS = [
    *rms_norm("input_layernorm", "self_attention_norm"),
    *rms_norm("post_attention_layernorm", "self_attention_output_norm"),
    *rms_norm("pre_feedforward_layernorm", "feed_forward_norm"),
    *rms_norm("post_feedforward_layernorm", "feed_forward_output_norm"),
]

ROWS = [*AROUND, *under("model.layers.{i}.", "decoder_block_{i}/", ATTENTION_AND_FEED_FORWARD + NORMS)]

IGNORED = []
TIED = [("lm_head.weight", "model.embed_tokens.weight")]
