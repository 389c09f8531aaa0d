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
from keras_transformer.models.with_head import HEADS
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


def stacked(make_block, num_layers=1, pad_token_id=0, position=None, make_bias=None):
    """A decoder-only stack by hand; `make_bias` gives a position bias that all blocks share."""

    def build(dtype, dropout):
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
        shared = {} if make_bias is None else {"position_bias": make_bias(dtype)(x)}
        for _ in range(num_layers):
            x = make_block(dtype, dropout)(x, **shared)
        x = keras.layers.LayerNormalization(epsilon=1e-5, dtype=dtype)(x)
        return keras.Model(ids, embedding(x, reverse=True))

    return build


def gpt(pad_token_id=0, position="learned", modern=False, num_layers=1):
    """Plain blocks, or some with grouped heads, a gated network and RMS norm."""

    def block(dtype, dropout):
        if not modern:
            return kt.layers.DecoderBlock(NUM_HEADS, INTERMEDIATE_DIM, dropout, "pre", activation="gelu", dtype=dtype)
        return kt.layers.DecoderBlock(
            attention=kt.layers.MultiHeadAttention(4, 5, dropout=dropout, num_key_value_heads=2, dtype=dtype),
            feed_forward=kt.layers.FeedForward(INTERMEDIATE_DIM, "silu", gated=True, dropout=dropout, dtype=dtype),
            dropout=dropout,
            norm="rms",
            norm_placement="sandwich",
            dtype=dtype,
        )

    return stacked(block, num_layers, pad_token_id, position)


def llama(dtype, dropout):
    """A block of the newer kind, with what Qwen and Gemma add to it."""
    return kt.layers.DecoderBlock(
        attention=kt.layers.MultiHeadAttention(
            *(4, 6),
            num_key_value_heads=2,
            dropout=dropout,
            use_bias=("query", "key", "value"),
            rotary=kt.layers.Rotary(scaling={"rope_type": "linear", "factor": 2.0}, dtype=dtype),
            qk_norm="rms",
            soft_cap=4.0,
            scale=0.5,
            dtype=dtype,
        ),
        feed_forward=kt.layers.FeedForward(INTERMEDIATE_DIM, "gelu", gated=True, use_bias=False, dtype=dtype),
        dropout=dropout,
        norm=kt.layers.RMSNorm(zero_centered=True, dtype=dtype),
        norm_placement="sandwich",
        dtype=dtype,
    )


def attending(placement="pre", block_options=None, **options):
    """A block whose attention layer has these options, or what functions of the dtype give for them."""

    def block(dtype, dropout):
        given = {name: option(dtype=dtype) if callable(option) else option for name, option in options.items()}
        return kt.layers.DecoderBlock(
            attention=kt.layers.MultiHeadAttention(NUM_HEADS, 8, dropout=dropout, dtype=dtype, **given),
            intermediate_dim=INTERMEDIATE_DIM,
            dropout=dropout,
            norm_placement=placement,
            dtype=dtype,
            **(block_options or (lambda dropout: {}))(dropout),
        )

    return block


def experts(dtype, dropout):
    """A block with experts, of which some have no room in training."""
    options = {"dropout": dropout, "capacity_factor": 0.5, "load_balancing_loss": 0.01, "dtype": dtype}
    mixture = kt.layers.MixtureOfExperts(4, INTERMEDIATE_DIM, **options)
    return kt.layers.DecoderBlock(NUM_HEADS, None, dropout, "pre", feed_forward=mixture, dtype=dtype)


def of_one_vocabulary(builder, **options):
    """A family of one vocabulary for both sides, whose targets do not begin with padding."""

    def build(dtype, dropout):
        sizes = {"num_layers": 1, "hidden_dim": HIDDEN_DIM, "num_heads": NUM_HEADS, "intermediate_dim": 24}
        special = {"pad_token_id": 0, "start_token_id": 1, "stop_token_id": 2}
        return builder("tiny", VOCABULARY_SIZE, dropout=dropout, dtype=dtype, **sizes, **special, **options)

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
    positions = kt.layers.PositionalEmbedding(None, HIDDEN_DIM, **options)(zeros(tokens))
    x = keras.layers.Add(dtype=dtype)([tokens, positions])
    attended = kt.layers.MultiHeadAttention(NUM_HEADS, HIDDEN_DIM, use_gate=True, **options)(x, x)
    x = keras.layers.Add(dtype=dtype)([x, attended])
    x = keras.layers.Add(dtype=dtype)([x, kt.layers.FeedForward(INTERMEDIATE_DIM, **options)(x)])
    return keras.Model(ids, kt.layers.RMSNorm(dtype=dtype)(x))


