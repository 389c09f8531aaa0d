"""The recurrent encoder-decoder: what came before the Transformer, with its inputs and outputs.

Sources: Cho et al. 2014 (https://arxiv.org/abs/1406.1078) and Sutskever et al. 2014 (https://arxiv.org/abs/1409.3215)
without attention; Bahdanau et al. 2014 (https://arxiv.org/abs/1409.0473) and Luong et al. 2015
(https://arxiv.org/abs/1508.04025) with it.
"""

import math

import keras
from keras import layers

from keras_transformer.arguments import check_size
from keras_transformer.layers import BahdanauAttention, LastState, LuongAttention, PositionalEmbedding, Recurrent
from keras_transformer.layers.common import check_choice, check_optional_size, check_rate, derived_seed
from keras_transformer.layers.recurrent import CELLS
from keras_transformer.models.encoder_decoder import check_vocabularies, encoder_decoder, pair, vectors


def rnn(
    source_vocabulary_size,
    target_vocabulary_size,
    num_layers=1,
    hidden_dim=256,
    cell="gru",
    bidirectional=True,
    attention="bahdanau",
    embedding_dim=None,
    dropout=0.1,
    share_embeddings="target",
    pad_token_id=0,
    start_token_id=None,
    stop_token_id=None,
    seed=None,
    dtype=None,
    name="rnn",
):
    """A recurrent encoder-decoder, with attention or without, as a functional model.

    The graph is that of `kt.models.transformer`, so `fit`, `generate`, `encoder_from_ids` and files know no difference:
    token ids -> embeddings -> `encoder` and `decoder` -> logits.

    The encoder is a stack of `Recurrent` layers, whose outputs are its states (B, S, D). The decoder's layers start
    from the encoder's last state, one tanh projection of it for each of their states, and read the target. Then

        hidden = tanh(W_c context + W_h state + b)

    makes of each decoder state, and of the context that it attends to, what the logits are made of. Both attentions
    come behind the recurrent layers, as in Luong et al. and without input feeding: they differ in the score alone, the
    recurrence does not wait for them, and a step of the decoder needs nothing but its own state. (In Bahdanau et al.
    the state *before* the step is the query, and the context goes into the cell.) Without attention there is no
    context, and what the target knows of the source is where its layers start.

    Args:
        source_vocabulary_size, target_vocabulary_size: numbers of token ids.
        num_layers: layers in the encoder and in the decoder; a pair gives each its own number.
        hidden_dim: units of each layer, in each direction.
        cell: `"gru"`, `"lstm"` or `"simple"`.
        bidirectional: whether the encoder reads in both directions; then D is 2 * hidden_dim.
        attention: `"bahdanau"` (additive), `"luong"` (multiplicative, the general form) or None.
        embedding_dim: size of the token vectors, `hidden_dim` by default.
        dropout: after the embeddings, between the layers and before the logits.
        share_embeddings: `"all"`: one table for source, target and output; `"target"`: the output reuses the target's
            table; None: three matrices.
        pad_token_id: the id that is padding.
        start_token_id, stop_token_id: ids that begin and end the target; `generate` reads them from the model.
        seed: seed of all dropouts.
        dtype: dtype or policy of all layers.

    Returns:
        A `keras.Model` from `{"encoder_token_ids": (B, S), "decoder_token_ids": (B, T)}`, int32, or the two in a list,
        to float32 logits (B, T, target_vocabulary_size).

    Example:
    ```python
    model = keras_transformer.models.rnn(8000, 8000, cell="lstm", attention="luong", share_embeddings="all")
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
    check_size(hidden_dim=hidden_dim)
    check_optional_size(embedding_dim=embedding_dim)
    check_choice(tuple(CELLS), cell=cell)
    check_choice(("bahdanau", "luong", None), attention=attention)
    check_rate(dropout=dropout)
    num_encoder_layers, num_decoder_layers = pair(num_layers)
    embedding_dim = embedding_dim or hidden_dim
    config = {
        "family": "rnn",
        "source_vocabulary_size": source_vocabulary_size,
        "target_vocabulary_size": target_vocabulary_size,
        "num_layers": [num_encoder_layers, num_decoder_layers],
        "hidden_dim": hidden_dim,
        "cell": cell,
        "bidirectional": bidirectional,
        "attention": attention,
        "embedding_dim": embedding_dim,
        "share_embeddings": share_embeddings,
        "pad_token_id": pad_token_id,
        "start_token_id": start_token_id,
        "stop_token_id": stop_token_id,
    }

    def embedding(vocabulary_size, name):
        return PositionalEmbedding(
            vocabulary_size,
            embedding_dim,
            position=None,
            scale=math.sqrt(embedding_dim),  # vectors, and tied logits, begin with variance near 1
            dropout=dropout,
            pad_token_id=pad_token_id,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=embedding_dim**-0.5),
            seed=derived_seed(seed, name),
            dtype=dtype,
            name=name,
        )

    def recurrent(name, index, **options):
        name = f"{name}_{index}"
        options |= {"dropout": dropout if index else 0.0}  # the embeddings have theirs
        return Recurrent(hidden_dim, cell, seed=derived_seed(seed, name), dtype=dtype, name=name, **options)

    inputs = x = vectors(embedding_dim, dtype, "encoder_inputs")
    for i in range(num_encoder_layers):
        x = recurrent("encoder_rnn", i, bidirectional=bidirectional)(x)
    encoder = keras.Model(inputs, x, name="encoder")

    inputs = x = vectors(embedding_dim, dtype, "decoder_inputs")
    states = vectors(encoder.output.shape[-1], dtype, "encoder_states")
    last = LastState(bidirectional, dtype=dtype, name="encoder_last_state")(states)
    for i in range(num_decoder_layers):
        layer = recurrent("decoder_rnn", i)
        start = [
            layers.Dense(size, "tanh", dtype=dtype, name=f"decoder_start_{i}_{part}")(last)
            for part, size in enumerate(layer.state_sizes)
        ]
        x = layer(x, start)
    hidden = layers.Dense(embedding_dim, dtype=dtype, name="hidden_of_state")(x)
    if attention is not None:
        options = {"dtype": dtype, "name": "cross_attention"}
        is_additive = attention == "bahdanau"
        attend = BahdanauAttention(hidden_dim, **options) if is_additive else LuongAttention("general", **options)
        context = layers.Dense(embedding_dim, use_bias=False, dtype=dtype, name="hidden_of_context")(attend(x, states))
        hidden = layers.Add(dtype=dtype, name="hidden_sum")([hidden, context])
    hidden = layers.Activation("tanh", dtype=dtype, name="hidden")(hidden)
    hidden = layers.Dropout(dropout, seed=derived_seed(seed, "hidden"), dtype=dtype, name="hidden_dropout")(hidden)
    decoder = keras.Model([inputs, states], hidden, name="decoder")
    return encoder_decoder(config, embedding, encoder, decoder, name)
