"""GPT-2."""

from keras_transformer.convert import heads
from keras_transformer.convert.config import Field, same
from keras_transformer.convert.rows import (
    CONV1D,
    CONV1D_FROM_HEADS,
    LINEAR,
    TABLE,
    Row,
    dense,
    fused,
    layer_norm,
    under,
)

MODEL_TYPES = ("gpt2",)
KIND, HEADS = "LMHeadModel", heads.GPT_2
PREFIX = "transformer."

FIELDS = [
    Field("bos_token_id", "start_token_id", default=50256),
    Field("eos_token_id", "stop_token_id", default=50256),
    *same(
        vocab_size="vocabulary_size",
        n_positions="max_sequence_length",
        n_layer="num_layers",
        n_embd="hidden_dim",
        n_head="num_heads",
        resid_pdrop="dropout",
        layer_norm_epsilon="norm_epsilon",
    ),
    Field("n_embd", "intermediate_dim", times=4),
    Field("n_inner", "intermediate_dim"),
    Field(
        "activation_function",
        "activation",
        {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu"},
        "gelu_new",
    ),
    Field("scale_attn_weights", None, {True: None}, True),
    Field("scale_attn_by_inverse_layer_idx", None, {False: None}, False),
    Field("add_cross_attention", None, {False: None}, False),
    Field("tie_word_embeddings", "tie_embeddings", default=True),
]

ROWS = under(
    "transformer.",
    "",
    [
        Row("wte.weight", "embedding/token_embedding/embeddings", TABLE),
        Row("wpe.weight", "embedding/position_embeddings", TABLE),
        *under(
            "h.{i}.",
            "decoder_block_{i}/",
            [
                *layer_norm("ln_1", "self_attention_norm"),
                *fused("attn.c_attn", [f"self_attention/{name}" for name in ("query", "key", "value")], CONV1D),
                *dense("attn.c_proj", "self_attention/attention_output", CONV1D_FROM_HEADS),
                *layer_norm("ln_2", "feed_forward_norm"),
                *dense("mlp.c_fc", "feed_forward/intermediate", CONV1D),
                *dense("mlp.c_proj", "feed_forward/output", CONV1D),
            ],
        ),
        *layer_norm("ln_f", "decoder_norm"),
    ],
)

ROWS.append(Row("lm_head.weight", "logits/kernel", LINEAR))

IGNORED = [r"transformer\.h\.\d+\.attn\.(masked_)?bias"]  # causal masks that older files hold
TIED = [("lm_head.weight", "transformer.wte.weight")]
