"""BERT.

Source: Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers" (https://arxiv.org/abs/1810.04805).
"""

import keras

from keras_transformer import layers
from keras_transformer.arguments import check_count, check_size
from keras_transformer.layers.common import derived_seed
from keras_transformer.models.common import final_norm, for_block, norm_layer
from keras_transformer.models.sizes import sizes_of


def bert(
    size="base",
    vocabulary_size=30522,
    max_sequence_length=512,
    num_segments=2,
    num_layers=None,
    hidden_dim=None,
    num_heads=None,
    intermediate_dim=None,
    dropout=0.1,
    pooler=True,
    with_segments=False,
    pad_token_id=0,
    position_offset=0,
    pooler_activation="tanh",
    activation="gelu",
    norm_epsilon=1e-12,
    seed=None,
    dtype=None,
    name="bert",
    **block_options,
):
    """BERT as a functional model: tokens, positions and segments, normed; encoder blocks; a pooler.

    Base has 109,482,240 parameters: tables (30,522 + 512 + 2) * 768, a norm 2 * 768, 12 blocks of 7,087,872, and the
    pooler 768 * 768 + 768.

    Args:
        size: `"tiny"`, `"mini"`, `"small"`, `"medium"`, `"base"` or `"large"`. A size that is given replaces the
            published one. None: all of them are given.
        vocabulary_size, max_sequence_length, num_segments: rows of the three tables; without segments (0), as in
            DistilBERT, there are two.
        num_layers, hidden_dim, num_heads, intermediate_dim: sizes.
        dropout: after the embeddings, on the residuals and on the attention probabilities.
        pooler: False gives the states alone.
        with_segments: whether there is an input `segment_ids`; without it every token is of segment 0.
        pad_token_id: the id that is padding; None for none.
        position_offset: rows in front of the first position's in their table; 2 in RoBERTa.
        pooler_activation: of the pooler, also of one that a head needs; "relu" in DistilBERT.
        activation: of the feed-forward networks; "gelu" is the exact one, by the error function.
        norm_epsilon: epsilon of all norms.
        seed: seed of all dropouts.
        dtype: dtype or policy of all layers.
        **block_options: further arguments of `EncoderBlock` (`norm_placement="post"`, `use_bias`, ...).
            Kernels begin as Keras' do (Glorot); as published they would be made by
            `kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02)`.

    Returns:
        A `keras.Model` from `token_ids` (B, T), int32, or from `{"token_ids": ..., "segment_ids": ...}`, to
        `{"sequence_output": (B, T, D), "pooled_output": (B, D)}`, or to (B, T, D). The states carry the padding mask.

    Example: `states = keras_transformer.models.bert("tiny", pooler=False)(token_ids)`
    """
    sizes = {"num_layers": num_layers, "hidden_dim": hidden_dim, "num_heads": num_heads}
    sizes = sizes_of("bert", size, **sizes, intermediate_dim=intermediate_dim)
    tables = {"vocabulary_size": vocabulary_size, "max_sequence_length": max_sequence_length}
    check_size(**sizes, **tables)
    check_count(0, num_segments=num_segments)
    if with_segments and not num_segments:
        raise ValueError("An input for segments needs some. Received: with_segments=True, num_segments=0")
    config = {"family": "bert", **sizes, **tables, "num_segments": num_segments, "pad_token_id": pad_token_id}
    config["pooler_activation"] = pooler_activation
    hidden_dim, options = sizes.pop("hidden_dim"), {"dropout": dropout, "dtype": dtype, "norm_epsilon": norm_epsilon}
    initializer = keras.initializers.TruncatedNormal(stddev=0.02)

    inputs = {"token_ids": keras.Input((None,), dtype="int32", name="token_ids")}
    x = layers.PositionalEmbedding(
        **tables,
        hidden_dim=hidden_dim,
        position="learned",
        pad_token_id=pad_token_id,
        position_offset=position_offset,
        embeddings_initializer=initializer,
        position_initializer=initializer,
        dtype=dtype,
        name="embedding",
    )(layers.ModelCard(config, name="model_card")(inputs["token_ids"]))
    if with_segments:
        inputs["segment_ids"] = keras.Input((None,), dtype="int32", name="segment_ids")
    if num_segments:
        segments = layers.SegmentEmbedding(num_segments, hidden_dim, initializer, dtype=dtype, name="segment_embedding")
        x = segments(x, *list(inputs.values())[1:])
    x = norm_layer({**options, **block_options}, "embedding_norm")(x)
    x = keras.layers.Dropout(dropout, seed=derived_seed(seed, "embedding"), dtype=dtype, name="embedding_dropout")(x)
    num_layers = sizes.pop("num_layers")
    options |= {**sizes, "norm_placement": "post", "activation": activation, **block_options}
    for i in range(num_layers):
        x = layers.EncoderBlock(**for_block(options, f"encoder_block_{i}", seed))(x)
    x = final_norm(x, options, "encoder_norm")
    if pooler:
        pool = layers.Pooler(hidden_dim, pooler_activation, dtype=dtype, name="pooler")
        x = {"sequence_output": x, "pooled_output": pool(x)}
    return keras.Model(inputs if with_segments else inputs["token_ids"], x, name=name)
