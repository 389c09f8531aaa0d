"""The layers and the whole encoder-decoder in NumPy float64, written from the papers' equations for the tests.

Weights are read by variable path: `weights["encoder_block_0"]["self_attention"]["query"]["kernel"]`.
Letters: B batch, T query length, S key length, D features, N heads, K key/value heads, H head dim, V vocabulary.
"""

import math

import numpy as np


def randomize(layer, seed=0, stddev=0.3):
    """Give every weight random values, the same on every backend, and return them as nested float64 dicts."""
    rng = np.random.default_rng(seed)
    tree = {}
    for weight in layer.weights:
        value = rng.normal(0.0, stddev, weight.shape).astype("float32")
        if weight.name in ("gamma", "scale"):
            value = 1 + value
        weight.assign(value)
        *folders, name = weight.path.split("/")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[name] = value.astype("float64")
    return tree


def relu(x):
    return np.maximum(x, 0)


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def silu(x):
    return x / (1 + np.exp(-x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def layer_norm(x, gamma=1.0, beta=0.0, epsilon=1e-5):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon) * gamma + beta


def rms_norm(x, scale=1.0, epsilon=1e-5):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale


def norm(x, weights):
    return rms_norm(x, **weights) if "scale" in weights else layer_norm(x, **weights)


def attention(query, key, value, mask=None, bias=0.0, scale=None, soft_cap=None, sinks=None):
    """Outputs (B, T, N, H) and probabilities (B, N, T, S); a query that may see no key gives zeros for both."""
    key, value = (np.repeat(x, query.shape[2] // x.shape[2], axis=2) for x in (key, value))
    scores = np.einsum("btnh,bsnh->bnts", query, key) * (scale or 1 / math.sqrt(query.shape[-1]))
    scores = (scores if soft_cap is None else soft_cap * np.tanh(scores / soft_cap)) + bias
    mask = np.broadcast_to(True if mask is None else mask, scores.shape)
    scores = np.where(mask, scores, -np.inf)
    highest = scores.max(-1, keepdims=True)
    exponentials = np.exp(scores - np.where(np.isfinite(highest), highest, 0))
    total = exponentials.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None] - np.where(np.isfinite(highest), highest, 0))
    probabilities = exponentials / np.where(total == 0, 1, total)
    return np.einsum("bnts,bsnh->btnh", probabilities, value), probabilities


def project(x, weights):
    """A projection to heads: (B, T, D) -> (B, T, N, H)."""
    return np.einsum("btd,dnh->btnh", x, weights["kernel"]) + weights.get("bias", 0.0)


def multi_head_attention(x, memory, weights, mask=None, key=None, bias=0.0, turn=lambda heads: heads, **options):
    """Output (B, T, D) and probabilities; `mask` broadcasts to (B, N, T, S), True = attend.

    `turn` is a function of queries and keys (B, T, N, H), behind their norms if there are any.
    """
    query = project(x, weights["query"])
    key = project(memory if key is None else key, weights["key"])
    if "query_norm" in weights:
        query, key = norm(query, weights["query_norm"]), norm(key, weights["key_norm"])
    value = project(memory, weights["value"])
    if "sinks" in weights:
        options["sinks"] = weights["sinks"]["logits"]
    output, probabilities = attention(turn(query), turn(key), value, mask, bias, **options)
    if "gate" in weights:
        output = output * sigmoid(project(x, weights["gate"]))
    out = weights["attention_output"]
    return np.einsum("btnh,nhd->btd", output, out["kernel"]) + out.get("bias", 0.0), probabilities


def dense(x, weights):
    return x @ weights["kernel"] + weights.get("bias", 0.0)


def feed_forward(x, weights, activation=relu):
    inner = dense(x, weights["intermediate"])
    inner = activation(dense(x, weights["gate"])) * inner if "gate" in weights else activation(inner)
    return dense(inner, weights["output"])


def residual(x, sublayer, weights, name, placement):
    """One sublayer with its norms, each placement spelled out."""
    first = weights[f"{name}_norm"]
    if placement == "post":
        return norm(x + sublayer(x), first)
    if placement == "pre":
        return x + sublayer(norm(x, first))
    if placement == "output":
        return x + norm(sublayer(x), first)
    if placement == "sandwich":
        return x + norm(sublayer(norm(x, first)), weights[f"{name}_output_norm"])
    raise KeyError(placement)


def block(x, weights, mask, placement="post", activation=relu, memory=None, memory_mask=None):
    """An encoder or decoder block; `mask` and `memory_mask` broadcast to the scores (B, N, T, S)."""

    def attend_to_self(y):
        return multi_head_attention(y, y, weights["self_attention"], mask)[0]

    def attend_to_memory(y):
        return multi_head_attention(y, memory, weights["cross_attention"], memory_mask)[0]

    def feed(y):
        return feed_forward(y, weights["feed_forward"], activation)

    x = residual(x, attend_to_self, weights, "self_attention", placement)
    if memory is not None:
        x = residual(x, attend_to_memory, weights, "cross_attention", placement)
    return residual(x, feed, weights, "feed_forward", placement)


def sinusoids(positions, dim):
    """(..., D): element by element from the formula."""
    encoded = np.empty((*np.shape(positions), dim))
    for i in range(dim):
        angle = np.asarray(positions, "float64") / 10000 ** (2 * (i // 2) / dim)
        encoded[..., i] = np.sin(angle) if i % 2 == 0 else np.cos(angle)
    return encoded


def token_positions(real):
    """Positions (B, T) counted from each row's first real token; 0 before it."""
    first = np.where(real.any(axis=1), np.argmax(real, axis=1), real.shape[1])
    return np.maximum(np.arange(real.shape[1]) - first[:, None], 0)


def embed(ids, real, weights):
    """Token and position vectors (B, T, D); the tokens are scaled only where positions are sinusoidal."""
    table = weights["token_embedding"]["embeddings"]
    if "position_embeddings" in weights:
        return table[ids] + weights["position_embeddings"][token_positions(real)]
    return table[ids] * math.sqrt(table.shape[1]) + sinusoids(token_positions(real), table.shape[1])


def padding_mask(real_queries, real_keys):
    """(B, 1, T, S): padding is attended to by nothing and attends to nothing."""
    return (real_queries[:, :, None] & real_keys[:, None, :])[:, None]


def causal_mask(length):
    return np.tril(np.ones((length, length), bool))


def stack(x, weights, side, **options):
    index = 0
    while f"{side}_block_{index}" in weights:
        x = block(x, weights[f"{side}_block_{index}"], **options)
        index += 1
    return norm(x, weights[f"{side}_norm"]) if f"{side}_norm" in weights else x


def transformer(weights, source, target, placement="post", activation=relu, pad_token_id=0):
    """Logits (B, T, V) of the encoder-decoder, from ids (B, S) and (B, T); rows of padding are meaningless."""
    real_source, real_target = source != pad_token_id, target != pad_token_id
    source_table = weights.get("embedding") or weights["source_embedding"]
    target_table = weights.get("embedding") or weights["target_embedding"]
    states = stack(
        embed(source, real_source, source_table),
        weights,
        "encoder",
        mask=padding_mask(real_source, real_source),
        placement=placement,
        activation=activation,
    )
    hidden = stack(
        embed(target, real_target, target_table),
        weights,
        "decoder",
        mask=padding_mask(real_target, real_target) & causal_mask(target.shape[1]),
        placement=placement,
        activation=activation,
        memory=states,
        memory_mask=padding_mask(real_target, real_source),
    )
    if "logits" in weights:
        return hidden @ weights["logits"]["kernel"]
    return hidden @ target_table["token_embedding"]["embeddings"].T
