"""What `compile` and `fit` need for token models: loss, metrics, schedules and what fine-tuning asks for."""

from keras_transformer.training.callbacks import Budget, SampleTexts, StopOnInterrupt
from keras_transformer.training.contrastive import ContrastiveLoss
from keras_transformer.training.epoch_ends import end_epochs_at_once
from keras_transformer.training.fine_tuning import (
    LayerwiseOptimizer,
    class_weights,
    freeze,
    layerwise_rates,
    unfreeze,
)
from keras_transformer.training.losses import MaskedCrossentropy
from keras_transformer.training.memory import keep_memory
from keras_transformer.training.metrics import Perplexity, TokenAccuracy, TokenCrossentropy
from keras_transformer.training.schedules import InverseSquareRootSchedule, LinearWarmup

__all__ = [
    "Budget",
    "ContrastiveLoss",
    "InverseSquareRootSchedule",
    "LayerwiseOptimizer",
    "LinearWarmup",
    "MaskedCrossentropy",
    "Perplexity",
    "SampleTexts",
    "StopOnInterrupt",
    "TokenAccuracy",
    "TokenCrossentropy",
    "class_weights",
    "end_epochs_at_once",
    "freeze",
    "keep_memory",
    "layerwise_rates",
    "unfreeze",
]
