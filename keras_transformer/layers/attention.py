"""Multi-head attention, a superset of `keras.layers.MultiHeadAttention`.

Letters: B batch, T query length, S key length, D features, N heads, K key/value heads, H head dim, V value head dim.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2 (https://arxiv.org/abs/1706.03762); grouped
heads: Ainslie et al. 2023, "GQA" (https://arxiv.org/abs/2305.13245); output gate: Qiu et al. 2025
(https://arxiv.org/abs/2505.06708).
"""

import keras
from keras import ops

from keras_transformer.layers.attention_axes import AttentionAxes
from keras_transformer.layers.attention_checks import biased_projections, check_arguments, check_shapes
from keras_transformer.layers.common import (
    DenseOptions,
    PolicyLayer,
    check_mask,
    feature_shape,
    on_tokens,
    plain_int,
    register,
)
from keras_transformer.layers.key_source import KeySource, find_keys
from keras_transformer.layers.ownership import deserialized
from keras_transformer.layers.projections import into_heads, out_of_heads
from keras_transformer.layers.variants import Variants
from keras_transformer.ops.attention import attend, without_masked_queries
from keras_transformer.ops.cache import current_scope
from keras_transformer.ops.capture import ScoresScope
from keras_transformer.ops.masks import combine

# What `get_config` takes from attributes of the same name.
PLAIN_ARGUMENTS = (
    "num_heads key_dim value_dim num_key_value_heads dropout use_bias use_gate attention_axes sliding_window "
    "flash_attention seed"
).split()


