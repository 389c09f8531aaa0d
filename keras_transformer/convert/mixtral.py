"""Mixtral: Mistral whose feed-forward networks are mixtures of experts."""

from keras_transformer.convert import heads, llama
from keras_transformer.convert.config import Field, same
from keras_transformer.convert.rows import LINEAR, Row, under

MODEL_TYPES = ("mixtral",)
KIND, HEADS = "ForCausalLM", heads.MISTRAL
PREFIX = "model."

FIELDS = [
    Field("rope_theta", "rotary_base", default=1e6),
    *(field for field in llama.COMMON if field.theirs != "rope_theta"),
    *same(sliding_window="sliding_window"),
    *llama.IDS,
    Field("num_key_value_heads", "num_key_value_heads", default=8),
    Field("rms_norm_eps", "norm_epsilon", default=1e-5),
    Field("num_local_experts", "num_experts", default=8),
    Field("num_experts_per_tok", "num_experts_per_token", default=2),
    Field("router_jitter_noise", None, {0: None}, 0),
]

# The names are those in files; in memory transformers 5 has others, and all experts in one.
EXPERTS = [
    Row("gate.weight", "router_kernel", LINEAR),
    Row("experts.{e}.w1.weight", "gate_kernel", LINEAR),
    Row("experts.{e}.w3.weight", "intermediate_kernel", LINEAR),
    Row("experts.{e}.w2.weight", "output_kernel", LINEAR),
]

OF_LAYER = [row for row in llama.ATTENTION_AND_FEED_FORWARD if not row.theirs.startswith("mlp.")]
OF_LAYER += [*llama.NORMS, *under("block_sparse_moe.", "feed_forward/", EXPERTS)]

ROWS = [*llama.AROUND, *under("model.layers.{i}.", "decoder_block_{i}/", OF_LAYER)]

IGNORED = llama.IGNORED
TIED = llama.TIED
