"""Builders: functions that return plain functional Keras models."""

from keras_transformer.models.transformer import decoder_from_ids, encoder_from_ids, transformer

__all__ = ["decoder_from_ids", "encoder_from_ids", "transformer"]
