"""T5, the text-to-text Transformer, in its original form and in that of v1.1.

Sources: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer"
(https://arxiv.org/abs/1910.10683); gated networks: Shazeer 2020 (https://arxiv.org/abs/2002.05202).
"""

import keras

from keras_transformer import layers
from keras_transformer.layers.activations import gelu_tanh
from keras_transformer.layers.common import derived_seed
from keras_transformer.models.common import (
    dense_options,
    dropped,
    final_norm,
    for_block,
    of_encoder,
    patterns,
    sublayers,
)
from keras_transformer.models.encoder_decoder import one_vocabulary, special_ids, two_depths, vectors


def t5(
    size="small",
    vocabulary_size=32128,
    num_layers=None,
    num_decoder_layers=None,
    hidden_dim=None,
    num_heads=None,
    key_dim=None,
    intermediate_dim=None,
    gated=None,
    tie_embeddings=None,
    scale_logits=True,
    relative_buckets=32,
    relative_max_distance=128,
    dropout=0.1,
    activation=None,
    norm_epsilon=1e-6,
    pad_token_id=0,
    start_token_id=0,
    stop_token_id=1,
    seed=None,
    dtype=None,
    name="t5",
    **block_options,
):
    """T5 as a functional model: RMS norm first, no biases, and a learned number for each distance as the positions.

    T5 small has 60,506,624 parameters, base 222,903,552, large 737,668,096; v1.1 small 76,961,152, base 247,577,856.

    The targets begin with the id that is padding. So no target id is masked, unless another `start_token_id` is given;
    padding behind a text is never looked at, and the loss takes `sample_weight`, which `BucketedPairs` gives.

    Args:
        size: `"tiny"`, `"small"`, `"base"`, `"large"`, `"3b"`, `"11b"`; `"v1_1_small"`, `"v1_1_base"`, `"v1_1_large"`,
            `"v1_1_xl"`, `"v1_1_xxl"`. What is given replaces what was published. None: all sizes are given.
        vocabulary_size: number of token ids of both sides.
        num_layers, num_decoder_layers: blocks in the encoder, and in the decoder if these are not as many.
        hidden_dim, num_heads, key_dim, intermediate_dim: sizes of the blocks.
        gated: whether the feed-forward networks have a gate; None: as published, else False.
        tie_embeddings: True: the token table makes the logits, of vectors divided by sqrt(hidden_dim); False: a matrix
            of their own does; None: as published, else True.
        scale_logits: False: a tied table makes them of the vectors as they are.
        relative_buckets, relative_max_distance: rows of the two tables of distances, and where the last one begins.
        dropout: after the embeddings and last norms, on residuals and probabilities, and in the feed-forward networks.
        activation: of the feed-forward networks; None is "relu", with a gate `gelu_tanh`.
        norm_epsilon: epsilon of all norms.
        pad_token_id, start_token_id, stop_token_id: special ids; `generate` reads them from the model.
        seed: seed of all dropouts.
        dtype: dtype or policy of all layers.
        **block_options: further arguments of `EncoderBlock` and `DecoderBlock` (`norm_placement="pre"`, ...).

    Returns:
        A `keras.Model` from `{"encoder_token_ids": (B, S), "decoder_token_ids": (B, T)}`, int32, or the two in a list,
        to float32 logits (B, T, vocabulary_size).

    Example: `logits = keras_transformer.models.t5("tiny")([source_ids, target_ids])`
    """
    sizes = {"num_layers": num_layers, "hidden_dim": hidden_dim, "num_heads": num_heads, "key_dim": key_dim}
    sizes |= {"intermediate_dim": intermediate_dim, "num_decoder_layers": num_decoder_layers}
    sizes = {"gated": False, **two_depths("t5", size, **sizes, gated=gated, tie_embeddings=tie_embeddings)}
    config = {"family": "t5", "vocabulary_size": vocabulary_size, "tie_embeddings": True, **sizes}
    config |= {"relative_buckets": relative_buckets, "relative_max_distance": relative_max_distance}
    special = {"pad_token_id": pad_token_id, "start_token_id": start_token_id, "stop_token_id": stop_token_id}
    config |= {"norm_epsilon": norm_epsilon, "scale_logits": bool(scale_logits)}
    config |= special_ids(vocabulary_size, **special)
    hidden_dim, num_heads, gated = (sizes[key] for key in ("hidden_dim", "num_heads", "gated"))

    options = {"dropout": dropout, "dtype": dtype, "norm": "rms", "norm_epsilon": norm_epsilon, "norm_placement": "pre"}
    dense, options = dense_options({**options, "use_bias": False, **block_options})
    dense |= {"dropout": dropout, "dtype": dtype}
    network = {"activation": activation or (gelu_tanh if gated else "relu"), "gated": gated}
    if not options.get("feed_forward"):
        network["dropout"] = options.pop("feed_forward_dropout", dropout)
    network = layers.FeedForward, {"intermediate_dim": sizes["intermediate_dim"], **network}
    attention = layers.MultiHeadAttention, {"num_heads": num_heads, "key_dim": sizes["key_dim"], "scale": 1.0}

    def stack(side, block, num_layers, options, *states, **cross_attention):
        inputs = x = vectors(hidden_dim, dtype, f"{side}_inputs")
        distances = {"bidirectional": side == "encoder", "dtype": dtype, "name": f"{side}_position_bias"}
        bias = layers.RelativePositionBias(num_heads, relative_buckets, relative_max_distance, **distances)(x)
        for name in (f"{side}_block_{i}" for i in range(num_layers)):
            parts = {"attention": attention, "feed_forward": network, **cross_attention}
            parts = {key: part for key, part in parts.items() if key not in patterns(options)}
            parts = sublayers(name, seed, dense, **parts)
            x = block(**for_block(options, name, seed), **parts)(x, *states, position_bias=bias)
        x = dropped(final_norm(x, options, f"{side}_norm"), dropout, f"{side}_dropout", seed, dtype)
        if side == "decoder" and config["tie_embeddings"] and scale_logits:  # so that logits start with variance 1
            scale = {"scale": hidden_dim**-0.5, "dtype": dtype, "name": "decoder_scale"}
            x = layers.PositionalEmbedding(None, hidden_dim, position=None, **scale)(x)
        return keras.Model([inputs, *states], x, name=side)

    encoder = stack("encoder", layers.EncoderBlock, sizes["num_layers"], of_encoder(options))
    states = vectors(hidden_dim, dtype, "encoder_states")
    decoder = stack(
        "decoder", layers.DecoderBlock, sizes["num_decoder_layers"], options, states, cross_attention=attention
    )
    table = {"embeddings_initializer": keras.initializers.RandomNormal(stddev=1.0), "dropout": dropout}
    return one_vocabulary(config, encoder, decoder, name, dtype=dtype, seed=derived_seed(seed, "embedding"), **table)
