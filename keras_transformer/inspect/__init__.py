"""Looking into a model."""

from keras_transformer.inspect.attention import attention_scores

__all__ = ["attention_scores"]
