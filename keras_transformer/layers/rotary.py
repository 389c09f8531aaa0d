"""Rotary positions as a layer."""

import keras
from keras import ops

from keras_transformer.arguments import check_positive_number
from keras_transformer.layers.common import check_choice, check_mask, register
from keras_transformer.ops.cache import CannotCache, current_scope
from keras_transformer.ops.masks import indices, token_positions
from keras_transformer.ops.rotary import LAYOUTS, check_scaling, rotary_frequencies, rotate


@register
class Rotary(keras.layers.Layer):
    """Rotary position embedding: turns pairs of features so that scores depend on distances alone.

    `MultiHeadAttention(rotary=Rotary())` applies it to queries and keys. It has no weights, so one may serve many
    layers. Angles are float32 under every dtype policy.

    Source: Su et al. 2021, "RoFormer" (https://arxiv.org/abs/2104.09864).

    Args:
        base: pair i of a head of R turned features turns by `base ** (-2 i / R)` radians per position (`rope_theta`).
        layout: `"half"` pairs feature i with i + R / 2 (Llama, GPT-NeoX), `"interleaved"` 2 i with 2 i + 1 (GPT-J).
        fraction: share of each head that is turned, its first features (`partial_rotary_factor`).
        scaling: None, or a dict spelled as `rope_scaling` of `transformers`: `{"rope_type": "linear", "factor": 4.0}`,
            "yarn" and "llama3" with their fields, or "dynamic", whose frequencies depend on the length of each row.
            For "dynamic", `original_max_position_embeddings` is the model's `max_position_embeddings`.

    Call arguments:
        x: (B, T, N, H), heads of queries or keys.
        positions: int32 (B or 1, T), -1 where there is no token. By default those of the open `DecodingScope`, else
            counted from each row's first unmasked token.

    Returns:
        (B, T, N, H).

    Raises:
        ValueError: a scaling that is not known, or a head of which the fraction is no even number of features.
        CannotCache: "dynamic" in a scope that keeps a cache: while the text grows, the keys in it would have to change.

    Example:
    ```python
    rotary = Rotary(base=500000.0, scaling={"rope_type": "linear", "factor": 4.0})
    y = MultiHeadAttention(8, 64, rotary=rotary)(x, use_causal_mask=True)
    ```
    """

    def __init__(self, base=10000.0, layout="half", fraction=1.0, scaling=None, **kwargs):
        check_positive_number(base=base, fraction=fraction)
        if fraction > 1:
            raise ValueError(f"`fraction` must be at most 1. Received: fraction={fraction!r}")
        check_choice(LAYOUTS, layout=layout)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.autocast = False  # positions must not be rounded
        self.base = base
        self.layout = layout
        self.fraction = fraction
        self.scaling = check_scaling(scaling, base, fraction)

    @property
    def reason_against_cache(self):
        """Why turned keys cannot be kept while the text grows, None if they can."""
        if self.scaling is None or self.scaling["rope_type"] != "dynamic":
            return None
        return (
            'turns its keys by angles that depend on the length of the text (`Rotary` with "dynamic" scaling): '
            "those in a cache would have to change with every new token"
        )

    def call(self, x, positions=None, mask=None, x_mask=None):
        scope, mask = current_scope(), x_mask if mask is None else mask
        if scope is not None and scope.caches and self.reason_against_cache:
            raise CannotCache(f"The layer {self.path} {self.reason_against_cache}.")
        if positions is None and scope is not None and scope.positions.shape[1] == x.shape[1]:
            positions = scope.positions
        return ops.cast(self.turn(x, positions, mask), self.compute_dtype)

    def turn(self, x, positions=None, mask=None):
        """x (B, T, N, H) turned at positions (B or 1, T), by default counted from the first token of `mask` (B, T)."""
        if len(x.shape) != 4:
            raise ValueError(f"`x` must have shape (batch, length, heads, head_dim). Received: {tuple(x.shape)}")
        if positions is None and mask is not None:
            check_mask(x[..., 0, :], mask=mask)
            positions = token_positions(mask)
        elif positions is None:
            positions = indices(ops.shape(x)[1])
        # -1 marks what is no token, so the last position tells how long a row is.
        length = ops.max(ops.cast(positions, "int32"), axis=1) + 1 if self.reason_against_cache else None
        dim = self._turned_dim(x.shape[-1])
        return rotate(x, positions, *rotary_frequencies(dim, self.base, self.scaling, length), self.layout)

    def _turned_dim(self, head_dim):
        dim = int(head_dim * self.fraction)
        if dim < 2 or dim % 2:
            raise ValueError(
                "The turned part of a head must be an even number of features. "
                f"Received: {dim} of {head_dim} with fraction={self.fraction}"
            )
        return dim

    def compute_output_spec(self, x, positions=None, mask=None, x_mask=None):
        return keras.KerasTensor(x.shape, dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "base": self.base,
            "layout": self.layout,
            "fraction": self.fraction,
            "scaling": None if self.scaling is None else dict(self.scaling),
        }
