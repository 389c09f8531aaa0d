"""Llama and what came of it: Mistral and Mixtral, Phi-3, Qwen, Gemma.

Source: Touvron et al. 2023, "Llama 2" (https://arxiv.org/abs/2307.09288); of the others see `sizes.py`.
"""

import keras

from keras_transformer import layers
from keras_transformer.arguments import check_size
from keras_transformer.layers.common import check_choice, check_token_ids, clone_initializer, derived_seed, head_dim
from keras_transformer.models.common import final_norm, for_block
from keras_transformer.models.sizes import sizes_of

LAYER_TYPES = ("sliding_attention", "full_attention")


def llama(
    size="7b",
    dropout=0.0,
    pad_token_id=None,
    start_token_id=None,
    stop_token_id=None,
    seed=None,
    dtype=None,
    name="llama",
    **options,
):
    """A decoder-only model with rotary positions, grouped heads, gated feed-forward networks and RMS norms.

    Llama 2 7B has 6,738,415,616 parameters: two matrices 32,000 * 4,096, 32 blocks of 202,383,360, a norm of 4,096.

    Args:
        size: a row of the table: `"tiny"`, `"7b"`, `"13b"`, `"70b"` (Llama 2), `"llama3_8b"`, `"mistral_7b"`,
            `"qwen3_0.6b"`, `"gemma2_2b"`, ... (an unknown one is told them all). What is given replaces what the row
            says. None: there is no row, and the first five of the options must be given.
        dropout: after the embedding, on the residuals and on the attention probabilities.
        pad_token_id: the id that is padding; None for none.
        start_token_id, stop_token_id: ids that begin and end a text. Several may end it.
        seed, dtype: of all dropouts; of all layers, whatever it is logits are float32.
        **options: the following (0 or False is without it), and further arguments of `DecoderBlock`.

            vocabulary_size, num_layers, num_heads, hidden_dim, intermediate_dim: sizes.
            num_key_value_heads, key_dim: `num_heads` and `hidden_dim / num_heads` by default.
            rotary_base, rotary_fraction, rotary_scaling: of `Rotary`.
            layer_types: "sliding_attention" or "full_attention" for each layer, repeated as often as needed.
            sliding_window: what layers of the first kind see; without one, everything.
            local_rotary_base: base of their rotary positions, which then are not scaled (Gemma 3).
            use_bias: biases of the attention: True, or the names of the projections that have one (Qwen 2).
            qk_norm: whether queries and keys are normed (Qwen 3, Gemma 3).
            query_scale: on the products of queries and keys; `1 / sqrt(key_dim)` by default.
            attention_soft_cap, logits_soft_cap: soft limits (Gemma 2).
            norm_placement: "pre", or "sandwich" (Gemma).
            norm_epsilon, zero_centered: of all `RMSNorm`s; the second is Gemma's.
            embedding_scale: factor on the embedding, 1 by default; sqrt(hidden_dim) is Gemma's.
            activation: of the gates, "silu" or "gelu_tanh".
            num_experts, num_experts_per_token, load_balancing_loss: of `MixtureOfExperts` in place of each feed-forward
                network (Mixtral); without experts there is the network.
            tie_embeddings: whether the table of tokens is the head, too.

    Returns:
        A `keras.Model` from `token_ids` (B, T), int32, to float32 logits (B, T, vocabulary_size).

    Example: `logits = keras_transformer.models.llama("tiny", vocabulary_size=8000, qk_norm=True)(token_ids)`
    """
    given = {key: options.pop(key) for key in sizes_of("llama", "7b") if key in options}
    config = sizes_of("llama", size, **given)
    config = {
        key: list(value) if isinstance(value, tuple) else value for key, value in config.items()
    }  # as JSON has it
    vocabulary_size, num_layers, num_heads, hidden_dim = (
        config[key] for key in ("vocabulary_size", "num_layers", "num_heads", "hidden_dim")
    )
    check_size(vocabulary_size=vocabulary_size, num_layers=num_layers, num_heads=num_heads, hidden_dim=hidden_dim)
    ids = {"pad_token_id": pad_token_id, "start_token_id": start_token_id, "stop_token_id": stop_token_id}
    check_token_ids(vocabulary_size, **ids)
    for kind in config["layer_types"] or [None]:
        check_choice(LAYER_TYPES, layer_types=kind)

    initializer = keras.initializers.RandomNormal(stddev=0.02)
    token_ids = keras.Input((None,), dtype="int32", name="token_ids")
    embedding = layers.PositionalEmbedding(
        vocabulary_size,
        hidden_dim,
        position=None,
        scale=config["embedding_scale"] or None,
        dropout=dropout,
        pad_token_id=pad_token_id,
        embeddings_initializer=clone_initializer(initializer, "embedding"),
        seed=derived_seed(seed, "embedding"),
        dtype=dtype,
        name="embedding",
    )
    x = embedding(layers.ModelCard({"family": "llama", **config, **ids}, name="model_card")(token_ids))
    norm = layers.RMSNorm(config["norm_epsilon"], config["zero_centered"], dtype=dtype)
    block = {"norm": norm, "norm_placement": config["norm_placement"], "norm_epsilon": config["norm_epsilon"]}
    block |= {"dropout": dropout, "dtype": dtype, "kernel_initializer": initializer, **options}
    for i in range(num_layers):
        x = _block(config, i, for_block(block, f"decoder_block_{i}", seed))(x)
    x = final_norm(x, block, "decoder_norm")
    if config["tie_embeddings"]:
        x = embedding(x, reverse=True)
    else:
        head = {"use_bias": False, "kernel_initializer": clone_initializer(initializer, "logits"), "dtype": "float32"}
        x = keras.layers.Dense(vocabulary_size, **head, name="logits")(x)
    if config["logits_soft_cap"]:
        x = layers.SoftCap(config["logits_soft_cap"], name="soft_cap")(x)
    return keras.Model(token_ids, x, name=name)


def _block(config, number, options):
    is_local = config["layer_types"][number % len(config["layer_types"])] == LAYER_TYPES[0]
    rotary = {"base": config["rotary_base"], "scaling": config["rotary_scaling"] or None}
    if is_local and config["local_rotary_base"]:
        rotary = {"base": config["local_rotary_base"]}
    rotary["fraction"] = config["rotary_fraction"]
    shared = {key: value for key, value in options.items() if key.startswith(("kernel_", "bias_"))}
    shared |= {"dtype": options["dtype"]}
    attention = layers.MultiHeadAttention(
        config["num_heads"],
        config["key_dim"] or head_dim(config["hidden_dim"], config["num_heads"]),
        num_key_value_heads=config["num_key_value_heads"],
        dropout=options["dropout"],
        use_bias=config["use_bias"],
        rotary=layers.Rotary(**rotary, dtype=options["dtype"]),
        sliding_window=config["sliding_window"] or None if is_local else None,
        qk_norm=options["norm"] if config["qk_norm"] else None,
        soft_cap=config["attention_soft_cap"] or None,
        scale=config["query_scale"] or None,
        seed=derived_seed(options["seed"], "self_attention"),
        name="self_attention",
        **shared,
    )
    network = {"activation": config["activation"], "gated": True, "use_bias": False, "name": "feed_forward", **shared}
    if not options.get("feed_forward"):
        network["dropout"] = options.pop("feed_forward_dropout", 0.0)
        network["seed"] = derived_seed(options["seed"], "feed_forward")
    if config["num_experts"]:
        experts = {key: config[key] for key in ("num_experts", "num_experts_per_token", "load_balancing_loss")}
        feed_forward = layers.MixtureOfExperts(intermediate_dim=config["intermediate_dim"], **experts, **network)
    else:
        feed_forward = layers.FeedForward(config["intermediate_dim"], **network)
    return layers.DecoderBlock(**{"attention": attention, "feed_forward": feed_forward, **options})
