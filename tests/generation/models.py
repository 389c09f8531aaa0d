"""Small models to decode, and the slow and obvious way to decode them."""

import functools

import keras
import numpy as np
from keras import ops

import keras_transformer as kt
from tests.backend import numpy, predict, predict_often

VOCABULARY_SIZE = 23


@functools.cache  # shared by the tests, and so is what JAX and TensorFlow compiled for it
def stacked_gpt(pad_token_id=None, position="sinusoidal", num_layers=1):
    """A decoder-only model as a user would stack it."""
    ids = keras.Input((None,), dtype="int32")
    table = kt.layers.PositionalEmbedding(
        VOCABULARY_SIZE, 16, max_sequence_length=64, position=position, pad_token_id=pad_token_id
    )
    x = table(ids)
    for _ in range(num_layers):
        x = kt.layers.DecoderBlock(2, 32, dropout=0.1, norm_placement="pre")(x)
    return keras.Model(ids, table(x, reverse=True))


@functools.cache
def translator(**options):
    """A small encoder-decoder."""
    options = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32, **options}
    return kt.models.transformer(VOCABULARY_SIZE, VOCABULARY_SIZE, start_token_id=1, stop_token_id=2, **options)


def ragged(lengths, seed=0):
    """Lists of random ids, none of them special."""
    random = np.random.default_rng(seed)
    return [random.integers(3, VOCABULARY_SIZE, n).tolist() for n in lengths]


def logits_of(model, row, source=None, room=24):
    """The full forward of one row: float64 logits (T, V).

    The row lies in a buffer of `room` tokens, behind whose last token a causal model never looks: one shape to compile.
    """
    ids = np.asarray([[*row, *[3] * (room - len(row))]], "int32")
    inputs = ids if source is None else {"encoder_token_ids": np.asarray([source]), "decoder_token_ids": ids}
    compiles = isinstance(model, keras.Model) and model.built
    logits = predict_often(model, inputs) if compiles else numpy(model(ops.convert_to_tensor(ids)))
    return logits[0, : len(row)].astype("float64")


def greedy_by_hand(model, prompt, max_new_tokens, stop=(), source=None, room=24):
    """One row, the full forward for every token; the new tokens."""
    row = list(prompt)
    for _ in range(max_new_tokens):
        row.append(int(logits_of(model, row, source, room)[-1].argmax()))
        if row[-1] in stop:
            break
    return row[len(prompt) :]


def assert_greedy(model, prompts, texts, max_new_tokens):
    """Every new token is the most probable one of the full forward over the text before it, which is run once."""
    chosen = predict(model, texts[:, :-1]).argmax(-1)  # what pads a row stands behind it
    for prompt, text, found in zip(prompts, texts, chosen, strict=True):
        start, end = len(prompt), len(prompt) + max_new_tokens
        assert text[start:end].tolist() == found[start - 1 : end - 1].tolist()


class Stub(keras.Model):
    """Writes the given rows whatever it reads: row b, step t gives `script[b][t]`, counted from `prompt_length`."""

    def __init__(self, script, prompt_length):
        super().__init__()
        self.script = np.asarray(script, "int32")
        self.prompt_length = prompt_length

    def call(self, token_ids):
        length = token_ids.shape[1]
        steps = np.clip(np.arange(length) - self.prompt_length + 1, 0, self.script.shape[1] - 1)
        rows = np.resize(self.script[:, steps], (token_ids.shape[0], length))
        return ops.one_hot(rows, VOCABULARY_SIZE)


class Traced(keras.layers.Layer):
    """Counts how often its call is traced, or run where nothing is compiled."""

    TRACES = []

    def call(self, inputs):
        self.TRACES.append(1)
        return inputs


class Letters:
    """A tokenizer of the letters a to t; the ids of the models stand for letters."""

    def encode(self, texts):
        return [[ord(letter) - ord("a") + 3 for letter in text] for text in texts]

    def decode(self, rows):
        return ["".join(chr(max(token, 3) + ord("a") - 3) for token in row) for row in rows]
