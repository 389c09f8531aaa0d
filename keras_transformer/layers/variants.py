"""What `MultiHeadAttention` may do to its heads and scores beyond the paper: positions, norms, sinks, caps.

Letters: B batch, T query length, S key length, N heads, K key/value heads, H head dim.

Sources: QK norm, Henry et al. 2020 (https://arxiv.org/abs/2010.04245); soft cap, Gemma 2 (https://arxiv.org/abs/2408.00118);
sinks, Xiao et al. 2023 (https://arxiv.org/abs/2309.17453) in the learned form of gpt-oss (https://arxiv.org/abs/2508.10925).
"""

import keras
from keras import ops

from keras_transformer.arguments import check_positive_number
from keras_transformer.layers.common import register
from keras_transformer.layers.normalization import check_norm, make_norm
from keras_transformer.layers.ownership import own, serialized
from keras_transformer.layers.position_bias import PositionBias
from keras_transformer.layers.rotary import Rotary


class Variants:
    """The variants of one attention layer; see `MultiHeadAttention` for the arguments.

    A plain object: what has weights is an attribute of the layer, set in `build` behind the projections, so that the
    weights of these come first and in Keras' order.
    """

    instances = ("rotary", "position_bias")  # arguments that are layers

    def __init__(self, rotary, position_bias, qk_norm, qk_norm_epsilon, sinks, soft_cap, scale):
        for name, layer, kind in (("rotary", rotary, Rotary), ("position_bias", position_bias, PositionBias)):
            if layer is not None and not isinstance(layer, kind):
                raise ValueError(f"`{name}` must be a layer of the kind {kind.__name__}. Received: {name}={layer!r}")
        qk_norm = serialized(qk_norm)
        if qk_norm is not None:
            check_norm(qk_norm, name="qk_norm")
        check_positive_number(qk_norm_epsilon=qk_norm_epsilon)
        check_positive_number(**{name: x for name, x in (("soft_cap", soft_cap), ("scale", scale)) if x is not None})
        self.rotary, self.position_bias = rotary, position_bias
        self.qk_norm, self.qk_norm_epsilon = qk_norm, qk_norm_epsilon
        self.has_sinks, self.soft_cap, self.scale = bool(sinks), soft_cap, scale
        self.query_norm = self.key_norm = self.sinks = None

    def attach(self, owner):
        """Refuse what does not fit to the attention layer `owner`, before it is built."""
        bias = self.position_bias
        if bias is not None and bias.num_heads != owner.num_heads:
            raise ValueError(
                "`position_bias` must have as many heads as the attention layer. "
                f"Received: {bias.num_heads} and num_heads={owner.num_heads}"
            )
        own(owner, position_bias=bias)

    def build(self, owner):
        """Make what has weights, as attributes of the attention layer `owner`."""
        if self.qk_norm is not None:
            self.query_norm, self.key_norm = (
                make_norm(self.qk_norm, self.qk_norm_epsilon, name, owner.dtype_policy)
                for name in ("query_norm", "key_norm")
            )
            owner.query_norm, owner.key_norm = self.query_norm, self.key_norm
            self.query_norm.build((None, None, owner.num_heads, owner.key_dim))
            self.key_norm.build((None, None, owner.num_key_value_heads, owner.key_dim))
        if self.has_sinks:
            self.sinks = owner.sinks_layer = Sinks(owner.num_heads, name="sinks", dtype=owner.dtype_policy)
            self.sinks.build()
        if self.position_bias is not None:
            owner.position_bias_layer = self.position_bias
            if not self.position_bias.built:
                self.position_bias.build()

    @property
    def layers(self):
        """The layers that there are by now."""
        return [x for x in (self.rotary, self.position_bias, self.query_norm, self.key_norm) if x is not None]

    @property
    def reason_against_cache(self):
        """Why keys cannot be kept while the text grows, or None."""
        return None if self.rotary is None else self.rotary.reason_against_cache

    @property
    def relate_positions(self):
        """Whether queries and keys must be places of one sequence."""
        return self.rotary is not None or self.position_bias is not None

    def queries(self, x, positions, mask):
        """Projected queries (B, T, N, H), normed and turned at their positions (B or 1, T)."""
        return self._turned(self._normed(self.query_norm, x), positions, mask)

    def keys(self, x, positions, mask):
        """Projected keys (B, S, K, H), normed and turned at their positions (B or 1, S)."""
        return self._turned(self._normed(self.key_norm, x), positions, mask)

    @staticmethod
    def _normed(norm, x):
        return x if norm is None else ops.cast(norm(x), x.dtype)

    def _turned(self, x, positions, mask):
        if self.rotary is None:
            return x
        # Distances are all that counts, so padding need not be left out, unless the length of the text counts too.
        return self.rotary.turn(x, positions, mask if self.reason_against_cache else None)

    def bias(self, given, query, keys):
        """The bias given to the call, plus that of the layer between `query` (B, T, N, H) and the `Keys`."""
        if self.position_bias is None:
            return given
        bias = self.position_bias.between(*keys.places(query))
        return bias if given is None else bias + ops.cast(given, "float32")

    def of_scores(self):
        """Arguments of `attend`."""
        sinks = None if self.sinks is None else self.sinks.logits
        return {"scale": self.scale, "soft_cap": self.soft_cap, "sinks": sinks}

    def get_config(self):
        """The arguments, layers in serialised form."""
        return {
            "rotary": serialized(self.rotary),
            "position_bias": serialized(self.position_bias),
            "qk_norm": dict(self.qk_norm) if isinstance(self.qk_norm, dict) else self.qk_norm,
            "qk_norm_epsilon": self.qk_norm_epsilon,
            "sinks": self.has_sinks,
            "soft_cap": self.soft_cap,
            "scale": self.scale,
        }


@register
class Sinks(keras.layers.Layer):
    """Holds a logit for each head: what a query would rather attend to than to any key."""

    def __init__(self, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads

    def build(self, inputs_shape=None):
        self.logits = self.add_weight(shape=(self.num_heads,), initializer="zeros", name="logits", autocast=False)
        self.built = True

    def call(self, inputs):
        return inputs

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads}
