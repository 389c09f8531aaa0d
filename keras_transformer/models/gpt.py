"""GPT-2.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"
(https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf).
"""

import keras

from keras_transformer import layers
from keras_transformer.arguments import check_size
from keras_transformer.layers.common import check_token_ids, clone_initializer, derived_seed
from keras_transformer.models.common import final_norm, for_block
from keras_transformer.models.sizes import sizes_of


def gpt(
    size="small",
    vocabulary_size=50257,
    max_sequence_length=1024,
    num_layers=None,
    hidden_dim=None,
    num_heads=None,
    intermediate_dim=None,
    dropout=0.1,
    position_offset=0,
    activation="gelu_tanh",
    norm_epsilon=1e-5,
    pad_token_id=None,
    start_token_id=None,
    stop_token_id=None,
    tie_embeddings=True,
    seed=None,
    dtype=None,
    name="gpt",
    **block_options,
):
    """GPT-2 as a functional model: tokens and learned positions, decoder blocks with the norm first, the head.

    Small has 124,439,808 parameters: tables (50,257 + 1,024) * 768, 12 blocks of 7,087,872, and a norm 2 * 768.

    Args:
        size: `"tiny"`, `"small"`, `"medium"`, `"large"` or `"xl"`. A size that is given replaces the published one.
            None: all of them are given.
        vocabulary_size, max_sequence_length: rows of the two tables.
        num_layers, hidden_dim, num_heads, intermediate_dim: sizes.
        dropout: after the embedding, on the residuals and on the attention probabilities.
        position_offset: rows in front of the first position's in their table; 2 in OPT.
        activation: of the feed-forward networks.
        norm_epsilon: epsilon of all norms.
        pad_token_id: the id that is padding; None for none.
        start_token_id, stop_token_id: ids that begin and end a text; `generate` reads them from the model. Several
            may end it.
        tie_embeddings: whether the table of tokens is the head, too, as published.
        seed: seed of all dropouts.
        dtype: dtype or policy of all layers; logits are float32.
        **block_options: further arguments of `DecoderBlock` (`norm_placement="pre"`, `use_bias`, `norm`, ...).
            Kernels begin with a deviation of 0.02; GPT-2 divides those in front of a sum by sqrt(2 * num_layers).

    Returns:
        A `keras.Model` from `token_ids` (B, T), int32, to float32 logits (B, T, vocabulary_size).

    Example: `logits = keras_transformer.models.gpt("tiny", vocabulary_size=8000)(token_ids)`
    """
    sizes = {"num_layers": num_layers, "hidden_dim": hidden_dim, "num_heads": num_heads}
    sizes = sizes_of("gpt", size, **sizes, intermediate_dim=intermediate_dim)
    tables = {"vocabulary_size": vocabulary_size, "max_sequence_length": max_sequence_length}
    ids = {"pad_token_id": pad_token_id, "start_token_id": start_token_id, "stop_token_id": stop_token_id}
    check_size(**sizes, **tables)
    check_token_ids(vocabulary_size, **ids)
    config = {"family": "gpt", **sizes, **tables, **ids, "tie_embeddings": tie_embeddings}

    token_ids = keras.Input((None,), dtype="int32", name="token_ids")
    embedding = layers.PositionalEmbedding(
        **tables,
        hidden_dim=sizes.pop("hidden_dim"),
        position="learned",
        position_offset=position_offset,
        dropout=dropout,
        pad_token_id=pad_token_id,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=0.02),
        position_initializer=keras.initializers.RandomNormal(stddev=0.01),
        seed=derived_seed(seed, "embedding"),
        dtype=dtype,
        name="embedding",
    )
    x = embedding(layers.ModelCard(config, name="model_card")(token_ids))
    num_layers = sizes.pop("num_layers")
    options = {**sizes, "dropout": dropout, "norm_placement": "pre", "activation": activation}
    # As published; with larger kernels the blocks drown the tokens at first, whose table is as small.
    options |= {"kernel_initializer": keras.initializers.RandomNormal(stddev=0.02)}
    options |= {"norm_epsilon": norm_epsilon, "dtype": dtype, **block_options}
    for i in range(num_layers):
        x = layers.DecoderBlock(**for_block(options, f"decoder_block_{i}", seed))(x)
    x = final_norm(x, options, "decoder_norm")
    if tie_embeddings:
        return keras.Model(token_ids, embedding(x, reverse=True), name=name)
    head = {"use_bias": False, "kernel_initializer": clone_initializer(options["kernel_initializer"], "logits")}
    logits = keras.layers.Dense(vocabulary_size, **head, dtype="float32", name="logits")(x)
    return keras.Model(token_ids, logits, name=name)
