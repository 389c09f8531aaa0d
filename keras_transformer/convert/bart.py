"""BART and mBART."""

from keras_transformer.convert import heads
from keras_transformer.convert.config import Field, same
from keras_transformer.convert.rows import FROM_HEADS, TABLE, Row, dense, layer_norm, under

MODEL_TYPES = ("bart", "mbart")
KIND, HEADS = "ForConditionalGeneration", heads.BART
PREFIX = "model."

FIELDS = [
    *same(
        vocab_size="vocabulary_size",
        max_position_embeddings="max_sequence_length",
        encoder_layers="num_layers",
        d_model="hidden_dim",
        encoder_attention_heads="num_heads",
        encoder_ffn_dim="intermediate_dim",
        dropout="dropout",
        scale_embedding="scale_embedding",
        pad_token_id="pad_token_id",
        decoder_start_token_id="start_token_id",
        eos_token_id="stop_token_id",
    ),
    Field("decoder_layers", "num_decoder_layers", default=12),
    Field("decoder_attention_heads", "num_decoder_heads", default=16),
    Field("decoder_ffn_dim", "decoder_intermediate_dim", default=4096),
    Field("model_type", "norm_placement", {"bart": "post", "mbart": "pre"}, "bart"),
    Field("activation_function", "activation", {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh"}, "gelu"),
    Field("tie_word_embeddings", None, {True: None}, True),
]

ATTENTION = [
    *dense("q_proj", "query"),
    *dense("k_proj", "key"),
    *dense("v_proj", "value"),
    *dense("out_proj", "attention_output", FROM_HEADS),
]

ENCODER_LAYER = [
    *under("self_attn.", "self_attention/", ATTENTION),
    *layer_norm("self_attn_layer_norm", "self_attention_norm"),
    *dense("fc1", "feed_forward/intermediate"),
    *dense("fc2", "feed_forward/output"),
    *layer_norm("final_layer_norm", "feed_forward_norm"),
]

DECODER_LAYER = [
    *ENCODER_LAYER,
    *under("encoder_attn.", "cross_attention/", ATTENTION),
    *layer_norm("encoder_attn_layer_norm", "cross_attention_norm"),
]

ROWS = [
    Row("model.shared.weight", "embedding/token_embedding/embeddings", TABLE),
    Row("model.encoder.embed_positions.weight", "encoder_embedding/position_embeddings", TABLE),
    *layer_norm("model.encoder.layernorm_embedding", "encoder_embedding_norm"),
    *under("model.encoder.layers.{i}.", "encoder_block_{i}/", ENCODER_LAYER),
    *layer_norm("model.encoder.layer_norm", "encoder_norm"),
    Row("model.decoder.embed_positions.weight", "decoder_embedding/position_embeddings", TABLE),
    *layer_norm("model.decoder.layernorm_embedding", "decoder_embedding_norm"),
    *under("model.decoder.layers.{i}.", "decoder_block_{i}/", DECODER_LAYER),
    *layer_norm("model.decoder.layer_norm", "decoder_norm"),
]

# Files may hold the one token table under its other names too,
TIED = [
    ("model.encoder.embed_tokens.weight", "model.shared.weight"),
    ("model.decoder.embed_tokens.weight", "model.shared.weight"),
    ("lm_head.weight", "model.shared.weight"),
]

# and a bias of the logits that is never trained.
ZEROS = [r"final_logits_bias"]

IGNORED = []
