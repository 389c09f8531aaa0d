"""What encoder and decoder blocks share: sublayers from instances or from numbers, residuals, configuration."""

import inspect
from types import SimpleNamespace

import keras
from keras import ops

from keras_transformer.arguments import check_positive_number
from keras_transformer.layers.activations import get_activation
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.common import (
    DenseOptions,
    check_choice,
    check_optional_size,
    check_rate,
    derived_seed,
    head_dim,
    plain_int,
)
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.normalization import check_norm
from keras_transformer.layers.ownership import deserialized, own, serialized
from keras_transformer.layers.residual import PLACEMENTS, attach_residual


class Block(keras.layers.Layer):
    """Base of `EncoderBlock` and `DecoderBlock`; see them for the arguments."""

    instances = ("attention", "feed_forward")  # arguments that may be layers

    def __init__(
        self,
        num_heads=None,
        intermediate_dim=None,
        dropout=0.0,
        norm_placement="post",
        *,
        key_dim=None,
        activation="relu",
        feed_forward_dropout=0.0,
        use_bias=True,
        norm="layer",
        norm_epsilon=1e-5,
        attention=None,
        feed_forward=None,
        parallel=False,
        layer_scale=None,
        stochastic_depth=0.0,
        seed=None,
        **kwargs,
    ):
        check_optional_size(num_heads=num_heads, intermediate_dim=intermediate_dim, key_dim=key_dim)
        check_rate(dropout=dropout, feed_forward_dropout=feed_forward_dropout, stochastic_depth=stochastic_depth)
        check_choice(tuple(PLACEMENTS), norm_placement=norm_placement)
        check_choice((False, True), use_bias=use_bias)
        check_positive_number(norm_epsilon=norm_epsilon)
        if layer_scale is not None:
            check_positive_number(layer_scale=layer_scale)
        if parallel and norm_placement != "pre":
            raise ValueError(
                'Sublayers next to each other (`parallel=True`) need `norm_placement="pre"`. '
                f"Received: norm_placement={norm_placement!r}"
            )
        self._refuse_both(attention=attention, num_heads=num_heads)
        self._refuse_both(feed_forward=feed_forward, intermediate_dim=intermediate_dim)
        self._refuse_beside(attention=attention, key_dim=key_dim)
        self._refuse_beside(feed_forward=feed_forward, feed_forward_dropout=feed_forward_dropout)
        self.dense_options = DenseOptions(kwargs)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.autocast = False  # a position bias must reach the float32 scores unrounded
        self.num_heads = plain_int(num_heads)
        self.intermediate_dim = plain_int(intermediate_dim)
        self.dropout = dropout
        self.norm_placement = norm_placement
        self.key_dim = plain_int(key_dim)
        self.use_bias = use_bias
        self.norm = serialized(norm)  # a pattern, not a sublayer
        check_norm(self.norm)
        self.norm_epsilon = norm_epsilon
        self.activation = get_activation(activation)
        self.feed_forward_dropout = feed_forward_dropout
        self.parallel = bool(parallel)
        self.layer_scale = layer_scale
        self.stochastic_depth = stochastic_depth
        self.seed = plain_int(seed)
        # Sublayers are made in build, where the feature dim is known. Those given wait until then as well, where Keras
        # does not see them: it lists weights in the order in which layers are set, however these came.
        self._given = SimpleNamespace(self_attention=attention, feed_forward=feed_forward, cross_attention=None)
        self.self_attention = self.feed_forward = None
        own(self, attention=attention, feed_forward=feed_forward)

    def _build_residual(self, name, x_shape):
        residual = attach_residual(
            self,
            name,
            placement=self.norm_placement,
            norm=self.norm,
            epsilon=self.norm_epsilon,
            dropout=self.dropout,
            layer_scale=self.layer_scale,
            stochastic_depth=self.stochastic_depth,
            seed=self.seed,
        )
        residual.build(x_shape)
        return residual

    def _refuse_both(self, **pair):
        (instance_name, instance), (number_name, number) = pair.items()
        if (instance is None) == (number is None):
            raise ValueError(
                f"Give either `{number_name}` (a number) or `{instance_name}` (a layer), not both and not neither. "
                f"Received: {number_name}={number}, {instance_name}={instance}"
            )

    def _refuse_beside(self, **pair):
        (instance_name, instance), (number_name, number) = pair.items()
        if instance is not None and number:
            raise ValueError(
                f"`{number_name}` is for a layer made from numbers: give it to the layer `{instance_name}`. "
                f"Received: {number_name}={number}, {instance_name}={instance}"
            )

    def _make_feed_forward(self):
        return FeedForward(
            self.intermediate_dim,
            activation=self.activation,
            dropout=self.feed_forward_dropout,
            use_bias=self.use_bias,
            seed=derived_seed(self.seed, "feed_forward"),
            dtype=self.dtype_policy,
            name="feed_forward",
            **self.dense_options.arguments("feed_forward"),
        )

    def _make_attention(self, hidden_dim, name):
        return MultiHeadAttention(
            self.num_heads,
            self.key_dim or head_dim(hidden_dim, self.num_heads),
            dropout=self.dropout,
            use_bias=self.use_bias,
            seed=derived_seed(self.seed, name),
            dtype=self.dtype_policy,
            name=name,
            **self.dense_options.arguments(name),
        )

    def _build_attention(self, name, x_shape, memory_shape):
        """The attention layer and the residual around it, both built."""
        if len(x_shape) != 3 or x_shape[-1] is None:
            raise ValueError(
                f"{self.name} expects x of shape (batch, length, features) with known features. "
                f"Received: x.shape={tuple(x_shape)}"
            )
        attention = getattr(self._given, name) or self._make_attention(x_shape[-1], name)
        setattr(self, name, attention)
        if not attention.built:
            attention.build(x_shape, memory_shape)
        return self._build_residual(name, x_shape)

    def _build_feed_forward(self, x_shape):
        self.feed_forward = self._given.feed_forward or self._make_feed_forward()
        if not self.feed_forward.built:
            self.feed_forward.build(x_shape)
        self._feed_forward_takes_mask = "mask" in inspect.signature(self.feed_forward.call).parameters
        return self._build_residual("feed_forward", x_shape)

    def _self_attend(self, x, mask, attention_mask, use_causal_mask, position_bias, return_scores, training):
        options = {"attention_mask": attention_mask, "use_causal_mask": use_causal_mask}
        if position_bias is not None:  # which other layers than ours need not know
            options["position_bias"] = position_bias
        return self._attend(
            self.self_attention, self._self_residual, x, None, mask, mask, return_scores, training, **options
        )

    def _attend(self, attention, residual, x, memory, mask, memory_mask, return_scores, training, **options):
        """x after an attention sublayer over `memory` (None: over x itself), and the scores or None."""
        scores = None

        def masks_and_attends(y):
            nonlocal scores
            output = attention(
                *_query_and_value(attention, y, memory),
                query_mask=mask,
                value_mask=memory_mask,
                return_attention_scores=return_scores,
                training=training,
                **options,
            )
            output, scores = output if return_scores else (output, None)
            return output

        beside = [(self._feed_forward_residual, self._feed(mask, training))] if self.parallel else ()
        return residual(x, masks_and_attends, training, beside), scores

    def _feed(self, mask, training):
        # By itself a mask does not come through the residual. Experts need it; most networks do not take one.
        options = {"mask": mask} if self._feed_forward_takes_mask and mask is not None else {}
        return lambda y: self.feed_forward(y, training=training, **options)

    def _feed_forward(self, x, mask, training):
        return x if self.parallel else self._feed_forward_residual(x, self._feed(mask, training), training)

    def _as_computed(self, x):
        if len(x.shape) != 3:
            raise ValueError(f"{self.name} expects shape (batch, length, features). Received: {tuple(x.shape)}")
        return ops.cast(x, self.compute_dtype)

    def _scores_spec(self, attention, x, memory):
        layer = self if attention is None else attention  # what is made from numbers has the block's
        shape = (x.shape[0], layer.num_heads, x.shape[1], memory.shape[1])
        return keras.KerasTensor(shape, dtype=layer.compute_dtype)

    def compute_mask(self, inputs, mask=None):
        return mask

    def compute_output_shape(self, x_shape):
        return tuple(x_shape)

    def get_config(self):
        config = {
            **super().get_config(),
            "num_heads": self.num_heads,
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "norm_placement": self.norm_placement,
            "key_dim": self.key_dim,
            "activation": keras.activations.serialize(self.activation),
            "feed_forward_dropout": self.feed_forward_dropout,
            "use_bias": self.use_bias,
            "norm": self.norm if isinstance(self.norm, str) else dict(self.norm),
            "norm_epsilon": self.norm_epsilon,
            "parallel": self.parallel,
            "layer_scale": self.layer_scale,
            "stochastic_depth": self.stochastic_depth,
            "seed": self.seed,
            **self.dense_options.get_config(),
        }
        # A layer is saved where one was given, and where quantisation made one that the numbers cannot describe.
        attention, feed_forward = self._sublayer("self_attention"), self._sublayer("feed_forward")
        if self.num_heads is None or is_quantized(attention):
            config |= {"num_heads": None, "key_dim": None, "attention": serialized(attention)}
        if self.intermediate_dim is None or is_quantized(feed_forward):
            config |= {"intermediate_dim": None, "feed_forward_dropout": 0.0, "feed_forward": serialized(feed_forward)}
        return config

    def _sublayer(self, name):
        """The sublayer, before build the one given, or None."""
        return getattr(self, name) or getattr(self._given, name)

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, cls.instances))


def _query_and_value(attention, y, memory):
    # That no value means self-attention holds under any casting or rematerialisation; `value is query` may not.
    if memory is None:
        return (y,) if isinstance(attention, MultiHeadAttention) else (y, y)
    return y, memory


def is_quantized(layer):
    """Whether a sublayer of the layer is quantised."""
    return any(part.dtype_policy.quantization_mode is not None for part in getattr(layer, "sublayers", []))
