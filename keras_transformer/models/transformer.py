"""The encoder-decoder Transformer.

Source: Vaswani et al. 2017, "Attention Is All You Need" (https://arxiv.org/abs/1706.03762).
"""

import keras

from keras_transformer.arguments import check_size
from keras_transformer.layers import DecoderBlock, EncoderBlock, PositionalEmbedding
from keras_transformer.layers.common import derived_seed, head_dim
from keras_transformer.models.common import final_norm, for_block, of_decoder, of_encoder
from keras_transformer.models.encoder_decoder import (
    check_vocabularies,
    encoder_decoder,
    pair,
    vectors,
)


def transformer(
    source_vocabulary_size,
    target_vocabulary_size,
    num_layers=6,
    num_heads=8,
    hidden_dim=512,
    intermediate_dim=2048,
    dropout=0.1,
    share_embeddings="target",
    max_sequence_length=None,
    position="sinusoidal",
    norm_placement="post",
    activation="relu",
    pad_token_id=0,
    start_token_id=None,
    stop_token_id=None,
    seed=None,
    dtype=None,
    name="transformer",
    **block_options,
):
    """The Transformer of "Attention Is All You Need" as a functional model.

    The whole is one graph: token ids -> embeddings -> `encoder` and `decoder` -> logits. `encoder` (vectors -> states)
    and `decoder` (vectors, states -> vectors) are functional models of their own, `model.get_layer("encoder")`; see
    also `encoder_from_ids`.

    With the defaults and one shared vocabulary of 37,000 pieces (`share_embeddings="all"`) it has the paper's base
    size, 63,082,496 parameters:

        attention       4 * (512 * 512 + 512)                        1,050,624
        feed-forward    512 * 2048 + 2048 + 2048 * 512 + 512         2,099,712
        norm            2 * 512                                          1,024
        encoder block   1 attention + feed-forward + 2 norms         3,152,384
        decoder block   2 attention + feed-forward + 3 norms         4,204,032
        embedding       37,000 * 512                                18,944,000
        total           6 * (3,152,384 + 4,204,032) + 18,944,000    63,082,496

    Args:
        source_vocabulary_size, target_vocabulary_size: numbers of token ids.
        num_layers: blocks in the encoder and in the decoder; a pair gives each its own number.
        num_heads, hidden_dim, intermediate_dim, activation: sizes of the blocks.
        dropout: after the embeddings, on the residuals and on the attention probabilities.
        share_embeddings: `"all"`: one table for source, target and output; `"target"`: the output reuses the target's
            table; None: three matrices.
        max_sequence_length: number of learned positions; sinusoidal positions have no limit.
        position: `"sinusoidal"` or `"learned"`.
        norm_placement: `"post"` as published, or `"pre"`, `"sandwich"`, `"output"`.
        pad_token_id: the id that is padding.
        start_token_id, stop_token_id: ids that begin and end the target; `generate` reads them from the model.
        seed: seed of all dropouts.
        dtype: dtype or policy of all layers.
        **block_options: further arguments of `EncoderBlock` and `DecoderBlock` (`norm`, `key_dim`, `use_bias`, ...).

    Returns:
        A `keras.Model` from `{"encoder_token_ids": (B, S), "decoder_token_ids": (B, T)}`, int32, or the two in a list,
        to float32 logits (B, T, target_vocabulary_size).

    Example:
    ```python
    model = keras_transformer.models.transformer(8000, 8000, num_layers=2, hidden_dim=256, num_heads=4,
                                                 intermediate_dim=1024, share_embeddings="all")
    logits = model({"encoder_token_ids": source, "decoder_token_ids": target})
    ```
    """
    check_vocabularies(
        source_vocabulary_size,
        target_vocabulary_size,
        share_embeddings,
        start_token_id=start_token_id,
        stop_token_id=stop_token_id,
    )
    check_size(hidden_dim=hidden_dim, num_heads=num_heads, intermediate_dim=intermediate_dim)
    if "key_dim" not in block_options:
        head_dim(hidden_dim, num_heads)  # refused here, before anything is made
    num_encoder_layers, num_decoder_layers = pair(num_layers)
    config = {
        "family": "transformer",
        "source_vocabulary_size": source_vocabulary_size,
        "target_vocabulary_size": target_vocabulary_size,
        "num_layers": [num_encoder_layers, num_decoder_layers],
        "num_heads": num_heads,
        "hidden_dim": hidden_dim,
        "intermediate_dim": intermediate_dim,
        "share_embeddings": share_embeddings,
        "max_sequence_length": max_sequence_length,
        "position": position,
        "norm_placement": norm_placement,
        "pad_token_id": pad_token_id,
        "start_token_id": start_token_id,
        "stop_token_id": stop_token_id,
    }

    def embedding(vocabulary_size, name):
        return PositionalEmbedding(
            vocabulary_size,
            hidden_dim,
            max_sequence_length,
            position=position,
            dropout=dropout,
            pad_token_id=pad_token_id,
            # With the scale of sqrt(hidden_dim), the sum of token and position starts with variance near 1 + 1/2,
            # and the tied logits with variance near 1.
            embeddings_initializer=keras.initializers.RandomNormal(stddev=hidden_dim**-0.5),
            seed=derived_seed(seed, name),
            dtype=dtype,
            name=name,
        )

    block = {
        "num_heads": num_heads,
        "intermediate_dim": intermediate_dim,
        "dropout": dropout,
        "norm_placement": norm_placement,
        "activation": activation,
        "dtype": dtype,
        **block_options,
    }
    encoder = _encoder(num_encoder_layers, hidden_dim, of_encoder(block), seed)
    decoder = _decoder(num_decoder_layers, hidden_dim, of_decoder(block, hidden_dim, seed), seed)
    return encoder_decoder(config, embedding, encoder, decoder, name)


