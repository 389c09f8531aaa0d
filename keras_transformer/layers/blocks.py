"""Encoder and decoder blocks: attention and feed-forward in the residual expression.

Letters: B batch, T length of x, S length of the encoder output, D features, N heads.

Sources: Vaswani et al. 2017, "Attention Is All You Need", section 3.1 (https://arxiv.org/abs/1706.03762); norm first:
Xiong et al. 2020 (https://arxiv.org/abs/2002.04745).
"""

import keras

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.common import DenseOptions, check_positive, check_rate, register
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.residual import Residual
from keras_transformer.ops.masks import combine


class Block(keras.layers.Layer):
    """What both blocks share: sublayers from instances or from numbers, residuals, configuration."""

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
        seed=None,
        **kwargs,
    ):
        check_positive(num_heads=num_heads, intermediate_dim=intermediate_dim, key_dim=key_dim)
        check_rate(dropout=dropout, feed_forward_dropout=feed_forward_dropout)
        self._refuse_both(attention=attention, num_heads=num_heads)
        self._refuse_both(feed_forward=feed_forward, intermediate_dim=intermediate_dim)
        self.dense_options = DenseOptions(kwargs)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.norm_placement = norm_placement
        self.key_dim = key_dim
        self.use_bias = use_bias
        self.norm = norm
        self.norm_epsilon = norm_epsilon
        self.activation = keras.activations.get(activation)
        self.feed_forward_dropout = feed_forward_dropout
        self.seed = seed
        # What is not given as a layer is made in build, where the feature dim is known.
        self.self_attention = attention
        self.feed_forward = feed_forward

    def _build_residual(self, name, x_shape):
        residual = Residual(self, name, self.norm_placement, self.norm, self.norm_epsilon, self.dropout, self.seed)
        residual.build(x_shape)
        return residual

    def _refuse_both(self, **pair):
        (instance_name, instance), (number_name, number) = pair.items()
        if (instance is None) == (number is None):
            raise ValueError(
                f"Give either `{number_name}` (a number) or `{instance_name}` (a layer), not both and not neither. "
                f"Received: {number_name}={number}, {instance_name}={instance}"
            )

    def _make_feed_forward(self):
        return FeedForward(
            self.intermediate_dim,
            activation=self.activation,
            dropout=self.feed_forward_dropout,
            use_bias=self.use_bias,
            seed=self.seed,
            dtype=self.dtype_policy,
            name="feed_forward",
            **self.dense_options.arguments(),
        )

    def _make_attention(self, hidden_dim, name):
        key_dim = self.key_dim
        if key_dim is None:
            if hidden_dim % self.num_heads:
                raise ValueError(
                    "The feature dim must be a multiple of `num_heads` when `key_dim` is not given. "
                    f"Received: hidden_dim={hidden_dim}, num_heads={self.num_heads}"
                )
            key_dim = hidden_dim // self.num_heads
        return MultiHeadAttention(
            self.num_heads,
            key_dim,
            dropout=self.dropout,
            use_bias=self.use_bias,
            seed=self.seed,
            dtype=self.dtype_policy,
            name=name,
            **self.dense_options.arguments(),
        )

    def _build_attention(self, name, attention, x_shape, memory_shape):
        """The attention layer and the residual around it, both built."""
        if len(x_shape) != 3 or x_shape[-1] is None:
            raise ValueError(
                f"{self.name} expects x of shape (batch, length, features) with known features. "
                f"Received: x.shape={tuple(x_shape)}"
            )
        attention = attention or self._make_attention(x_shape[-1], name)
        setattr(self, name, attention)
        if not attention.built:
            attention.build(x_shape, memory_shape)
        return self._build_residual(name, x_shape)

    def _build_feed_forward(self, x_shape):
        self.feed_forward = self.feed_forward or self._make_feed_forward()
        if not self.feed_forward.built:
            self.feed_forward.build(x_shape)
        return self._build_residual("feed_forward", x_shape)

    def _self_attend(self, x, mask, attention_mask, use_causal_mask, return_scores, training):
        scores = None

        def attend(y):
            nonlocal scores
            output = self.self_attention(
                y,
                y,
                query_mask=mask,
                value_mask=mask,
                attention_mask=attention_mask,
                use_causal_mask=use_causal_mask,
                return_attention_scores=return_scores,
                training=training,
            )
            output, scores = output if return_scores else (output, None)
            return output

        return self._self_residual(x, attend, training), scores

    def _feed_forward(self, x, training):
        return self._feed_forward_residual(x, lambda y: self.feed_forward(y, training=training), training)

    def _scores_spec(self, attention, x, memory):
        heads = self.num_heads if attention is None else attention.num_heads
        return keras.KerasTensor((x.shape[0], heads, x.shape[1], memory.shape[1]), dtype=self.compute_dtype)

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
            "norm": _saved(self.norm),
            "norm_epsilon": self.norm_epsilon,
            "seed": self.seed,
            **self.dense_options.get_config(),
        }
        # A layer is saved where one was given, and where quantisation made one that the numbers cannot describe.
        if self.num_heads is None or _is_quantized(self.self_attention):
            config |= {"num_heads": None, "attention": _saved(self.self_attention)}
        if self.intermediate_dim is None or _is_quantized(self.feed_forward):
            config |= {"intermediate_dim": None, "feed_forward": _saved(self.feed_forward)}
        return config

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        for name in (*cls.instances, "norm"):
            if isinstance(config.get(name), dict):
                config[name] = keras.saving.deserialize_keras_object(config[name])
        return cls(**config)