def published(builder, **options):
    """A family's builder, with the smallest sizes."""

    def build(dtype, dropout):
        sizes = {"num_layers": 1, "hidden_dim": HIDDEN_DIM, "num_heads": NUM_HEADS}
        sizes |= {"vocabulary_size": VOCABULARY_SIZE, "intermediate_dim": INTERMEDIATE_DIM, **options}
        return builder(None, **sizes, pad_token_id=0, dropout=dropout, dtype=dtype)

    return build


# One layer is enough wherever nothing depends on how many there are; the first row, "gpt" and the shared bias have two.
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
    Family("gpt", gpt(num_layers=2)),
    Family("gpt without padding", gpt(pad_token_id=None, position="sinusoidal"), pads=False),
    Family("gpt, grouped heads, gated, rms", gpt(modern=True, position="sinusoidal")),
    Family("rotary, QK norm, soft cap, sandwich", stacked(llama)),
    Family("alibi", stacked(attending(position_bias=functools.partial(kt.layers.AlibiBias, NUM_HEADS)))),
    Family(
        "one relative bias for all",
        stacked(
            attending(scale=1.0, use_bias=False),
            num_layers=2,
            make_bias=lambda dtype: kt.layers.RelativePositionBias(NUM_HEADS, 8, 6, bidirectional=False, dtype=dtype),
        ),
    ),
    Family(
        "sinks, layer scale, parallel",
        stacked(
            attending(
                block_options=lambda dropout: {"parallel": True, "layer_scale": 0.5, "stochastic_depth": dropout},
                sinks=True,
                rotary=functools.partial(kt.layers.Rotary, layout="interleaved", fraction=0.5),
            ),
            pad_token_id=None,
        ),
        pads=False,
    ),
    Family("gpt, experts", stacked(experts)),
    Family("t5", of_one_vocabulary(kt.models.t5, relative_buckets=8, relative_max_distance=6)),
    Family("bart", of_one_vocabulary(kt.models.bart, max_sequence_length=MAX_LENGTH)),
    Family("rnn", rnn()),
    Family("rnn, lstm, luong, two layers", rnn(cell="lstm", attention="luong", num_layers=2, share_embeddings="all")),
    Family("rnn without attention", rnn(cell="simple", attention=None, bidirectional=False)),
    Family("recurrent stack", recurrent),
    Family("bert", published(kt.models.bert, max_sequence_length=MAX_LENGTH, pooler=False), causal=False),
    Family("gpt-2", published(kt.models.gpt, max_sequence_length=MAX_LENGTH)),
    Family(
        "llama",
        published(
            kt.models.llama, sliding_window=3, use_bias=("query", "key", "value"), logits_soft_cap=3.0, qk_norm=True
        ),
    ),
    Family("encoder", encoder, causal=False),
    Family("encoder of Add layers", added, causal=False),
]


def headed(head):
    """A small BERT with a head."""

    def build(dtype, dropout):
        backbone = published(kt.models.bert, max_sequence_length=MAX_LENGTH)(dtype, dropout)
        classes = {"num_classes": 3} if head.endswith("classification") else {}
        return kt.models.with_head(backbone, head, dropout=dropout, **classes)

    return build


# What is saved and loaded; what else heads must hold is in tests/models/test_with_head.py.
HEADED = [Family(f"bert, {head}", headed(head), causal=False) for head in HEADS]


def named(*names):
    """The rows of these names, for what would take too long with all of them."""
    rows = {family.name: family for family in FAMILIES}
    return [rows[name] for name in names]


# Together they hold a layer of every class (test_sequences.py looks whether they do): enough for what depends on the
# layers and not on how they are put together.
EVERY_LAYER = named(
    "transformer, norm first",
    "rotary, QK norm, soft cap, sandwich",
    "alibi",
    "one relative bias for all",
    "sinks, layer scale, parallel",
    "gpt, experts",
    "t5",
    "rnn",
    "rnn, lstm, luong, two layers",
    "rnn without attention",
    "bert",
    "llama",
    "encoder of Add layers",
)
