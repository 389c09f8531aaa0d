"""DistilBERT: BERT without segments and pooler, whose classifier has a dense layer with ReLU in its place."""

from keras_transformer.convert import heads
from keras_transformer.convert.config import Field, always, same
from keras_transformer.convert.rows import FROM_HEADS, TABLE, Row, dense, layer_norm, under

MODEL_TYPES = ("distilbert",)
KIND, HEADS = "Model", heads.DISTILBERT
PREFIX = "distilbert."

FIELDS = [
    *same(
        vocab_size="vocabulary_size",
        max_position_embeddings="max_sequence_length",
        n_layers="num_layers",
        dim="hidden_dim",
        n_heads="num_heads",
        hidden_dim="intermediate_dim",
        dropout="dropout",
        pad_token_id="pad_token_id",
    ),
    *always(num_segments=0, pooler=False, pooler_activation="relu"),
    Field("activation", "activation", {"gelu": "gelu", "relu": "relu"}, "gelu"),
]

ROWS = under(
    "distilbert.",
    "",
    [
        Row("embeddings.word_embeddings.weight", "embedding/token_embedding/embeddings", TABLE),
        Row("embeddings.position_embeddings.weight", "embedding/position_embeddings", TABLE),
        *layer_norm("embeddings.LayerNorm", "embedding_norm"),
        *under(
            "transformer.layer.{i}.",
            "encoder_block_{i}/",
            [
                *dense("attention.q_lin", "self_attention/query"),
                *dense("attention.k_lin", "self_attention/key"),
                *dense("attention.v_lin", "self_attention/value"),
                *dense("attention.out_lin", "self_attention/attention_output", FROM_HEADS),
                *layer_norm("sa_layer_norm", "self_attention_norm"),
                *dense("ffn.lin1", "feed_forward/intermediate"),
                *dense("ffn.lin2", "feed_forward/output"),
                *layer_norm("output_layer_norm", "feed_forward_norm"),
            ],
        ),
    ],
)

# A head may have been left off.
IGNORED = [r"vocab_(transform|layer_norm|projector)\..*", r"(pre_)?classifier\..*", r"qa_outputs\..*"]
TIED = []
