"""Encoder and decoder blocks: attention and feed-forward in the residual expression.

Letters: B batch, T length of x, S length of the encoder output, D features, N heads.

Sources: Vaswani et al. 2017, "Attention Is All You Need", section 3.1 (https://arxiv.org/abs/1706.03762); norm first:
Xiong et al. 2020 (https://arxiv.org/abs/2002.04745); layer scale: Touvron et al. 2021, "CaiT"
(https://arxiv.org/abs/2103.17239); stochastic depth: Huang et al. 2016 (https://arxiv.org/abs/1603.09382); sublayers in
parallel: Wang and Komatsuzaki 2021, "GPT-J" (https://github.com/kingoflolz/mesh-transformer-jax).
"""

import keras

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.block_base import Block, is_quantized
from keras_transformer.layers.common import check_mask, register
from keras_transformer.layers.ownership import own, serialized
from keras_transformer.ops.masks import combine


@register
class EncoderBlock(Block):
    """Self-attention over the whole sequence, then a feed-forward network.

    Args:
        num_heads: number of attention heads; or pass `attention`.
        intermediate_dim: inner size of the feed-forward network; or pass `feed_forward`.
        dropout: rate of the residual dropout, and of that of the probabilities if attention is made from numbers.
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
            `feed_forward=FeedForward(2048, activation="silu", gated=True)`. What is said of projections and
            activations here is not for them.
        parallel: attention and feed-forward read the same x: `x + attention(norm1(x)) + feed_forward(norm2(x))`
            (GPT-NeoX; GPT-J, whose two norms are one: give both the same weights). Only with the norm placement "pre".
        layer_scale: initial value, for instance 1e-4, of a learned factor for each feature of what a sublayer gives;
            None for no factor.
        stochastic_depth: probability with which a row skips a sublayer in training; where it does not, what the
            sublayer gives is scaled, so that the expectation stays.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, kernel_constraint,
            bias_constraint: of all projections that are made from numbers.
        seed: seed of the dropouts.

    Call arguments:
        x: (B, T, D). Its implicit mask and `padding_mask` hide padding.
        padding_mask: boolean (B, T), True = real token.
        attention_mask: boolean (T, T), (B, T, T) or (B, N, T, T), True = attend.
        position_bias: additive scores (1 or B, N, T, T), for instance of a `RelativePositionBias` shared by all blocks.
        use_causal_mask: position t sees 0..t.
        return_attention_scores: also return the probabilities (B, N, T, T).

    Returns:
        (B, T, D), or `(x, scores)`.

    Raises:
        ValueError: a number and the layer for which it stands are both given, or neither; a size, rate or name is none;
            D is no multiple of `num_heads` and there is no `key_dim`; a mask does not fit.

    Example: `EncoderBlock(num_heads=8, intermediate_dim=2048, dropout=0.1)(x)`
    """

    def build(self, x_shape):
        self._self_residual = self._build_attention("self_attention", x_shape, x_shape)
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
        position_bias=None,
        mask=None,
        x_mask=None,
    ):
        check_mask(x, padding_mask=padding_mask)
        mask = combine(mask, x_mask, padding_mask)
        options = attention_mask, use_causal_mask, position_bias, return_attention_scores, training
        x, scores = self._self_attend(self._as_computed(x), mask, *options)
        x = self._feed_forward(x, mask, training)
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
            norm, norm_epsilon, attention, feed_forward, parallel, layer_scale, stochastic_depth, kernel_*, bias_*,
            seed: as for `EncoderBlock`. With `parallel` there is no cross-attention.

    Call arguments:
        x: (B, T, D). Its implicit mask and `padding_mask` hide padding.
        encoder_output: (B, S, D'), the states to attend to. Its implicit mask and `encoder_padding_mask` hide padding.
        padding_mask: boolean (B, T), True = real token.
        encoder_padding_mask: boolean (B, S), True = real token.
        attention_mask: boolean (T, T), (B, T, T) or (B, N, T, T) on the self-attention, True = attend.
        position_bias: additive scores (1 or B, N, T, T) on the self-attention.
        use_causal_mask: position t sees 0..t; the default.
        return_attention_scores: also return the probabilities, (B, N, T, T) and (B, N, T, S).

    Returns:
        (B, T, D), or `(x, self_scores, cross_scores)`, cross_scores is None without an encoder output.

    Raises:
        ValueError: as for `EncoderBlock`; it is called with an encoder output and was made without, or the reverse;
            `cross_attention` has rotary positions or a position bias, or stands beside `parallel`.

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
        self.cross_attention, self._given.cross_attention = None, cross_attention
        own(self, cross_attention=cross_attention)
        if cross_attention is not None:
            self._check_cross_attention(cross_attention)

    def build(self, x_shape, encoder_output_shape=None):
        self._self_residual = self._build_attention("self_attention", x_shape, x_shape)
        if encoder_output_shape is not None:
            self._check_cross_attention(self._given.cross_attention)
            if self._given.cross_attention is None and self.num_heads is None:
                raise ValueError(
                    "A block made with `attention` needs `cross_attention` as well to attend to an encoder output."
                )
            self._cross_residual = self._build_attention("cross_attention", x_shape, encoder_output_shape)
            self.cross_attention.reads_encoder = True  # its keys do not grow with the text
        self._feed_forward_residual = self._build_feed_forward(x_shape)
        self.built = True

    def __call__(self, *args, **kwargs):
        outputs = super().__call__(*args, **kwargs)
        if isinstance(outputs, tuple) and isinstance(outputs[2], tuple):  # left empty by `compute_output_spec`
            return *outputs[:2], None
        return outputs

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
        position_bias=None,
        mask=None,
        x_mask=None,
        encoder_output_mask=None,
    ):
        self._check_encoder_output(encoder_output)
        check_mask(x, padding_mask=padding_mask)
        mask = combine(mask, x_mask, padding_mask)
        options = attention_mask, use_causal_mask, position_bias, return_attention_scores, training
        x, scores = self._self_attend(self._as_computed(x), mask, *options)
        cross_scores = None
        if encoder_output is not None:
            check_mask(encoder_output, encoder_padding_mask=encoder_padding_mask)
            encoder_mask = combine(encoder_output_mask, encoder_padding_mask)
            x, cross_scores = self._attend(
                self.cross_attention,
                self._cross_residual,
                x,
                self._as_computed(encoder_output),
                mask,
                encoder_mask,
                return_attention_scores,
                training,
            )
        x = self._feed_forward(x, mask, training)
        return (x, scores, cross_scores) if return_attention_scores else x

    def _check_cross_attention(self, layer):
        if self.parallel:
            raise ValueError(
                f"A block with `parallel=True` has no cross-attention: {self.name} takes no encoder output."
            )
        if isinstance(layer, MultiHeadAttention) and layer.variants.relate_positions:
            raise ValueError(
                "`cross_attention` takes neither `rotary` nor `position_bias`: its keys are places of another "
                f"sequence, to which there is no distance. Received: {layer.name}"
            )

    def _check_encoder_output(self, encoder_output):
        if (encoder_output is None) != (self.cross_attention is None):
            has, called = ("no cross-attention", "with") if self.cross_attention is None else ("it", "without")
            raise ValueError(
                "A block cross-attends always or never, as settled by `cross_attention` or its first call. "
                f"{self.name} has {has} and was called {called} `encoder_output`."
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
            return output, self_scores, ()  # Keras takes no None among symbolic outputs
        return output, self_scores, self._scores_spec(self.cross_attention, x, encoder_output)

    def get_config(self):
        config = super().get_config()
        cross_attention = self._sublayer("cross_attention")
        no_number = cross_attention is not None and config["num_heads"] is None
        if self._given.cross_attention is not None or no_number or is_quantized(cross_attention):
            config["cross_attention"] = serialized(cross_attention)
        return config
