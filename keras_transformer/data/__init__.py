"""Text pairs, tokenizers, padding and length-bucketed batches: from a file of text to what `fit` takes."""

from keras_transformer.data.bucketing import BucketedPairs
from keras_transformer.data.lengths import assign_buckets, length_buckets
from keras_transformer.data.padding import check_in_vocabulary, pad_batch, shift_right
from keras_transformer.data.text_model import load_text_model, save_text_model
from keras_transformer.data.text_pairs import TextPairs, load_tfds_pairs, read_pairs, split_pairs
from keras_transformer.data.tokenizers import Tokenizer, train_tokenizer

__all__ = [
    "BucketedPairs",
    "TextPairs",
    "Tokenizer",
    "assign_buckets",
    "check_in_vocabulary",
    "length_buckets",
    "load_text_model",
    "load_tfds_pairs",
    "pad_batch",
    "read_pairs",
    "save_text_model",
    "shift_right",
    "split_pairs",
    "train_tokenizer",
]
