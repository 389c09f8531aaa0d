"""T5 in its original form and in that of v1.1 (which is also FLAN-T5)."""

from keras_transformer.convert import heads
from keras_transformer.convert.config import Field, same
from keras_transformer.convert.rows import FROM_HEADS, LINEAR, TABLE, Row, rms_norm, under

MODEL_TYPES = ("t5",)
KIND, HEADS = "ForConditionalGeneration", heads.T5

FIELDS = [
    *same(
        vocab_size="vocabulary_size",
        num_layers="num_layers",
        num_decoder_layers="num_decoder_layers",
        d_model="hidden_dim",
        num_heads="num_heads",
        d_kv="key_dim",
        d_ff="intermediate_dim",
        relative_attention_num_buckets="relative_buckets",
        relative_attention_max_distance="relative_max_distance",
        dropout_rate="dropout",
        layer_norm_epsilon="norm_epsilon",
        pad_token_id="pad_token_id",
        decoder_start_token_id="start_token_id",
        eos_token_id="stop_token_id",
    ),
    Field("feed_forward_proj", "gated", {"relu": False, "gated-gelu": True, "gated-silu": True}, "relu"),
    Field("feed_forward_proj", "activation", {"relu": "relu", "gated-gelu": "gelu_tanh", "gated-silu": "silu"}, "relu"),
    Field("tie_word_embeddings", "tie_embeddings", default=True),
    Field("scale_decoder_outputs", "tie_embeddings"),  # where it is said, the other one is always True
]

ATTENTION = [
    Row("q.weight", "query/kernel", LINEAR),
    Row("k.weight", "key/kernel", LINEAR),
    Row("v.weight", "value/kernel", LINEAR),
    Row("o.weight", "attention_output/kernel", FROM_HEADS),
]

NETWORK = [
    Row("wi.weight", "intermediate/kernel", LINEAR, unless="gate/kernel"),
    Row("wi_0.weight", "gate/kernel", LINEAR),
    Row("wi_1.weight", "intermediate/kernel", LINEAR, when="gate/kernel"),
    Row("wo.weight", "output/kernel", LINEAR),
]

SELF_ATTENTION = [
    *under("layer.0.SelfAttention.", "self_attention/", ATTENTION),
    *rms_norm("layer.0.layer_norm", "self_attention_norm"),
]

CROSS_ATTENTION = [
    *under("layer.1.EncDecAttention.", "cross_attention/", ATTENTION),
    *rms_norm("layer.1.layer_norm", "cross_attention_norm"),
]

FEED_FORWARD = [
    *under("DenseReluDense.", "feed_forward/", NETWORK),
    *rms_norm("layer_norm", "feed_forward_norm"),
]

ROWS = [
    Row("shared.weight", "embedding/token_embedding/embeddings", TABLE),
    Row(
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "encoder_position_bias/embeddings",
        TABLE,
    ),
    *under("encoder.block.{i}.", "encoder_block_{i}/", SELF_ATTENTION),
    *under("encoder.block.{i}.layer.1.", "encoder_block_{i}/", FEED_FORWARD),
    *rms_norm("encoder.final_layer_norm", "encoder_norm"),
    Row(
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "decoder_position_bias/embeddings",
        TABLE,
    ),
    *under("decoder.block.{i}.", "decoder_block_{i}/", SELF_ATTENTION + CROSS_ATTENTION),
    *under("decoder.block.{i}.layer.2.", "decoder_block_{i}/", FEED_FORWARD),
    *rms_norm("decoder.final_layer_norm", "decoder_norm"),
    Row("lm_head.weight", "logits/kernel", LINEAR),
]

# Without the tensor the table is the head after all.
HEADLESS = ("lm_head.weight", {"tie_embeddings": True, "scale_logits": False})

# Files may hold the one token table under its other names too,
TIED = [
    ("encoder.embed_tokens.weight", "shared.weight"),
    ("decoder.embed_tokens.weight", "shared.weight"),
    ("lm_head.weight", "shared.weight"),
]

# and a table that no layer reads.
IGNORED = [r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"]
