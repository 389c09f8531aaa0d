"""BERT."""

from keras_transformer.convert import heads
from keras_transformer.convert.config import Field, same
from keras_transformer.convert.rows import FROM_HEADS, TABLE, Row, dense, layer_norm, under

MODEL_TYPES = ("bert",)
KIND, HEADS = "Model", heads.BERT
PREFIX = "bert."

FIELDS = [
    *same(
        vocab_size="vocabulary_size",
        max_position_embeddings="max_sequence_length",
        type_vocab_size="num_segments",
        num_hidden_layers="num_layers",
        hidden_size="hidden_dim",
        num_attention_heads="num_heads",
        intermediate_size="intermediate_dim",
        hidden_dropout_prob="dropout",
        layer_norm_eps="norm_epsilon",
        pad_token_id="pad_token_id",
    ),
    Field("hidden_act", "activation", {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu"}, "gelu"),
    Field("position_embedding_type", None, {"absolute": None}, "absolute"),
    Field("is_decoder", None, {False: None}, False),
]

ROWS = under(
    "bert.",
    "",
    [
        Row("embeddings.word_embeddings.weight", "embedding/token_embedding/embeddings", TABLE),
        Row("embeddings.position_embeddings.weight", "embedding/position_embeddings", TABLE),
        Row("embeddings.token_type_embeddings.weight", "segment_embedding/embeddings", TABLE),
        *layer_norm("embeddings.LayerNorm", "embedding_norm"),
        *under(
            "encoder.layer.{i}.",
            "encoder_block_{i}/",
            [
                *dense("attention.self.query", "self_attention/query"),
                *dense("attention.self.key", "self_attention/key"),
                *dense("attention.self.value", "self_attention/value"),
                *dense("attention.output.dense", "self_attention/attention_output", FROM_HEADS),
                *layer_norm("attention.output.LayerNorm", "self_attention_norm"),
                *dense("intermediate.dense", "feed_forward/intermediate"),
                *dense("output.dense", "feed_forward/output"),
                *layer_norm("output.LayerNorm", "feed_forward_norm"),
            ],
        ),
        *dense("pooler.dense", "pooler/dense"),
    ],
)

OPTIONAL = {"pooler": "bert.pooler.dense.weight"}  # options of the builder that a tensor speaks for

# A head may have been left off, and the pooler.
IGNORED = [r"cls\..*", r"classifier\..*", r"qa_outputs\..*", r"bert\.pooler\..*", r"bert\.embeddings\.position_ids"]
TIED = []
