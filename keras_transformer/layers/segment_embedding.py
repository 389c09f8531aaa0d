"""Token types: which segment of the input a token belongs to.

Source: Devlin et al. 2018, "BERT", section 3 (https://arxiv.org/abs/1810.04805).
"""

import keras
from keras import ops

from keras_transformer.arguments import check_size
from keras_transformer.layers.common import clone_initializer, register
from keras_transformer.ops.cache import concrete


@register
class SegmentEmbedding(keras.layers.Layer):
    """Adds a learned vector for each token's type. Types never mask anything.

    Args:
        num_segments: number of types.
        hidden_dim: size of the vectors, D.
        embeddings_initializer: initializer of the table.

    Call arguments:
        inputs: (B, T, D); a mask is passed on.
        segment_ids: integers (B, T) below `num_segments`. Without them every token is of type 0.

    Returns:
        (B, T, D).

    Raises:
        ValueError: ids outside the table (when called eagerly; compiled code gives NaN rows, never another type's
            row), or of another shape than the tokens.

    Example: `SegmentEmbedding(num_segments=2, hidden_dim=768)(x, segment_ids)`
    """

    def __init__(self, num_segments, hidden_dim, embeddings_initializer="uniform", **kwargs):
        check_size(num_segments=num_segments, hidden_dim=hidden_dim)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_segments = int(num_segments)
        self.hidden_dim = int(hidden_dim)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, inputs_shape, segment_ids_shape=None):
        if len(inputs_shape) != 3 or inputs_shape[-1] != self.hidden_dim:
            raise ValueError(
                f"{self.name} expects vectors of shape (batch, length, hidden_dim={self.hidden_dim}). "
                f"Received: inputs.shape={tuple(inputs_shape)}"
            )
        self.embeddings = self.add_weight(
            shape=(self.num_segments, self.hidden_dim),
            initializer=clone_initializer(self.embeddings_initializer, "embeddings"),
            name="embeddings",
        )
        self.built = True

    def call(self, inputs, segment_ids=None):
        table = ops.cast(self.embeddings, inputs.dtype)
        if segment_ids is None:
            return inputs + table[0]
        self._check(inputs, segment_ids)
        ids = ops.cast(segment_ids, "int32")
        valid = ops.logical_and(ids >= 0, ids < self.num_segments)
        rows = ops.take(table, ops.clip(ids, 0, self.num_segments - 1), axis=0)
        return inputs + ops.where(ops.expand_dims(valid, -1), rows, float("nan"))

    def _check(self, inputs, segment_ids):
        given, expected = tuple(segment_ids.shape), tuple(inputs.shape[:2])
        if len(given) != 2 or any(a != b and None not in (a, b) for a, b in zip(given, expected, strict=True)):
            raise ValueError(f"`segment_ids` must have the shape of the tokens, {expected}. Received: {given}")
        values = concrete(segment_ids)
        for value in [] if values is None or values.size == 0 else (values.min(), values.max()):
            if not 0 <= value < self.num_segments:
                raise ValueError(
                    f"{self.name} received the segment id {int(value)}, outside num_segments={self.num_segments}."
                )

    def compute_mask(self, inputs, mask=None):
        return mask

    def compute_output_shape(self, inputs_shape, segment_ids_shape=None):
        return tuple(inputs_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "num_segments": self.num_segments,
            "hidden_dim": self.hidden_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }
