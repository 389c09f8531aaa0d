"""Builders: functions that return plain functional Keras models."""

import warnings

from keras_transformer.models.transformer import decoder_from_ids, encoder_from_ids, transformer

# A functional model inside another keeps masks (they pass through its graph), yet Keras warns that it destroys them.
warnings.filterwarnings("ignore", message=r"Layer '.*' \(of type Functional\) was passed an input with a mask")

__all__ = ["decoder_from_ids", "encoder_from_ids", "transformer"]
