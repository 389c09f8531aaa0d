"""BART: a bidirectional encoder and a causal decoder, trained to undo noise; mBART is its form with norms first.

Sources: Lewis et al. 2019, "BART" (https://arxiv.org/abs/1910.13461); Liu et al. 2020, "mBART"
(https://arxiv.org/abs/2001.08210); Junczys-Dowmunt et al. 2018, "Marian" (https://arxiv.org/abs/1804.00344).
"""

import keras

from keras_transformer import layers
from keras_transformer.models.common import dropped, final_norm, for_block, norm_layer, of_decoder, of_encoder
from keras_transformer.models.encoder_decoder import one_vocabulary, special_ids, two_depths, vectors


def bart(
    size="base",
    vocabulary_size=50265,
    max_sequence_length=1024,
    num_layers=None,
    num_decoder_layers=None,
    hidden_dim=None,
    num_heads=None,
    intermediate_dim=None,
    num_decoder_heads=None,
    decoder_intermediate_dim=None,
    dropout=0.1,
    position="learned",
    sinusoid_layout="interleaved",
    scale_embedding=False,
    embedding_norm=True,
    logits_bias=False,
    norm_placement="post",
    activation="gelu",
    pad_token_id=1,
    start_token_id=2,
    stop_token_id=2,
    seed=None,
    dtype=None,
    name="bart",
    **block_options,
):
    """BART as a functional model: one token table for both sides and the logits, a norm on the embeddings.

    BART base has 139,420,416 parameters, large 406,291,456.

    Args:
        size: `"tiny"`, `"base"` or `"large"`. What is given replaces what was published. None: all of `num_layers`,
            `hidden_dim`, `num_heads` and `intermediate_dim` are given.
        vocabulary_size: number of token ids, one vocabulary for both sides.
        max_sequence_length: number of learned positions; position p is row p + 2 of its side's table.
        num_layers, num_decoder_layers: blocks in the encoder, and in the decoder if these are not as many.
        hidden_dim, num_heads, intermediate_dim, activation: sizes of the blocks; "gelu" is the exact one.
        num_decoder_heads, decoder_intermediate_dim: sizes of the decoder's, if they differ.
        dropout: after the embeddings, on the residuals and on the attention probabilities.
        position, sinusoid_layout: `"learned"`, a table for each side, or `"sinusoidal"` in a layout of
            `PositionalEmbedding`; `"half"` is Marian's.
        scale_embedding: whether the token vectors are multiplied by sqrt(hidden_dim).
        embedding_norm: whether tokens with their positions are normed; not in Marian.
        logits_bias: whether the logits have a bias; they do in Marian.
        norm_placement: `"post"`, or `"pre"` as in mBART, with a norm behind each side.
        pad_token_id, start_token_id, stop_token_id: special ids; targets begin with the id that ends them. `generate`
            reads them from the model.
        seed: seed of all dropouts.
        dtype: dtype or policy of all layers.
        **block_options: further arguments of `EncoderBlock` and `DecoderBlock` (`norm_epsilon`, `use_bias`, ...).
            Kernels begin as Keras' do (Glorot); as published they would be made by
            `kernel_initializer=keras.initializers.RandomNormal(stddev=0.02)`.

    Returns:
        A `keras.Model` from `{"encoder_token_ids": (B, S), "decoder_token_ids": (B, T)}`, int32, or the two in a list,
        to float32 logits (B, T, vocabulary_size).

    Example: `logits = keras_transformer.models.bart("tiny")([source_ids, target_ids])`
    """
    sizes = {"num_layers": num_layers, "hidden_dim": hidden_dim, "num_heads": num_heads}
    sizes |= {"intermediate_dim": intermediate_dim, "num_decoder_layers": num_decoder_layers}
    sizes = two_depths("bart", size, **sizes)
    sizes["num_decoder_heads"] = num_decoder_heads or sizes["num_heads"]
    sizes["decoder_intermediate_dim"] = decoder_intermediate_dim or sizes["intermediate_dim"]
    config = {"family": "bart", "vocabulary_size": vocabulary_size, **sizes, "tie_embeddings": True}
    config |= {"position": position, "max_sequence_length": max_sequence_length, "scale_embedding": scale_embedding}
    special = {"pad_token_id": pad_token_id, "start_token_id": start_token_id, "stop_token_id": stop_token_id}
    config |= {"norm_placement": norm_placement, "logits_bias": logits_bias, **special_ids(vocabulary_size, **special)}
    hidden_dim, initializer = sizes["hidden_dim"], keras.initializers.RandomNormal(stddev=0.02)
    options = {"dropout": dropout, "dtype": dtype, "norm_placement": norm_placement, "activation": activation}
    options |= block_options
    places = {"max_sequence_length": max_sequence_length, "position": position, "position_initializer": initializer}
    places |= {"position_offset": 2 if position == "learned" else 0, "sinusoid_layout": sinusoid_layout, "dtype": dtype}

    def stack(side, block, num_layers, options, *states):
        inputs = vectors(hidden_dim, dtype, f"{side}_inputs")
        x = layers.PositionalEmbedding(None, hidden_dim, **places, name=f"{side}_embedding")(inputs)
        x = norm_layer(options, f"{side}_embedding_norm")(x) if embedding_norm else x
        x = dropped(x, dropout, f"{side}_dropout", seed, dtype)
        for i in range(num_layers):
            x = block(**for_block(options, f"{side}_block_{i}", seed))(x, *states)
        return keras.Model([inputs, *states], final_norm(x, options, f"{side}_norm"), name=side)

    numbers = {key: sizes[key] for key in ("num_heads", "intermediate_dim")}
    encoder = stack("encoder", layers.EncoderBlock, sizes["num_layers"], of_encoder({**numbers, **options}))
    states = vectors(hidden_dim, dtype, "encoder_states")
    numbers = {"num_heads": sizes["num_decoder_heads"], "intermediate_dim": sizes["decoder_intermediate_dim"]}
    blocks = of_decoder({**numbers, **options}, hidden_dim, seed)
    decoder = stack("decoder", layers.DecoderBlock, sizes["num_decoder_layers"], blocks, states)
    table = {"scale": hidden_dim**0.5 if scale_embedding else 1.0, "embeddings_initializer": initializer}
    return one_vocabulary(config, encoder, decoder, name, dtype=dtype, **table)
