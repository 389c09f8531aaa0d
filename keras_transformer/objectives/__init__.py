"""Training objectives: what a model reads and what it is to say, made from rows of ids. NumPy in, NumPy out."""

from keras_transformer.objectives.base import Batches, Objective
from keras_transformer.objectives.causal import CausalLM, PrefixLM
from keras_transformer.objectives.denoising import Denoising
from keras_transformer.objectives.masked_lm import MaskedLM
from keras_transformer.objectives.next_sentence import SentencePair, next_sentence_pairs
from keras_transformer.objectives.spans import SpanCorruption

__all__ = [
    "Batches",
    "CausalLM",
    "Denoising",
    "MaskedLM",
    "Objective",
    "PrefixLM",
    "SentencePair",
    "SpanCorruption",
    "next_sentence_pairs",
]
