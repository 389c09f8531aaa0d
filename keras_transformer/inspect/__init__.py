"""Looking into a model."""

from keras_transformer.inspect.attention import attention_scores
from keras_transformer.inspect.plots import plot_attention, plot_cross_attention, plot_history

__all__ = ["attention_scores", "plot_attention", "plot_cross_attention", "plot_history"]