def _saved(layer):
    return keras.saving.serialize_keras_object(layer) if isinstance(layer, keras.layers.Layer) else layer


def _is_quantized(layer):
    return any(part.dtype_policy.quantization_mode is not None for part in getattr(layer, "sublayers", []))


@register
class EncoderBlock(Block):
    """Self-attention over the whole sequence, then a feed-forward network.

    Args:
        num_heads: number of attention heads; or pass `attention`.
        intermediate_dim: inner size of the feed-forward network; or pass `feed_forward`.
        dropout: rate of the residual and of the attention-probability dropout.
        norm_placement: `"post"` (original, BERT), `"pre"` (GPT-2, ViT, Llama), `"sandwich"` (Gemma 2) or
            `"output"` (OLMo 2).
        key_dim: size of a head, features / num_heads by default.
        activation: of the feed-forward network.
        feed_forward_dropout: rate inside the feed-forward network.
        use_bias: whether the projections have biases.
        norm: `"layer"`, `"rms"`, or a layer to clone for each slot.
        norm_epsilon: epsilon of the norms.
        attention, feed_forward: layers to use instead of the numbers, for instance
            `attention=MultiHeadAttention(8, 64, num_key_value_heads=2)`,
            `feed_forward=FeedForward(2048, activation="silu", gated=True)`.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, kernel_constraint,
            bias_constraint: of all projections that are made from numbers.
        seed: seed of the dropouts.

    Call arguments:
        x: (B, T, D). Its implicit mask and `padding_mask` hide padding.
        padding_mask: boolean (B, T), True = real token.
        attention_mask: boolean (T, T), (B, T, T) or (B, N, T, T), True = attend.
        use_causal_mask: position t sees 0..t.
        return_attention_scores: also return the probabilities (B, N, T, T).

    Returns:
        (B, T, D), or `(x, scores)`.

    Example: `EncoderBlock(num_heads=8, intermediate_dim=2048, dropout=0.1)(x)`
    """

    def build(self, x_shape):
        self._self_residual = self._build_attention("self_attention", self.self_attention, x_shape, x_shape)
        self._feed_forward_residual = self._build_feed_forward(x_shape)
        self.built = True

    def call(
        self,
        x,
        padding_mask=None,
        attention_mask=None,
        use_causal_mask=False,
        return_attention_scores=False,
        training=None,
        mask=None,
        x_mask=None,
    ):
        mask = combine(mask, x_mask, padding_mask)
        x, scores = self._self_attend(x, mask, attention_mask, use_causal_mask, return_attention_scores, training)
        x = self._feed_forward(x, training)
        return (x, scores) if return_attention_scores else x

    def compute_output_spec(self, x, return_attention_scores=False, **kwargs):
        output = keras.KerasTensor(x.shape, dtype=self.compute_dtype)
        return (output, self._scores_spec(self.self_attention, x, x)) if return_attention_scores else output


