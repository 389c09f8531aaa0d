"""Llama, whose wiring the next ones share."""

from keras_transformer.convert import heads
from keras_transformer.convert.config import Field, same
from keras_transformer.convert.rows import FROM_HEADS, LINEAR, TABLE, Row, dense, rms_norm, under

MODEL_TYPES = ("llama",)
KIND, HEADS = "ForCausalLM", heads.LLAMA_WITH_ANSWERS
PREFIX = "model."

# Scaled for texts that are longer than this.
LENGTH = ("original_max_position_embeddings", "max_position_embeddings", ("dynamic", "yarn", "llama3"))

SIZES = [
    *same(
        vocab_size="vocabulary_size",
        num_hidden_layers="num_layers",
        num_attention_heads="num_heads",
        num_key_value_heads="num_key_value_heads",
        head_dim="key_dim",
        hidden_size="hidden_dim",
        intermediate_size="intermediate_dim",
    ),
    Field("rms_norm_eps", "norm_epsilon", default=1e-6),
]

# Of Llama, Mistral and Mixtral.
IDS = [Field("bos_token_id", "start_token_id", default=1), Field("eos_token_id", "stop_token_id", default=2)]

COMMON = [
    *SIZES,
    *same(tie_word_embeddings="tie_embeddings", rope_theta="rotary_base"),
    Field("rope_scaling", "rotary_scaling", filled=LENGTH),
    Field("rope_parameters", "rotary_scaling", filled=LENGTH),
    Field("rope_parameters.rope_theta", "rotary_base"),
    Field("hidden_act", "activation", {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}, "silu"),
]

FIELDS = [
    *COMMON,
    *IDS,
    Field("attention_bias", "use_bias", {True: True, False: False}, False),
    Field("mlp_bias", None, {False: None}, False),
]

ATTENTION_AND_FEED_FORWARD = [
    *dense("self_attn.q_proj", "self_attention/query"),
    *dense("self_attn.k_proj", "self_attention/key"),
    *dense("self_attn.v_proj", "self_attention/value"),
    *dense("self_attn.o_proj", "self_attention/attention_output", FROM_HEADS),
    *rms_norm("self_attn.q_norm", "self_attention/query_norm"),
    *rms_norm("self_attn.k_norm", "self_attention/key_norm"),
    *dense("mlp.gate_proj", "feed_forward/gate"),
    *dense("mlp.up_proj", "feed_forward/intermediate"),
    *dense("mlp.down_proj", "feed_forward/output"),
]
AROUND = [
    Row("model.embed_tokens.weight", "embedding/token_embedding/embeddings", TABLE),
    *rms_norm("model.norm", "decoder_norm"),
    Row("lm_head.weight", "logits/kernel", LINEAR),
]
NORMS = [
    *rms_norm("input_layernorm", "self_attention_norm"),
    *rms_norm("post_attention_layernorm", "feed_forward_norm"),
]

ROWS = [*AROUND, *under("model.layers.{i}.", "decoder_block_{i}/", ATTENTION_AND_FEED_FORWARD + NORMS)]

IGNORED = [r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"]  # in older files
TIED = [("lm_head.weight", "model.embed_tokens.weight")]
