"""Phi-3: Llama's wiring, whose projections with the same input are one tensor each."""

from keras_transformer.convert import heads, llama
from keras_transformer.convert.config import Field, same
from keras_transformer.convert.rows import FROM_HEADS, LINEAR, Row, dense, under

MODEL_TYPES = ("phi3",)
KIND, HEADS = "ForCausalLM", heads.LLAMA
PREFIX = "model."

FIELDS = [
    *llama.COMMON,
    Field("bos_token_id", "start_token_id", default=1),
    Field("eos_token_id", "stop_token_id", default=32000),
    *same(sliding_window="sliding_window", resid_pdrop="dropout", partial_rotary_factor="rotary_fraction"),
    Field("rms_norm_eps", "norm_epsilon", default=1e-5),
    Field("rope_parameters.partial_rotary_factor", "rotary_fraction"),
]

LAYER = [
    Row(
        "self_attn.qkv_proj.weight",
        tuple(f"self_attention/{name}/kernel" for name in ("query", "key", "value")),
        LINEAR,
    ),
    *dense("self_attn.o_proj", "self_attention/attention_output", FROM_HEADS),
    Row("mlp.gate_up_proj.weight", ("feed_forward/gate/kernel", "feed_forward/intermediate/kernel"), LINEAR),
    *dense("mlp.down_proj", "feed_forward/output"),
    *llama.NORMS,
]

ROWS = [*llama.AROUND, *under("model.layers.{i}.", "decoder_block_{i}/", LAYER)]

IGNORED = llama.IGNORED
TIED = llama.TIED
