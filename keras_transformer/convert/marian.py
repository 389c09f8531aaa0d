"""Marian, which OPUS-MT translates with: BART's wiring with sinusoids, no norm of the embedding, and biased logits."""

from keras_transformer.convert import bart, heads
from keras_transformer.convert.config import Field, always
from keras_transformer.convert.rows import LEADING, Row

MODEL_TYPES = ("marian",)
KIND, HEADS = "MTModel", heads.NONE

FIELDS = [
    *(field for field in bart.FIELDS if field.theirs not in ("model_type", "activation_function")),
    Field("pad_token_id", "pad_token_id", default=58100),
    Field("decoder_start_token_id", "start_token_id", default=58100),
    Field("eos_token_id", "stop_token_id", default=0),
    *always(position="sinusoidal", sinusoid_layout="half", embedding_norm=False, logits_bias=True),
    Field(
        "activation_function", "activation", {"swish": "silu", "silu": "silu", "gelu": "gelu", "relu": "relu"}, "gelu"
    ),
    Field("share_encoder_decoder_embeddings", None, {True: None}, True),
]

ROWS = [*bart.ROWS, Row("final_logits_bias", "logits_bias/bias", LEADING)]

# Sinusoids, which older files hold.
IGNORED = [r"model\.(encoder|decoder)\.embed_positions\.weight"]
TIED = bart.TIED
