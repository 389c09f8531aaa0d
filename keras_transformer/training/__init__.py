"""What `compile` and `fit` need for token models: loss, metrics and learning-rate schedules."""

from keras_transformer.training.callbacks import Budget, SampleTexts, StopOnInterrupt
from keras_transformer.training.losses import MaskedCrossentropy
from keras_transformer.training.metrics import Perplexity, TokenAccuracy, TokenCrossentropy
from keras_transformer.training.schedules import InverseSquareRootSchedule, LinearWarmup

__all__ = [
    "Budget",
    "InverseSquareRootSchedule",
    "LinearWarmup",
    "MaskedCrossentropy",
    "Perplexity",
    "SampleTexts",
    "StopOnInterrupt",
    "TokenAccuracy",
    "TokenCrossentropy",
]