def _encoder(num_layers, hidden_dim, block, seed):
    inputs = x = vectors(hidden_dim, block["dtype"], "encoder_inputs")
    for i in range(num_layers):
        name = f"encoder_block_{i}"
        x = EncoderBlock(**for_block(block, name, seed))(x)
    return keras.Model(inputs, final_norm(x, block, "encoder_norm"), name="encoder")


def _decoder(num_layers, hidden_dim, block, seed):
    inputs = x = vectors(hidden_dim, block["dtype"], "decoder_inputs")
    states = vectors(hidden_dim, block["dtype"], "encoder_states")
    for i in range(num_layers):
        name = f"decoder_block_{i}"
        x = DecoderBlock(**for_block(block, name, seed))(x, states)
    return keras.Model([inputs, states], final_norm(x, block, "decoder_norm"), name="decoder")


def encoder_from_ids(model):
    """The part of an encoder-decoder from `encoder_token_ids` to the encoder's states, sharing its weights.

    Works on every model whose graph has an input `encoder_token_ids` and a sub-model called "encoder", also after
    loading.

    Example: `states = encoder_from_ids(model)(source_ids)  # (B, S, D)`
    """
    return keras.Model(_input(model, "encoder_token_ids"), _states(model), name="encoder_from_ids")


def decoder_from_ids(model):
    """The rest of an encoder-decoder: decoder ids and encoder states to its output, sharing its weights.

    Example: `logits = decoder_from_ids(model)({"decoder_token_ids": target_ids, "encoder_states": states})`
    """
    encoder_states = _states(model)
    states = keras.Input(encoder_states.shape[1:], dtype=encoder_states.dtype, name="encoder_states")
    token_ids = keras.Input((None,), dtype="int32", name="decoder_token_ids")

    def call(layer, *args, **kwargs):
        # The source side lets the states through untouched, the encoder included; everything else runs.
        return states if args and args[0] is states else layer(*args, **kwargs)

    # A model cut out of the graph between these tensors would spoil the original: Keras could not save it any more.
    # The view is not compiled, so that no optimizer is cloned.
    view = keras.Model([_input(model, name) for name in ("encoder_token_ids", "decoder_token_ids")], model.output)
    rest = keras.models.clone_model(view, [states, token_ids], clone_function=lambda x: x, call_function=call)
    return keras.Model({"decoder_token_ids": token_ids, "encoder_states": states}, rest.output, name="decoder_from_ids")


def _input(model, name):
    for tensor in model.inputs:
        if tensor.name == name:
            return tensor
    names = [tensor.name for tensor in model.inputs]
    raise ValueError(f"The model has no input called {name!r}. Its inputs are {names}")


def _states(model):
    # `output` of a functional model is its inner tensor; the one of `Operation` is where it was called.
    return keras.Operation.output.fget(model.get_layer("encoder"))
