"""Recurrent layers, their attention and the RNN encoder-decoder in NumPy float64, one token of one row at a time.

Weights are read by variable path, as in `reference`. Letters: B batch, T length, S source length, D features, U units.
"""

import math

import numpy as np

from tests.reference import dense, sigmoid


def step(cell, x, states, weights):
    """One token (D,) from states, a list of (U,): the new states, of which the first is the output."""
    kernel, recurrent, bias = (weights[name] for name in ("kernel", "recurrent_kernel", "bias"))
    h = states[0]
    if cell == "simple":
        return [np.tanh(x @ kernel + h @ recurrent + bias)]
    if cell == "lstm":
        i, f, c, o = np.split(x @ kernel + h @ recurrent + bias, 4)
        carry = sigmoid(f) * states[1] + sigmoid(i) * np.tanh(c)
        return [sigmoid(o) * np.tanh(carry), carry]
    (xz, xr, xn), (hz, hr, hn) = np.split(x @ kernel + bias[0], 3), np.split(h @ recurrent + bias[1], 3)
    z = sigmoid(xz + hz)
    return [z * h + (1 - z) * np.tanh(xn + sigmoid(xr + hr) * hn)]


def one_way(cell, x, real, weights, start=None, backward=False):
    """Outputs (B, T, U), zeros at padding, and the last states, each (B, U)."""
    units = weights["recurrent_kernel"].shape[0]
    count = 2 if cell == "lstm" else 1
    outputs, last = np.zeros((*x.shape[:2], units)), np.zeros((count, len(x), units))
    for row in range(len(x)):
        states = [np.zeros(units)] * count if start is None else [state[row] for state in start]
        for t in np.flatnonzero(real[row])[:: -1 if backward else 1]:
            states = step(cell, x[row, t], states, weights)
            outputs[row, t] = states[0]
        last[:, row] = states
    return outputs, list(last)


def recurrent(cell, x, real, weights, start=None):
    """Outputs and last states of a `Recurrent` layer, of both directions where it has two."""
    forward, states = one_way(cell, x, real, weights["forward"]["cell"], start)
    if "backward" not in weights:
        return forward, states
    backward, others = one_way(cell, x, real, weights["backward"]["cell"], backward=True)
    return np.concatenate([forward, backward], axis=-1), states + others


def last_state(outputs, real, bidirectional):
    """The output at the last real token; of the backward half, at the first one."""
    ends = np.zeros((len(outputs), outputs.shape[-1]))
    half = outputs.shape[-1] // 2
    for row in range(len(outputs)):
        where = np.flatnonzero(real[row])
        if len(where):
            ends[row] = outputs[row, where[-1]]
            if bidirectional:
                ends[row, half:] = outputs[row, where[0], half:]
    return ends


def attention(kind, query, value, real, weights):
    """Contexts (B, T, D) and probabilities (B, T, S), pair by pair."""
    probabilities = np.zeros((*query.shape[:2], value.shape[1]))
    for row, t in np.ndindex(*query.shape[:2]):
        seen = np.flatnonzero(real[row])
        scores = np.array([_score(kind, query[row, t], value[row, s], weights) for s in seen])
        if len(seen):
            exponentials = np.exp(scores - scores.max())
            probabilities[row, t, seen] = exponentials / exponentials.sum()
    return np.einsum("bts,bsd->btd", probabilities, value), probabilities


def _score(kind, q, k, weights):
    if kind == "dot":
        return q @ k
    if kind == "general":
        return q @ (weights["key"]["kernel"].T @ k)
    met = np.tanh(weights["query"]["kernel"].T @ q + weights["key"]["kernel"].T @ k)
    return met @ weights["score_kernel"][:, 0]


def rnn(weights, source, target, cell="gru", attention_kind="bahdanau", bidirectional=True):
    """Logits (B, T, V) of `kt.models.rnn` from ids; rows of padding are meaningless."""
    real_source, real_target = source != 0, target != 0
    source_table = weights.get("embedding") or weights["source_embedding"]
    target_table = weights.get("embedding") or weights["target_embedding"]
    states, i = _embed(source, source_table), 0
    while f"encoder_rnn_{i}" in weights:
        states, _ = recurrent(cell, states, real_source, weights[f"encoder_rnn_{i}"])
        i += 1
    last = last_state(states, real_source, bidirectional)
    x, i = _embed(target, target_table), 0
    while f"decoder_rnn_{i}" in weights:
        parts = range(2 if cell == "lstm" else 1)
        start = [np.tanh(dense(last, weights[f"decoder_start_{i}_{part}"])) for part in parts]
        x, _ = recurrent(cell, x, real_target, weights[f"decoder_rnn_{i}"], start)
        i += 1
    hidden = dense(x, weights["hidden_of_state"])
    if attention_kind is not None:
        kind = {"bahdanau": "additive", "luong": "general"}[attention_kind]
        context, _ = attention(kind, x, states, real_source, weights["cross_attention"])
        hidden = hidden + dense(context, weights["hidden_of_context"])
    hidden = np.tanh(hidden)
    return hidden @ (weights["logits"]["kernel"] if "logits" in weights else _matrix(target_table).T)


def _matrix(table):
    return table["token_embedding"]["embeddings"]


def _embed(ids, table):
    return _matrix(table)[ids] * math.sqrt(_matrix(table).shape[1])
