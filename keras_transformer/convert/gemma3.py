"""The text part of Gemma 3: Gemma 2 with norms of queries and keys, and rotary positions of two kinds."""

from keras_transformer.convert import gemma2, heads, llama
from keras_transformer.convert.config import Field, always, same

MODEL_TYPES = ("gemma3_text",)
KIND, HEADS = "ForCausalLM", heads.GEMMA_3
PREFIX = llama.PREFIX

# How layers alternate where the config does not say it layer by layer.
FIVE_TO_ONE = ("sliding_attention",) * 5 + ("full_attention",)

FIELDS = [
    *gemma2.COMMON,
    *always(qk_norm=True, rotary_base=1000000.0, local_rotary_base=10000.0, layer_types=FIVE_TO_ONE),
    Field("sliding_window_pattern", None, {None: None, 6: None}, unless="layer_types"),
    *same(
        attn_logit_softcapping="attention_soft_cap",
        final_logit_softcapping="logits_soft_cap",
        layer_types="layer_types",
        rope_theta="rotary_base",
        rope_local_base_freq="local_rotary_base",
    ),
    Field("rope_scaling", "rotary_scaling", filled=llama.LENGTH),
    Field("rope_parameters", "rotary_scaling", unless="rope_parameters.full_attention", filled=llama.LENGTH),
    Field("rope_parameters.rope_theta", "rotary_base"),
    Field("rope_parameters.full_attention", "rotary_scaling", filled=llama.LENGTH),
    Field("rope_parameters.full_attention.rope_theta", "rotary_base"),
    Field("rope_parameters.sliding_attention.rope_theta", "local_rotary_base"),
    Field("rope_parameters.sliding_attention.rope_type", None, {"default": None}, "default"),
]

ROWS, IGNORED, TIED = gemma2.ROWS, gemma2.IGNORED, gemma2.TIED
