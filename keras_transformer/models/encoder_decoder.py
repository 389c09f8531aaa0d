"""What the builders of encoder-decoders have in common."""

import keras

from keras_transformer.arguments import check_id, check_size
from keras_transformer.layers import AddBias, ModelCard, PaddingMask, PositionalEmbedding
from keras_transformer.layers.common import check_choice, check_token_ids
from keras_transformer.models.sizes import sizes_of


def check_vocabularies(source_vocabulary_size, target_vocabulary_size, share_embeddings, **special_token_ids):
    """Refuse sizes, a sharing or special ids of the target that do not go together."""
    check_choice(("all", "target", None), share_embeddings=share_embeddings)
    check_size(source_vocabulary_size=source_vocabulary_size, target_vocabulary_size=target_vocabulary_size)
    check_token_ids(target_vocabulary_size, **special_token_ids)
    if share_embeddings == "all" and source_vocabulary_size != target_vocabulary_size:
        raise ValueError(
            'share_embeddings="all" needs one vocabulary for both sides. Received: '
            f"source_vocabulary_size={source_vocabulary_size}, target_vocabulary_size={target_vocabulary_size}"
        )


def pair(num_layers):
    """The numbers of layers of encoder and decoder, from one for both or two."""
    numbers = tuple(num_layers) if isinstance(num_layers, (list, tuple)) else (num_layers, num_layers)
    if len(numbers) != 2:
        raise ValueError(f"`num_layers` must be a number or a pair of them. Received: num_layers={num_layers}")
    for number in numbers:
        check_size(num_layers=number)
    return numbers


def vectors(dim, dtype, name):
    """An input of a nested model, (B, T, dim)."""
    # In the dtype that they come in: a nested model that has to cast its inputs loses their masks.
    return keras.Input((None, dim), dtype=keras.dtype_policies.get(dtype).compute_dtype, name=name)


def encoder_decoder(config, embedding, encoder, decoder, name):
    """The one graph from both sides' ids to logits, which owns the token layers and the head.

    Args:
        config: dict for the `ModelCard`; its vocabulary sizes and `share_embeddings` say what is made here.
        embedding: function of a vocabulary size and a name that makes a token layer.
        encoder: nested model, embedded source -> states.
        decoder: nested model, `[embedded target, states]` -> hidden vectors.
        name: name of the model.
    """
    target_vocabulary_size, share = config["target_vocabulary_size"], config["share_embeddings"]
    if share == "all":
        source_embedding = target_embedding = embedding(target_vocabulary_size, "embedding")
    else:
        source_embedding = embedding(config["source_vocabulary_size"], "source_embedding")
        target_embedding = embedding(target_vocabulary_size, "target_embedding")
    encoder_token_ids = keras.Input((None,), dtype="int32", name="encoder_token_ids")
    decoder_token_ids = keras.Input((None,), dtype="int32", name="decoder_token_ids")
    source = source_embedding(ModelCard(config, name="model_card")(encoder_token_ids))
    target = target_embedding(decoder_token_ids)
    hidden = decoder([target, encoder(source)])
    if share is None:
        logits = keras.layers.Dense(target_vocabulary_size, use_bias=False, dtype="float32", name="logits")(hidden)
    else:
        logits = target_embedding(hidden, reverse=True)
    # Given as a list, Keras takes them by name as well; given as a dict, by name only.
    return keras.Model([encoder_token_ids, decoder_token_ids], logits, name=name)


def one_vocabulary(config, encoder, decoder, name, dtype, **embedding):
    """The graph of an encoder-decoder whose two sides read one token table.

    Args:
        config: dict for the `ModelCard`; its special ids, `tie_embeddings` and `logits_bias` say what is made here.
        encoder, decoder, name: as for `encoder_decoder`.
        dtype: of the token table.
        **embedding: options of the token table.
    """
    size, pad_token_id = config["vocabulary_size"], config["pad_token_id"]
    table = {"position": None, "pad_token_id": None, "dtype": dtype, "name": "embedding", **embedding}
    table = PositionalEmbedding(size, config["hidden_dim"], **table)
    encoder_token_ids = keras.Input((None,), dtype="int32", name="encoder_token_ids")
    target = decoder_token_ids = keras.Input((None,), dtype="int32", name="decoder_token_ids")
    source = ModelCard(config, name="model_card")(encoder_token_ids)
    source = PaddingMask(pad_token_id, name="encoder_padding")(source)
    if config["start_token_id"] != pad_token_id:
        target = PaddingMask(pad_token_id, name="decoder_padding")(target)
    hidden = decoder([table(target), encoder(table(source))])
    if config["tie_embeddings"]:
        logits = table(hidden, reverse=True)
    else:
        logits = keras.layers.Dense(size, use_bias=False, dtype="float32", name="logits")(hidden)
    if config.get("logits_bias"):
        logits = AddBias(name="logits_bias")(logits)
    return keras.Model([encoder_token_ids, decoder_token_ids], logits, name=name)


def two_depths(family, size, **given):
    """`sizes_of` a family with `num_layers`, and `num_decoder_layers` where these are not as many."""
    sizes = sizes_of(family, size, **given)
    sizes.setdefault("num_decoder_layers", sizes["num_layers"])
    check_size(**{key: value for key, value in sizes.items() if not isinstance(value, bool)})
    return sizes


def special_ids(vocabulary_size, **token_ids):
    """The ids for the `ModelCard`, if the vocabulary has them and there is one for padding."""
    check_size(vocabulary_size=vocabulary_size)
    check_id(pad_token_id=token_ids["pad_token_id"])
    check_token_ids(vocabulary_size, **token_ids)
    return token_ids