@register
class DecoderBlock(Block):
    """Causal self-attention, attention to an encoder's output if there is one, then a feed-forward network.

    `block(x)` is a decoder-only block (GPT, Llama); `block(x, encoder_output)` also cross-attends. Which of the two a
    block is, is settled by the first call.

    Args:
        cross_attention: layer to use for cross-attention instead of the numbers.
        num_heads, intermediate_dim, dropout, norm_placement, key_dim, activation, feed_forward_dropout, use_bias,
            norm, norm_epsilon, attention, feed_forward, kernel_*, bias_*, seed: as for `EncoderBlock`.

    Call arguments:
        x: (B, T, D). Its implicit mask and `padding_mask` hide padding.
        encoder_output: (B, S, D'), the states to attend to. Its implicit mask and `encoder_padding_mask` hide padding.
        padding_mask: boolean (B, T), True = real token.
        encoder_padding_mask: boolean (B, S), True = real token.
        attention_mask: boolean (T, T), (B, T, T) or (B, N, T, T) on the self-attention, True = attend.
        use_causal_mask: position t sees 0..t; the default.
        return_attention_scores: also return the probabilities, (B, N, T, T) and (B, N, T, S).

    Returns:
        (B, T, D), or `(x, self_scores, cross_scores)`, cross_scores is None without an encoder output.

    Example: `DecoderBlock(num_heads=8, intermediate_dim=2048, dropout=0.1)(x, encoder_output)`
    """

    instances = ("attention", "cross_attention", "feed_forward")

    def __init__(
        self,
        num_heads=None,
        intermediate_dim=None,
        dropout=0.0,
        norm_placement="post",
        *,
        cross_attention=None,
        **kwargs,
    ):
        super().__init__(num_heads, intermediate_dim, dropout, norm_placement, **kwargs)
        self.cross_attention = cross_attention
        self._given_cross_attention = cross_attention is not None

    def build(self, x_shape, encoder_output_shape=None):
        self._self_residual = self._build_attention("self_attention", self.self_attention, x_shape, x_shape)
        if encoder_output_shape is not None:
            if self.cross_attention is None and self.num_heads is None:
                raise ValueError(
                    "A block made with `attention` needs `cross_attention` as well to attend to an encoder output."
                )
            self._cross_residual = self._build_attention(
                "cross_attention", self.cross_attention, x_shape, encoder_output_shape
            )
        self._feed_forward_residual = self._build_feed_forward(x_shape)
        self.built = True

    def call(
        self,
        x,
        encoder_output=None,
        padding_mask=None,
        encoder_padding_mask=None,
        attention_mask=None,
        use_causal_mask=True,
        return_attention_scores=False,
        training=None,
        mask=None,
        x_mask=None,
        encoder_output_mask=None,
    ):
        self._check_encoder_output(encoder_output)
        mask = combine(mask, x_mask, padding_mask)
        x, scores = self._self_attend(x, mask, attention_mask, use_causal_mask, return_attention_scores, training)
        cross_scores = None
        if encoder_output is not None:
            encoder_mask = combine(encoder_output_mask, encoder_padding_mask)
            x, cross_scores = self._cross_attend(
                x, encoder_output, mask, encoder_mask, return_attention_scores, training
            )
        x = self._feed_forward(x, training)
        return (x, scores, cross_scores) if return_attention_scores else x

    def _cross_attend(self, x, encoder_output, mask, encoder_mask, return_scores, training):
        scores = None

        def attend(y):
            nonlocal scores
            output = self.cross_attention(
                y,
                encoder_output,
                query_mask=mask,
                value_mask=encoder_mask,
                return_attention_scores=return_scores,
                training=training,
            )
            output, scores = output if return_scores else (output, None)
            return output

        return self._cross_residual(x, attend, training), scores

    def _check_encoder_output(self, encoder_output):
        if (encoder_output is None) != (self.cross_attention is None):
            built, called = ("without", "with") if self.cross_attention is None else ("with", "without")
            raise ValueError(
                f"{self.name} was first called {built} `encoder_output` and is now called {called} it: a block either "
                "cross-attends or it does not."
            )

    def compute_output_shape(self, x_shape, encoder_output_shape=None):
        return tuple(x_shape)

    def compute_output_spec(self, x, encoder_output=None, return_attention_scores=False, **kwargs):
        if self.built:
            self._check_encoder_output(encoder_output)
        output = keras.KerasTensor(x.shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        self_scores = self._scores_spec(self.self_attention, x, x)
        if encoder_output is None:
            return output, self_scores, None
        return output, self_scores, self._scores_spec(self.cross_attention, x, encoder_output)

    def get_config(self):
        config = super().get_config()
        if self._given_cross_attention or _is_quantized(self.cross_attention):
            config["cross_attention"] = _saved(self.cross_attention)
        return config
