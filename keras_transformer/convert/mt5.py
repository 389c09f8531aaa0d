"""mT5: T5 v1.1 for many languages."""

from keras_transformer.convert import t5
from keras_transformer.convert.config import always

MODEL_TYPES = ("mt5",)
KIND, HEADS = t5.KIND, t5.HEADS

OF_T5_ALONE = ("feed_forward_proj", "tie_word_embeddings", "scale_decoder_outputs")
FIELDS = [
    *(field for field in t5.FIELDS if field.theirs not in OF_T5_ALONE),
    *(field._replace(default="gated-gelu") for field in t5.FIELDS if field.theirs == "feed_forward_proj"),
    # Whatever a config says, the tensors tell; and a tied table is not scaled.
    *always(tie_embeddings=False),
]

ROWS, HEADLESS, TIED, IGNORED = t5.ROWS, t5.HEADLESS, t5.TIED, t5.IGNORED
