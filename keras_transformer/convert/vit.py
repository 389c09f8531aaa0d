"""The Vision Transformer with its head of classes."""

from keras_transformer.convert import heads
from keras_transformer.convert.config import Field, same
from keras_transformer.convert.rows import FLAT, FROM_HEADS, LEADING, PATCHES, Row, dense, layer_norm, under

MODEL_TYPES = ("vit",)
KIND, HEADS = "ForImageClassification", heads.NONE

FIELDS = [
    *same(
        image_size="image_size",
        patch_size="patch_size",
        num_channels="num_channels",
        hidden_size="hidden_dim",
        num_hidden_layers="num_layers",
        num_attention_heads="num_heads",
        intermediate_size="intermediate_dim",
        hidden_dropout_prob="dropout",
        layer_norm_eps="norm_epsilon",
    ),
    Field("id2label", "num_classes", default=("LABEL_0", "LABEL_1"), counted=True),
    Field("hidden_act", "activation", {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh"}, "gelu"),
    Field("qkv_bias", None, {True: None}, True),
]

# The names are those in files; in memory transformers 5 has others.
LAYER = [
    *layer_norm("layernorm_before", "self_attention_norm"),
    *dense("attention.attention.query", "self_attention/query"),
    *dense("attention.attention.key", "self_attention/key"),
    *dense("attention.attention.value", "self_attention/value"),
    *dense("attention.output.dense", "self_attention/attention_output", FROM_HEADS),
    *layer_norm("layernorm_after", "feed_forward_norm"),
    *dense("intermediate.dense", "feed_forward/intermediate"),
    *dense("output.dense", "feed_forward/output"),
]

ROWS = [
    Row("vit.embeddings.patch_embeddings.projection.weight", "patch_embedding/projection/kernel", PATCHES),
    Row("vit.embeddings.patch_embeddings.projection.bias", "patch_embedding/projection/bias", FLAT),
    Row("vit.embeddings.cls_token", "class_token/tokens", LEADING),
    Row("vit.embeddings.position_embeddings", "embedding/position_embeddings", LEADING),
    *under("vit.encoder.layer.{i}.", "encoder_block_{i}/", LAYER),
    *layer_norm("vit.layernorm", "encoder_norm"),
    *dense("classifier", "logits"),
]

IGNORED = []
