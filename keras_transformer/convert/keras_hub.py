"""From KerasHub's layers to these, weights included."""

import keras

from keras_transformer.layers import DecoderBlock, EncoderBlock, PositionalEmbedding


def from_keras_hub(layer):
    """The block or the embedding that computes what a layer of KerasHub does, with its weights.

    Args:
        layer: a built `keras_hub.layers.TransformerEncoder`, `TransformerDecoder`, `TokenAndPositionEmbedding` or
            `ReversibleEmbedding`.

    Returns:
        An `EncoderBlock`, a `DecoderBlock` or a `PositionalEmbedding` of the same name, built. Real tokens get the same
        vectors; at padded positions KerasHub computes an output like any other, here a padded query attends to nothing.

    Raises:
        ValueError: another layer, or one that is not built; heads that do not divide the features, which KerasHub
            rounds off.

    Example: `blocks = [from_keras_hub(layer) for layer in encoder_layers]`
    """
    kind, config = type(layer).__name__, layer.get_config() if isinstance(layer, keras.layers.Layer) else {}
    makers = {"TransformerEncoder": _block, "TransformerDecoder": _block}
    makers |= {"TokenAndPositionEmbedding": _embedding, "ReversibleEmbedding": _table}
    if kind not in makers:
        raise ValueError(f"`layer` must be one of KerasHub's {[*makers]}. Received: {kind}")
    if not layer.built or not layer.weights:
        raise ValueError(f"`layer` must have been built, by a first call, to have weights. Received: {layer.name}")
    return makers[kind](layer, config)


def _block(layer, config):
    options = {key: config[key] for key in ("intermediate_dim", "num_heads", "dropout", "activation", "name", "dtype")}
    options |= {key: config[key] for key in ("kernel_initializer", "bias_initializer")}
    placement = "pre" if config["normalize_first"] else "post"
    options |= {"norm_placement": placement, "norm_epsilon": config["layer_norm_epsilon"]}
    weights, is_encoder = layer.get_weights(), type(layer).__name__ == "TransformerEncoder"
    hidden_dim = weights[0].shape[0]
    if hidden_dim % config["num_heads"]:
        raise ValueError(
            f"{layer.name} has num_heads={config['num_heads']}, which do not divide its {hidden_dim} features."
        )
    shape = (None, None, hidden_dim)
    if is_encoder:
        block = EncoderBlock(**options)
        block.build(shape)
        # Attention, its norm; theirs has the norm of the feed-forward network in front of the network.
        block.set_weights(weights[:10] + weights[12:] + weights[10:12])
        return block
    block = DecoderBlock(**options)
    block.build(shape, shape) if len(weights) > 16 else block.build(shape)
    block.set_weights(weights)
    return block


def _embedding(layer, config):
    tokens, positions = layer.get_weights()
    ours = PositionalEmbedding(
        config["vocabulary_size"],
        config["embedding_dim"],
        max_sequence_length=config["sequence_length"],
        position="learned",
        pad_token_id=0 if config["mask_zero"] else None,
        name=config["name"],
        dtype=config["dtype"],
    )
    ours.build((None, None))
    ours.set_weights([positions, tokens])
    return ours


def _table(layer, config):
    if not config.get("tie_weights", True):
        raise ValueError(f"{layer.name} has two tables (`tie_weights=False`): take an Embedding and a Dense layer.")
    ours = PositionalEmbedding(
        config["input_dim"],
        config["output_dim"],
        position=None,
        pad_token_id=0 if config.get("mask_zero") else None,
        name=config["name"],
        dtype=config["dtype"],
    )
    ours.build((None, None))
    ours.set_weights(layer.get_weights())
    return ours