@register
class MultiHeadAttention(PolicyLayer):
    """Multi-head attention with causal masking, grouped heads, rotary positions and biases, and a cache for decoding.

    Takes the arguments, masks and weights of `keras.layers.MultiHeadAttention` and gives the same numbers; a query
    that may attend to nothing gives zeros (before the output bias) on every backend.

    Args:
        num_heads: number of query heads, N.
        key_dim: size of a head, H. It is free of the feature dim.
        value_dim: size of a value head; `key_dim` by default.
        dropout: rate on the attention probabilities. The fused kernel is still used at inference.
        use_bias: whether the projections have biases, or the names of those that have, of "query", "key", "gate",
            "value" and "attention_output". `("query", "key", "value")` is Qwen 2.
        output_shape: int or tuple, features of the output; those of the query by default.
        attention_axes: axes that attend; by default all but batch and features.
        sliding_window: a query sees keys less than this many positions away on both sides; with
            `use_causal_mask=True`, the last `sliding_window` keys.
        flash_attention: False forbids the backend's flash kernel, None lets the backend choose, True insists on it:
            a call that it cannot serve is then an error, as in Keras. That is every call on TensorFlow, and calls
            with a position bias, sinks, a soft cap, `return_attention_scores=True` or, on JAX, another `value_dim`.
            With None or False such calls, and training with dropout, use explicit scores.
        num_key_value_heads: number of key and value heads, K; a divisor of `num_heads`, which is the default.
            1 is multi-query attention.
        use_gate: multiply the output of the heads by a sigmoid projection of the query.
        rotary: a `Rotary`, which turns queries and keys at their positions; the cache keeps turned keys.
        position_bias: an `AlibiBias` or `RelativePositionBias` of its own, added to the scores.
        qk_norm: `"rms"`, `"layer"` or a layer to clone: norms over each head of the queries and of the keys, before
            `rotary` (Qwen 3, Gemma 3).
        qk_norm_epsilon: epsilon of these.
        sinks: whether each head has a learned logit that takes its share of the attention and gives nothing (gpt-oss).
        soft_cap: scores become `soft_cap * tanh(scores / soft_cap)` before bias and masks (Gemma 2).
        scale: factor on the products of queries and keys, `1 / sqrt(key_dim)` by default. T5 has 1.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, kernel_constraint,
            bias_constraint: of all projections.
        seed: seed of the dropout.

    Call arguments:
        query: (B, T, D), or (B, ..., D) with `attention_axes`.
        value: (B, S, D); the query by default (self-attention).
        key: (B, S, D); the value by default.
        query_mask, value_mask, key_mask: boolean (B, T), (B, S), (B, S); Keras fills them from the implicit masks.
        attention_mask: (T, S), (B, T, S) or (B, N or 1, T, S) of any dtype; True or non-zero = attend.
        position_bias: additive scores, broadcastable to (B, N, T, S); added in float32 under every dtype policy. While
            decoding through a cache S is the number of keys in it, which `RelativePositionBias` and `AlibiBias` know.
            With `attention_axes` B counts the positions of all other axes, and T and S those of the axes together.
        return_attention_scores: also return the probabilities (B, N, T, S).
        use_causal_mask: query t sees keys 0..t.

    Returns:
        (B, T, D), or `(output, scores)`.

    Raises:
        ValueError: a size, rate or name is none; `num_heads` is no multiple of `num_key_value_heads`; inputs differ in
            rank or length, have unknown features, or a mask does not fit them; `flash_attention=True` with dropout.

    Example:
    ```python
    attention = MultiHeadAttention(num_heads=8, key_dim=64, num_key_value_heads=2)
    y = attention(x, use_causal_mask=True)  # (B, T, D)
    y, scores = attention(x, encoder_output, return_attention_scores=True)
    ```
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        output_shape=None,
        attention_axes=None,
        sliding_window=None,
        flash_attention=None,
        num_key_value_heads=None,
        use_gate=False,
        rotary=None,
        position_bias=None,
        qk_norm=None,
        qk_norm_epsilon=1e-6,
        sinks=False,
        soft_cap=None,
        scale=None,
        seed=None,
        **kwargs,
    ):
        optional_sizes = {"value_dim": value_dim, "sliding_window": sliding_window}
        check_arguments(num_heads, num_key_value_heads, dropout, flash_attention, key_dim, **optional_sizes)
        use_bias = biased_projections(use_bias)
        self.variants = Variants(rotary, position_bias, qk_norm, qk_norm_epsilon, sinks, soft_cap, scale)
        self.dense_options = DenseOptions(kwargs)
        activity_regularizer = keras.regularizers.get(kwargs.pop("activity_regularizer", None))
        super().__init__(**kwargs)
        # `position_bias` must reach the float32 scores unrounded; the projections cast what they are given themselves.
        self.autocast = False
        self.projection_regularizer = activity_regularizer  # as in Keras: of every projection, not of the layer
        self.num_heads = int(num_heads)
        self.key_dim = int(key_dim)
        self.value_dim = int(value_dim or key_dim)
        self.dropout = dropout
        self.use_bias = use_bias
        self._output_shape = feature_shape(output_shape)
        self._axes = AttentionAxes(attention_axes)
        self.attention_axes = self._axes.given
        self.sliding_window = plain_int(sliding_window)
        self.flash_attention = flash_attention
        self.num_key_value_heads = int(num_key_value_heads or num_heads)
        self.use_gate = use_gate
        self.seed = plain_int(seed)
        self.variants.attach(self)
        self.reads_encoder = False  # a `DecoderBlock` says so of its cross-attention
        self.dropout_layer = keras.layers.Dropout(dropout, seed=self.seed, dtype=self.dtype_policy, name="dropout")

    @property
    def sublayers(self):
        if not self.built:
            return []
        dense = [self.query_dense, self.key_dense, self.gate_dense, self.value_dense, self.output_dense]
        return [layer for layer in dense if layer is not None]

    def build(self, query_shape, value_shape=None, key_shape=None):
        query_shape, value_shape, key_shape = check_shapes(query_shape, value_shape, key_shape)
        self._axes.resolve(len(query_shape))
        query_dim, value_dim, key_dim = query_shape[-1], value_shape[-1], key_shape[-1]
        # Created in Keras' order, so that `set_weights(keras_layer.get_weights())` works.
        self.query_dense = into_heads(self, "query", query_dim, self.num_heads, self.key_dim)
        self.key_dense = into_heads(self, "key", key_dim, self.num_key_value_heads, self.key_dim)
        self.gate_dense = None
        if self.use_gate:
            self.gate_dense = into_heads(self, "gate", query_dim, self.num_heads, self.value_dim, "sigmoid")
        self.value_dense = into_heads(self, "value", value_dim, self.num_key_value_heads, self.value_dim)
        output_shape = self._output_shape or (query_dim,)
        self.output_dense = out_of_heads(self, "attention_output", self.num_heads, self.value_dim, output_shape)
        self.variants.build(self)
        self.built = True

    def call(
        self,
        query,
        value=None,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        position_bias=None,
        mask=None,
    ):
        query_mask = mask if query_mask is None else query_mask
        are_queries = value is None or value is query
        if value is None:
            value, value_mask = query, combine(query_mask, value_mask)
        key = value if key is None else key
        check_mask(query, query_mask=query_mask)
        check_mask(key, value_mask=value_mask, key_mask=key_mask)

        self._axes.check_rank(query=query, value=value, key=key)
        axes, variants, projected = self._axes, self.variants, self._project(self.query_dense, query)
        queries_mask, keys_mask = axes.fold_mask(query_mask), axes.fold_mask(combine(value_mask, key_mask))
        keys = find_keys(
            KeySource(
                layer=self.path,
                project=lambda positions: (
                    variants.keys(axes.fold(self._project(self.key_dense, key)), positions, keys_mask),
                    axes.fold(self._project(self.value_dense, value)),
                ),
                length=axes.length(value.shape),
                mask=keys_mask,
                are_queries=are_queries,
                are_encoders=self.reads_encoder,
                fixed={"attention_mask": attention_mask, "position_bias": position_bias},
                sliding_window=self.sliding_window,
                relates_positions=variants.relate_positions,
                reason_against_cache=variants.reason_against_cache,
            ),
            current_scope(),
            use_causal_mask,
        )
        captured = ScoresScope.current()
        output, scores = self._masks_and_attend(
            variants.queries(axes.fold(projected), keys.query_positions, keys_mask if are_queries else queries_mask),
            keys,
            attention_mask=axes.fold_attention_mask(attention_mask, projected, value),
            causal=use_causal_mask,
            bias=position_bias,
            dropout=self._active_dropout(training),
            # To look at the scores is no reason to fail where the kernel is insisted on.
            flash_attention=self.flash_attention if captured is None else None,
            return_scores=return_attention_scores or captured is not None,
        )
        unfold = axes.unfolder(projected, value)
        output = unfold.output(output)
        if query_mask is not None:  # a masked query attends to nothing; cheaper here than as a (T, S) mask
            alive = ops.cast(query_mask, "bool")
            output = ops.where(ops.expand_dims(alive, (-1, -2)), output, ops.zeros((), output.dtype))
        if self.gate_dense is not None:
            output = output * self._project(self.gate_dense, query)
        output = self._project(self.output_dense, output, feature_axes=2)
        if scores is not None:
            scores = unfold.scores(without_masked_queries(scores, queries_mask))
        if captured is not None:
            captured.records.append((self, scores))
        return (output, scores) if return_attention_scores else output

    def _project(self, dense, x, feature_axes=1):
        y = on_tokens(dense, x, feature_axes)
        if self.projection_regularizer is not None:
            self.add_loss(self.projection_regularizer(y) / ops.cast(ops.shape(y)[0], y.dtype))
        return y

    def _masks_and_attend(self, query, keys, attention_mask, causal, bias, **options):
        """Attention under one mask made of positions and the mask given; a causal mask alone is left to the kernel."""
        mask = keys.mask(query, causal, self.sliding_window)
        return attend(
            *(query, keys.key, keys.value),
            mask=combine(mask, attention_mask),
            causal=causal and mask is None,
            bias=self.variants.bias(bias, query, keys),
            **self.variants.of_scores(),
            **options,
        )

    def _active_dropout(self, training):
        if not training or not self.dropout:
            return None
        return lambda x: self.dropout_layer(x, training=True)

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        query_shape, *_ = check_shapes(query_shape, value_shape, key_shape)
        return (*query_shape[:-1], *(self._output_shape or query_shape[-1:]))

    def compute_output_spec(self, query, value=None, key=None, return_attention_scores=False, **kwargs):
        value = query if value is None else value
        shape = self.compute_output_shape(query.shape, value.shape, None if key is None else key.shape)
        output = keras.KerasTensor(shape, dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        scores_shape = self._axes.scores_shape(query.shape, value.shape, self.num_heads)
        return output, keras.KerasTensor(scores_shape, dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in PLAIN_ARGUMENTS},
            "output_shape": self._output_shape,
            **self.variants.get_config(),
            "activity_regularizer": keras.regularizers.serialize(self.projection_regularizer),
            **self.dense_options.get_config(),
        }

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, Variants.instances))
