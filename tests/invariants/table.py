"""The models that every invariant is tested on: one row per family and way of building it.

A row builds a model of ids from a `dtype` and a `dropout`; everything else about it is read from the model. Adding a
family means adding a row.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np

import keras_transformer as kt
from tests import reference
from tests.backend import predict

VOCABULARY_SIZE, HIDDEN_DIM, NUM_HEADS, INTERMEDIATE_DIM, MAX_LENGTH = 20, 16, 2, 24, 24


@dataclass(frozen=True)
class Family:
    """A row: `build(dtype=..., dropout=...)` gives the model.

    Args:
        causal: the output at a position depends on nothing behind it.
        pads: whether id 0 is padding.
    """

    name: str
    build: Callable
    causal: bool = True
    pads: bool = True

    def __str__(self):
        return self.name

    @functools.cached_property
    def model(self):
        """The model in float32 with dropout and random weights, built once; tests leave it as they found it."""
        return self.new(dropout=0.5)

    def new(self, **options):
        """A model of its own, with the same random weights."""
        model = self.build(**{"dtype": "float32", "dropout": 0.0, **options})
        reference.randomize(model, stddev=0.2)
        return model

    @property
    def encodes(self):
        """Whether it is an encoder-decoder."""
        return len(self.model.inputs) == 2

    def ids(self, batch=3, length=6, seed=0):
        """Random ids without padding, one array per input; the last one is what the outputs belong to."""
        rng = np.random.default_rng(seed)
        return [rng.integers(1, VOCABULARY_SIZE, (batch, length - i)) for i in range(len(self.model.inputs))]


def call(model, inputs):
    """The model's output (B, T, features) for one array per input, as NumPy."""
    return predict(model, inputs if len(inputs) > 1 else inputs[0])


def transformer(**options):
    def build(dtype, dropout):
        return kt.models.transformer(
            VOCABULARY_SIZE,
            VOCABULARY_SIZE,
            **{"num_layers": 1, "num_heads": NUM_HEADS, **options},
            hidden_dim=HIDDEN_DIM,
            intermediate_dim=INTERMEDIATE_DIM,
            dropout=dropout,
            dtype=dtype,
        )

    return build


def gpt(pad_token_id=0, position="learned", modern=False, num_layers=2):
    """A decoder-only stack by hand, plain or with grouped heads, a gated network and RMS norm."""

    def build(dtype, dropout):
        def block():
            if not modern:
                return kt.layers.DecoderBlock(
                    NUM_HEADS, INTERMEDIATE_DIM, dropout, "pre", activation="gelu", dtype=dtype
                )
            return kt.layers.DecoderBlock(
                attention=kt.layers.MultiHeadAttention(4, 5, dropout=dropout, num_key_value_heads=2, dtype=dtype),
                feed_forward=kt.layers.FeedForward(INTERMEDIATE_DIM, "silu", gated=True, dropout=dropout, dtype=dtype),
                dropout=dropout,
                norm="rms",
                norm_placement="sandwich",
                dtype=dtype,
            )

        ids = keras.Input((None,), dtype="int32", name="token_ids")
        embedding = kt.layers.PositionalEmbedding(
            VOCABULARY_SIZE,
            HIDDEN_DIM,
            MAX_LENGTH,
            position=position,
            dropout=dropout,
            pad_token_id=pad_token_id,
            dtype=dtype,
            name="embedding",
        )
        x = embedding(ids)
        for _ in range(num_layers):
            x = block()(x)
        x = keras.layers.LayerNormalization(epsilon=1e-5, dtype=dtype)(x)
        return keras.Model(ids, embedding(x, reverse=True))

    return build


def rnn(**options):
    def build(dtype, dropout):
        sizes = {"hidden_dim": 8, "dropout": dropout, "dtype": dtype}
        return kt.models.rnn(VOCABULARY_SIZE, VOCABULARY_SIZE, **sizes, **options)

    return build


def recurrent(dtype, dropout):
    """A decoder-only stack of a recurrent layer and a block."""
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    options = {"dropout": dropout, "dtype": dtype}
    embedding = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, HIDDEN_DIM, position=None, **options)
    x = kt.layers.Recurrent(HIDDEN_DIM, "lstm", **options)(embedding(ids))
    x = kt.layers.DecoderBlock(NUM_HEADS, INTERMEDIATE_DIM, **options)(x)
    return keras.Model(ids, embedding(x, reverse=True))


def encoder(dtype, dropout):
    """An encoder as a Sequential model."""
    blocks = [
        kt.layers.EncoderBlock(NUM_HEADS, INTERMEDIATE_DIM, dropout, placement, dtype=dtype)
        for placement in ("post", "output")
    ]
    embedding = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, HIDDEN_DIM, dropout=dropout, dtype=dtype)
    return keras.Sequential([keras.Input((None,), dtype="int32"), embedding, *blocks])


def added(dtype, dropout):
    """An encoder whose tokens and positions are two layers, joined by `keras.layers.Add`."""
    ids = keras.Input((None,), dtype="int32")
    options = {"dropout": dropout, "dtype": dtype}
    tokens = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, HIDDEN_DIM, position=None, **options)(ids)
    zeros = keras.layers.Rescaling(0.0, dtype=dtype)
    zeros.supports_masking = True
    positions = kt.layers.PositionalEmbedding(None, HIDDEN_DIM, **options)(zeros(tokens))
    x = keras.layers.Add(dtype=dtype)([tokens, positions])
    attended = kt.layers.MultiHeadAttention(NUM_HEADS, HIDDEN_DIM, use_gate=True, **options)(x, x)
    x = keras.layers.Add(dtype=dtype)([x, attended])
    x = keras.layers.Add(dtype=dtype)([x, kt.layers.FeedForward(INTERMEDIATE_DIM, **options)(x)])
    return keras.Model(ids, kt.layers.RMSNorm(dtype=dtype)(x))


FAMILIES = [
    Family("transformer", transformer(share_embeddings="all", num_layers=2)),
    Family("transformer, norm first", transformer(norm_placement="pre", activation="gelu")),
    Family(
        "transformer, sandwich, learned positions, separate head",
        transformer(
            norm_placement="sandwich",
            share_embeddings=None,
            position="learned",
            max_sequence_length=MAX_LENGTH,
        ),
    ),
    Family(
        "transformer, output norm, rms, free key_dim, no bias",
        transformer(norm_placement="output", norm="rms", key_dim=5, use_bias=False),
    ),
    Family("gpt", gpt()),
    Family("gpt without padding", gpt(pad_token_id=None, position="sinusoidal"), pads=False),
    Family("gpt, grouped heads, gated, rms", gpt(modern=True, position="sinusoidal")),
    Family("rnn", rnn()),
    Family("rnn, lstm, luong, two layers", rnn(cell="lstm", attention="luong", num_layers=2, share_embeddings="all")),
    Family("rnn without attention", rnn(cell="simple", attention=None, bidirectional=False)),
    Family("recurrent stack", recurrent),
    Family("encoder", encoder, causal=False),
    Family("encoder of Add layers", added, causal=False),
]
