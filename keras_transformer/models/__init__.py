"""Builders: functions that return plain functional Keras models."""

import warnings

from keras_transformer.models.bart import bart
from keras_transformer.models.bert import bert
from keras_transformer.models.gpt import gpt
from keras_transformer.models.llama import llama
from keras_transformer.models.resize_vit import resize_vit
from keras_transformer.models.rnn import rnn
from keras_transformer.models.spans import best_span
from keras_transformer.models.t5 import t5
from keras_transformer.models.transformer import decoder_from_ids, encoder_from_ids, transformer
from keras_transformer.models.vit import vit
from keras_transformer.models.with_head import with_head

# Keras warns that a functional model inside another destroys masks. It does not: they pass through its graph. (Setting
# `supports_masking` on it would write the masks into the outer graph and tie the decoder to the encoder's ids.)
warnings.filterwarnings("ignore", message=r"Layer '.*' \(of type Functional\) was passed an input with a mask")

__all__ = [
    "bart",
    "bert",
    "best_span",
    "decoder_from_ids",
    "encoder_from_ids",
    "gpt",
    "llama",
    "resize_vit",
    "rnn",
    "t5",
    "transformer",
    "vit",
    "with_head",
]
