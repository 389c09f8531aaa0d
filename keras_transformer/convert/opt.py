"""OPT: GPT-2's wiring with ReLU, and positions that begin at the third row of their table."""

from keras_transformer.convert import heads
from keras_transformer.convert.config import Field, always, same
from keras_transformer.convert.rows import FROM_HEADS, LINEAR, TABLE, Row, dense, layer_norm, under

MODEL_TYPES = ("opt",)
KIND, HEADS = "ForCausalLM", heads.OPT
PREFIX = "model."

FIELDS = [
    Field("bos_token_id", "start_token_id", default=2),
    Field("eos_token_id", "stop_token_id", default=2),
    *same(
        vocab_size="vocabulary_size",
        max_position_embeddings="max_sequence_length",
        num_hidden_layers="num_layers",
        hidden_size="hidden_dim",
        num_attention_heads="num_heads",
        ffn_dim="intermediate_dim",
        dropout="dropout",
    ),
    *always(position_offset=2),
    Field("enable_bias", "use_bias", {True: True, False: False}, True),
    Field("do_layer_norm_before", "norm_placement", {True: "pre", False: "post"}, True),
    Field("activation_function", "activation", {"relu": "relu", "gelu": "gelu"}, "relu"),
    Field("layer_norm_elementwise_affine", None, {True: None}, True),
    Field("_remove_final_layer_norm", None, {False: None}, False),
    Field("tie_word_embeddings", "tie_embeddings", default=True),
]

ROWS = under(
    "model.decoder.",
    "",
    [
        Row("embed_tokens.weight", "embedding/token_embedding/embeddings", TABLE),
        Row("embed_positions.weight", "embedding/position_embeddings", TABLE),
        *under(
            "layers.{i}.",
            "decoder_block_{i}/",
            [
                *layer_norm("self_attn_layer_norm", "self_attention_norm"),
                *dense("self_attn.q_proj", "self_attention/query"),
                *dense("self_attn.k_proj", "self_attention/key"),
                *dense("self_attn.v_proj", "self_attention/value"),
                *dense("self_attn.out_proj", "self_attention/attention_output", FROM_HEADS),
                *layer_norm("final_layer_norm", "feed_forward_norm"),
                *dense("fc1", "feed_forward/intermediate"),
                *dense("fc2", "feed_forward/output"),
            ],
        ),
        *layer_norm("final_layer_norm", "decoder_norm"),
    ],
)

ROWS.append(Row("lm_head.weight", "logits/kernel", LINEAR))

IGNORED = []
TIED = [("lm_head.weight", "model.decoder.embed_tokens.weight")]
