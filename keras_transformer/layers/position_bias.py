"""Position bias: numbers for the distance between a query and a key, added to the scores of attention.

Letters: B batch, T query length, S key length, N heads, D features.
"""

import abc

import keras
from keras import ops

from keras_transformer.arguments import check_size
from keras_transformer.layers.common import clone_initializer, register
from keras_transformer.ops.cache import current_scope
from keras_transformer.ops.masks import indices
from keras_transformer.ops.relative import alibi_slopes, distances, relative_buckets


class PositionBias(keras.layers.Layer, abc.ABC):
    """Base of the position biases. A subclass says in `between` what is added for two positions.

    There are two ways to use one: in a model, `bias = layer(x)` is handed to any number of blocks or attention layers
    as their call argument `position_bias`, so that all share it; or it belongs to one attention layer,
    `MultiHeadAttention(8, 64, position_bias=layer)`. In an open `DecodingScope` the positions are those of the tokens
    that are fed and of all that they may attend to.

    Call arguments:
        x: (B, T, D), of which the length alone matters.

    Returns:
        float32 (B or 1, N, T, S), whatever the dtype policy; S is T but in a `DecodingScope`.
    """

    def __init__(self, num_heads, **kwargs):
        check_size(num_heads=num_heads)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = int(num_heads)

    @abc.abstractmethod
    def between(self, query_positions, key_positions):
        """float32 (B or 1, N, T, S) for int32 positions (B or 1, T) and (B or 1, S); what is at -1 may be anything."""

    def build(self, x_shape=None):
        self.built = True

    def call(self, x):
        scope = current_scope()
        if scope is not None and scope.positions.shape[1] == x.shape[1]:
            return self.between(scope.positions, scope.seen_positions)
        positions = indices(ops.shape(x)[1])
        return self.between(positions, positions)

    def compute_mask(self, inputs, previous_mask):
        return None

    def compute_output_spec(self, x):
        return keras.KerasTensor((None, self.num_heads, x.shape[1], x.shape[1]), dtype="float32")

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads}


@register
class RelativePositionBias(PositionBias):
    """A learned number for each head and each bucket of distances.

    In T5 the first layer's is used by all layers: make one for the encoder, one for the decoder, and pass what they
    give to every block.

    Source: Raffel et al. 2020, "T5", section 2.1 (https://arxiv.org/abs/1910.10683).

    Args:
        num_heads: N.
        num_buckets: rows of the table.
        max_distance: all distances from here on are in the last bucket.
        bidirectional: whether keys behind the query have buckets of their own. False in a decoder.
        embeddings_initializer: of the table (num_buckets, N).

    Raises:
        ValueError: too few buckets, an odd number with `bidirectional`, or a `max_distance` within the near buckets.

    Example:
    ```python
    bias = RelativePositionBias(8, bidirectional=False)(x)  # (1, 8, T, T)
    for block in blocks:
        x = block(x, position_bias=bias)
    ```
    """

    def __init__(
        self,
        num_heads,
        num_buckets=32,
        max_distance=128,
        bidirectional=True,
        embeddings_initializer="random_normal",
        **kwargs,
    ):
        check_size(num_buckets=num_buckets, max_distance=max_distance)
        near = num_buckets // (4 if bidirectional else 2)
        if near < 1 or bidirectional and num_buckets % 2 or max_distance <= near:
            raise ValueError(
                "`num_buckets` must be at least 2, with `bidirectional` 4 and even, and `max_distance` more than the "
                f"{near} near buckets of a side. Received: num_buckets={num_buckets}, max_distance={max_distance}, "
                f"bidirectional={bidirectional}"
            )
        super().__init__(num_heads, **kwargs)
        self.num_buckets = int(num_buckets)
        self.max_distance = int(max_distance)
        self.bidirectional = bool(bidirectional)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, x_shape=None):
        self.embeddings = self.add_weight(
            shape=(self.num_buckets, self.num_heads),
            initializer=clone_initializer(self.embeddings_initializer, "embeddings"),
            name="embeddings",
            autocast=False,
        )
        self.built = True

    def between(self, query_positions, key_positions):
        distance = distances(query_positions, key_positions)
        buckets = relative_buckets(distance, self.num_buckets, self.max_distance, self.bidirectional)
        table = ops.cast(ops.convert_to_tensor(self.embeddings), "float32")
        return ops.transpose(ops.take(table, buckets, axis=0), (0, 3, 1, 2))

    def get_config(self):
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "bidirectional": self.bidirectional,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }


@register
class AlibiBias(PositionBias):
    """Attention with linear biases: `-slope * |distance|`, a fixed slope for each head; no weights.

    The same serves causal attention, where all keys are on one side.

    Source: Press et al. 2022, "Train short, test long" (https://arxiv.org/abs/2108.12409).

    Args:
        num_heads: N, any number.

    Example: `MultiHeadAttention(8, 64, position_bias=AlibiBias(8))(x, use_causal_mask=True)`
    """

    def between(self, query_positions, key_positions):
        distance = distances(query_positions, key_positions)
        slopes = ops.convert_to_tensor(alibi_slopes(self.num_heads)[:, None, None])
        return -slopes * ops.cast(ops.expand_dims(ops.abs(distance), 1), "float32")
