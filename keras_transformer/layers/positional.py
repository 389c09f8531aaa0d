"""Token ids (or vectors) to vectors that know their position.

Source: Vaswani et al. 2017, "Attention Is All You Need", sections 3.4 and 3.5 (https://arxiv.org/abs/1706.03762);
tied output embeddings: Press and Wolf 2016 (https://arxiv.org/abs/1608.05859).
"""

import math

import keras
from keras import ops

from keras_transformer.arguments import check_count, check_size
from keras_transformer.layers.common import (
    PolicyLayer,
    check_choice,
    check_optional_size,
    check_rate,
    check_token_ids,
    clone_initializer,
    plain_int,
    register,
)
from keras_transformer.layers.positional_checks import check_end, check_inputs, check_positions
from keras_transformer.ops.cache import concrete, current_scope
from keras_transformer.ops.masks import token_positions
from keras_transformer.ops.sinusoid import LAYOUTS, sinusoidal_positions


@register
class PositionalEmbedding(PolicyLayer):
    """Embeds token ids, scales them, adds their positions and keeps their padding mask, in one layer.

    `output = dropout(scale * embedding[id] + position(p))`. Doing this in one layer is the point: between separate
    layers (`x * scale`, `x + positions`) Keras loses the padding mask without a word.

    Args:
        vocabulary_size: number of token ids. None: the input already is vectors (B, T, D): time series, frames,
            patches, features; then `scale` is 1 unless given and an incoming mask is passed on.
        hidden_dim: size of the vectors, D.
        max_sequence_length: number of rows of the table of learned positions; sinusoidal positions have no limit.
        position: `"sinusoidal"`, `"learned"` or None (tokens only).
        scale: factor on the embedding. None: sqrt(hidden_dim) for sinusoidal positions of tokens, 1 otherwise.
        dropout: rate of the dropout on the sum.
        pad_token_id: the id that is padding and gets masked. None: no id is padding, and no mask is made.
        embeddings_initializer, position_initializer: initializers of the two tables.
        embeddings_regularizer, embeddings_constraint: of the token table.
        position_offset: learned position p is row `p + position_offset` of a table that has so many rows more (BART and
            RoBERTa: 2).
        sinusoid_layout: `"interleaved"`, sines and cosines take turns, or `"half"`, all sines come first (Marian).
        seed: seed of the dropout.

    Call arguments:
        inputs: integer token ids (B, T), or vectors (B, T, D). With `reverse=True` vectors (B, T, D).
        positions: int (B, T), position of each token; by default a row counts from its first unmasked token, so that
            padding on the left changes nothing, and holes keep their index.
        start_index: added to the positions when `positions` is not given, also to those of a `DecodingScope`.
        reverse: use the table backwards: vectors (B, T, D) to float32 logits (B, T, V), no positions, scale or
            dropout; the mask is kept.

    Returns:
        (B, T, D), or (B, T, V) when reversed.

    Raises:
        ValueError: ids outside the table (when called eagerly; compiled code gives NaN rows, never another token's
            row), fractional ids, a wrong rank, or more tokens than learned positions, padding included.

    Example:
    ```python
    layer = PositionalEmbedding(vocabulary_size=1000, hidden_dim=64)
    x = layer(np.array([[5, 6, 7, 0, 0]]))  # (1, 5, 64); the last two tokens are masked
    logits = layer(x, reverse=True)  # (1, 5, 1000)
    ```
    """

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        max_sequence_length=None,
        position="sinusoidal",
        scale=None,
        dropout=0.0,
        pad_token_id=0,
        embeddings_initializer="uniform",
        position_initializer="uniform",
        embeddings_regularizer=None,
        embeddings_constraint=None,
        position_offset=0,
        sinusoid_layout="interleaved",
        seed=None,
        **kwargs,
    ):
        check_optional_size(vocabulary_size=vocabulary_size, max_sequence_length=max_sequence_length)
        check_size(hidden_dim=hidden_dim)
        check_choice(("sinusoidal", "learned", None), position=position)
        check_choice(LAYOUTS, sinusoid_layout=sinusoid_layout)
        check_rate(dropout=dropout)
        if position == "learned" and max_sequence_length is None:
            raise ValueError('`max_sequence_length` is needed for position="learned": the number of rows of the table.')
        check_count(0, position_offset=position_offset)
        if position_offset and position != "learned":
            raise ValueError(
                '`position_offset` counts rows of a table: it needs position="learned". '
                f"Received: position={position!r}, position_offset={position_offset}"
            )
        if vocabulary_size is not None:
            check_token_ids(vocabulary_size, pad_token_id=pad_token_id)
        if scale is not None and not isinstance(scale, (int, float)):
            raise ValueError(f"`scale` must be a number or None. Received: scale={scale!r}")
        super().__init__(**kwargs)
        self.autocast = vocabulary_size is None  # ids must not be rounded to 16 bits
        self.vocabulary_size = plain_int(vocabulary_size)
        self.hidden_dim = int(hidden_dim)
        self.max_sequence_length = plain_int(max_sequence_length)
        self.position = position
        self.scale = scale
        self.dropout = dropout
        self.pad_token_id = plain_int(pad_token_id)
        self.position_offset = int(position_offset)
        self.sinusoid_layout = sinusoid_layout
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.position_initializer = keras.initializers.get(position_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)
        self.seed = plain_int(seed)
        self._scale = scale
        if scale is None:
            tokens = vocabulary_size is not None
            self._scale = math.sqrt(hidden_dim) if tokens and position == "sinusoidal" else 1.0
        self.token_embedding = None
        if vocabulary_size is not None:
            self.token_embedding = keras.layers.ReversibleEmbedding(
                self.vocabulary_size,
                self.hidden_dim,
                embeddings_initializer=clone_initializer(self.embeddings_initializer, "token_embedding"),
                embeddings_regularizer=self.embeddings_regularizer,
                embeddings_constraint=self.embeddings_constraint,
                reverse_dtype="float32",
                **self.sublayer_options("token_embedding"),
                name="token_embedding",
            )
            self.token_embedding.supports_masking = True  # in reverse: the mask is seen to here
        self.dropout_layer = keras.layers.Dropout(dropout, seed=self.seed, dtype=self.dtype_policy, name="dropout")

    @property
    def sublayers(self):
        return [] if self.token_embedding is None else [self.token_embedding]

    @property
    def embeddings(self):
        """The token table (V, D); pretrained vectors may be assigned: `layer.embeddings.assign(vectors)`."""
        if self.token_embedding is None:
            raise AttributeError("The layer has no token table: vocabulary_size is None.")
        return self.token_embedding.embeddings

    def build(self, inputs_shape):
        if self.token_embedding is not None and not self.token_embedding.built:
            self.token_embedding.build((None, None))
        if self.position == "learned":
            self.position_embeddings = self.add_weight(
                shape=(self.max_sequence_length + self.position_offset, self.hidden_dim),
                initializer=clone_initializer(self.position_initializer, "position_embeddings"),
                name="position_embeddings",
            )
        self.built = True

    def call(self, inputs, positions=None, start_index=0, reverse=False, training=None, mask=None, inputs_mask=None):
        check_inputs(self, inputs, reverse)
        if reverse:
            return self.token_embedding(ops.cast(inputs, self.compute_dtype), reverse=True)
        if self.token_embedding is None:
            mask = inputs_mask if mask is None else mask
            x = inputs if self._scale == 1 else inputs * ops.cast(self._scale, inputs.dtype)
        else:
            mask = self.compute_mask(inputs, inputs_mask if mask is None else mask)
            x = self._embed(inputs)
        check_positions(inputs, positions, start_index)
        encoded = self._encode_positions(inputs, positions, start_index, mask)
        if encoded is not None:
            x = x + ops.cast(encoded, x.dtype)
        return self.dropout_layer(ops.cast(x, self.compute_dtype), training=training)

    def _embed(self, ids):
        if keras.backend.standardize_dtype(ids.dtype) in ("int8", "uint8", "int16", "uint16"):
            ids = ops.cast(ids, "int32")  # which holds the vocabulary's size
        # Asked before the others are cast to int32 as well, in which large ids wrap.
        valid = ops.logical_and(ids >= 0, ids < self.vocabulary_size)
        if keras.backend.is_float_dtype(ids.dtype):  # a Sequential model without Input passes ids as floats
            valid = ops.logical_and(valid, ops.equal(ids, ops.floor(ids)))
        x = self.token_embedding(ops.clip(ops.cast(ids, "int32"), 0, self.vocabulary_size - 1))
        # An id outside the table must not read another token's row. The factor carries the scale as well, so that
        # this costs no pass of its own.
        factor = ops.where(valid, self._scale, float("nan"))
        return x * ops.cast(ops.expand_dims(factor, -1), x.dtype)

    def _encode_positions(self, inputs, positions, start_index, mask):
        """Encoded positions, (T, D) or (B, T, D) float32, None without positions."""
        if self.position is None:
            return None
        length, scope = ops.shape(inputs)[1], current_scope()
        # What is as long as the text is taken for it; other inputs of its model, such as images, count for themselves.
        if positions is None and scope is not None:
            lengths = {inputs.shape[1], scope.positions.shape[1]}
            positions = scope.positions + start_index if None in lengths or len(lengths) == 1 else None
        if positions is not None:
            return self._encode(ops.maximum(ops.cast(positions, "int32"), 0))
        start_index = start_index if isinstance(start_index, int) else ops.cast(start_index, "int32")
        # Known before the graph runs as long as both numbers are; a mask that hides the end changes nothing.
        end = start_index + length
        if mask is None:
            return self._encode(ops.arange(length, dtype="int32") + start_index, end)
        positions = token_positions(mask)
        if isinstance(start_index, int) and start_index == 0:
            # Rows of one table: sines of all (B, T) positions would cost more than the embedding.
            table = self._encode(ops.arange(length, dtype="int32"), end)
            return ops.take(table, ops.maximum(positions, 0), axis=0)
        return self._encode(ops.maximum(positions, 0) + start_index, end)

    def _encode(self, positions, end=None):
        if self.position == "sinusoidal":
            return sinusoidal_positions(positions, self.hidden_dim, layout=self.sinusoid_layout)
        if not isinstance(end, int):
            known = concrete(positions)
            end = None if known is None or known.size == 0 else int(known.max()) + 1
        check_end(end, self.max_sequence_length)
        # In a graph of unknown length nothing can be raised here: TensorFlow fails in `take`, others give NaN.
        table = ops.convert_to_tensor(self.position_embeddings)
        rows = ops.take(table, positions + self.position_offset, axis=0)
        valid = ops.logical_and(positions >= 0, positions < self.max_sequence_length)
        return ops.where(ops.expand_dims(valid, -1), rows, float("nan"))

    def compute_mask(self, inputs, mask=None):
        # Reversed or given vectors the layer passes the mask on; ids make their own.
        if self.token_embedding is None or len(inputs.shape) == 3 or self.pad_token_id is None:
            return mask
        tokens = ops.not_equal(inputs, self.pad_token_id)
        return tokens if mask is None else ops.logical_and(tokens, ops.cast(mask, "bool"))

    def compute_output_shape(self, inputs_shape, reverse=False):
        if reverse:
            return (*inputs_shape[:-1], self.vocabulary_size)
        return (*inputs_shape[:2], self.hidden_dim)

    def compute_output_spec(
        self, inputs, positions=None, start_index=0, reverse=False, training=None, mask=None, inputs_mask=None
    ):
        check_inputs(self, inputs, reverse)
        length = inputs.shape[1]
        if not reverse and self.position == "learned" and positions is None and length is not None:
            check_end(start_index + length, self.max_sequence_length)
        shape = self.compute_output_shape(inputs.shape, reverse)
        return keras.KerasTensor(shape, dtype="float32" if reverse else self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "max_sequence_length": self.max_sequence_length,
            "position": self.position,
            "scale": self.scale,
            "dropout": self.dropout,
            "pad_token_id": self.pad_token_id,
            "position_offset": self.position_offset,
            "sinusoid_layout": self.sinusoid_layout,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "position_initializer": keras.initializers.serialize(self.position_initializer),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "embeddings_constraint": keras.constraints.serialize(self.embeddings_constraint),
            "seed": self.seed,
        }
