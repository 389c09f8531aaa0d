"""Multi-head attention, a superset of `keras.layers.MultiHeadAttention`.

Letters: B batch, T query length, S key length, D features, N heads, K key/value heads, H head dim, V value head dim.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2 (https://arxiv.org/abs/1706.03762); grouped
heads: Ainslie et al. 2023, "GQA" (https://arxiv.org/abs/2305.13245); output gate: Qiu et al. 2025
(https://arxiv.org/abs/2505.06708).
"""

import keras
from keras import ops

from keras_transformer.layers.attention_axes import AttentionAxes
from keras_transformer.layers.common import (
    DenseOptions,
    PolicyLayer,
    check_mask,
    check_positive,
    check_rate,
    check_size,
    feature_shape,
    on_tokens,
    register,
)
from keras_transformer.ops.attention import attend
from keras_transformer.ops.cache import CannotCache, LooksBothWays, current_scope
from keras_transformer.ops.capture import current_scores_scope
from keras_transformer.ops.masks import attention_mask as mask_from_positions
from keras_transformer.ops.masks import combine, index_positions, indices


@register
class MultiHeadAttention(PolicyLayer):
    """Multi-head attention with causal masking, grouped heads, position bias and a cache for decoding.

    Takes the arguments, masks and weights of `keras.layers.MultiHeadAttention` and gives the same numbers; a query
    that may attend to nothing gives zeros (before the output bias) on every backend.

    Args:
        num_heads: number of query heads, N.
        key_dim: size of a head, H. It is free of the feature dim.
        value_dim: size of a value head; `key_dim` by default.
        dropout: rate on the attention probabilities. The fused kernel is still used at inference.
        use_bias: whether the projections have biases.
        output_shape: int or tuple, features of the output; those of the query by default.
        attention_axes: axes that attend; by default all but batch and features.
        sliding_window: a query sees keys less than this many positions away on both sides; with
            `use_causal_mask=True`, the last `sliding_window` keys.
        flash_attention: True insists on the backend's flash kernel, False forbids it, None lets the backend choose.
        num_key_value_heads: number of key and value heads, K; a divisor of `num_heads`, which is the default.
            1 is multi-query attention.
        use_gate: multiply the output of the heads by a sigmoid projection of the query.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, kernel_constraint,
            bias_constraint: of all projections.
        seed: seed of the dropout.

    Call arguments:
        query: (B, T, D), or (B, ..., D) with `attention_axes`.
        value: (B, S, D); the query by default (self-attention).
        key: (B, S, D); the value by default.
        query_mask, value_mask, key_mask: boolean (B, T), (B, S), (B, S); Keras fills them from the implicit masks.
        attention_mask: (T, S), (B, T, S) or (B, N or 1, T, S) of any dtype; True or non-zero = attend.
        position_bias: additive scores, broadcastable to (B, N, T, S).
        return_attention_scores: also return the probabilities (B, N, T, S).
        use_causal_mask: query t sees keys 0..t.

    Returns:
        (B, T, D), or `(output, scores)`.

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
        seed=None,
        **kwargs,
    ):
        check_size(num_heads=num_heads, key_dim=key_dim)
        check_positive(value_dim=value_dim, sliding_window=sliding_window, num_key_value_heads=num_key_value_heads)
        check_rate(dropout=dropout)
        num_key_value_heads = num_key_value_heads or num_heads
        if num_heads % num_key_value_heads:
            raise ValueError(
                "`num_heads` must be a multiple of `num_key_value_heads`. "
                f"Received: num_heads={num_heads}, num_key_value_heads={num_key_value_heads}"
            )
        if flash_attention and dropout > 0:
            raise ValueError(
                "`flash_attention=True` does not go with dropout; leave it None to use the kernel at inference. "
                f"Received: dropout={dropout}"
            )
        self.dense_options = DenseOptions(kwargs)
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim or key_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self._output_shape = feature_shape(output_shape)
        self._axes = AttentionAxes(attention_axes)
        self.sliding_window = sliding_window
        self.flash_attention = flash_attention
        self.num_key_value_heads = num_key_value_heads
        self.use_gate = use_gate
        self.seed = seed
        self.dropout_layer = keras.layers.Dropout(dropout, seed=seed, dtype=self.dtype_policy, name="dropout")

    @property
    def attention_axes(self):
        """The axes given at construction, or None."""
        return self._axes.given

    @property
    def sublayers(self):
        if not self.built:
            return []
        dense = [self.query_dense, self.key_dense, self.gate_dense, self.value_dense, self.output_dense]
        return [layer for layer in dense if layer is not None]

    def build(self, query_shape, value_shape=None, key_shape=None):
        query_shape, value_shape, key_shape = self._shapes(query_shape, value_shape, key_shape)
        self._axes.resolve(len(query_shape))
        # Created in Keras' order, so that `set_weights(keras_layer.get_weights())` works.
        self.query_dense = self._projection("query", query_shape, self.num_heads, self.key_dim)
        self.key_dense = self._projection("key", key_shape, self.num_key_value_heads, self.key_dim)
        self.gate_dense = None
        if self.use_gate:
            self.gate_dense = self._projection("gate", query_shape, self.num_heads, self.value_dim, "sigmoid")
        self.value_dense = self._projection("value", value_shape, self.num_key_value_heads, self.value_dim)
        self.output_dense = self._output_projection(query_shape)
        self.built = True

    def _shapes(self, query_shape, value_shape, key_shape):
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        if tuple(value_shape[1:-1]) != tuple(key_shape[1:-1]):
            raise ValueError(
                "`value` and `key` must agree in all but the last dimension. "
                f"Received: value_shape={tuple(value_shape)}, key_shape={tuple(key_shape)}"
            )
        for name, shape in (("query", query_shape), ("value", value_shape), ("key", key_shape)):
            if len(shape) < 3 or shape[-1] is None:
                raise ValueError(
                    f"`{name}` must have shape (batch, length, features) with known features. Received: {tuple(shape)}"
                )
        return query_shape, value_shape, key_shape

    def _projection(self, name, shape, heads, dim, activation=None):
        layer = keras.layers.EinsumDense(
            "td,dnh->tnh",
            output_shape=(heads, dim),
            bias_axes="nh" if self.use_bias else None,
            activation=activation,
            name=name,
            dtype=self.sublayer_policy(name),
            **self.dense_options.arguments(),
        )
        layer.build((None, shape[-1]))
        return layer

    def _output_projection(self, query_shape):
        out = self._output_shape or (query_shape[-1],)
        features = "uvwxyz"[: len(out)]
        layer = keras.layers.EinsumDense(
            f"tnh,nh{features}->t{features}",
            output_shape=out,
            bias_axes=features if self.use_bias else None,
            name="attention_output",
            dtype=self.sublayer_policy("attention_output"),
            **self.dense_options.arguments(),
        )
        layer.build((None, self.num_heads, self.value_dim))
        return layer

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
        if return_attention_scores and self.flash_attention:
            raise ValueError("The flash kernel has no attention scores: set `flash_attention=None` to get them.")
        query_mask = mask if query_mask is None else query_mask
        if value is None:
            value, value_mask = query, query_mask
        is_self_attention = value is query
        key = value if key is None else key
        check_mask(query, query_mask=query_mask)
        check_mask(key, value_mask=value_mask, key_mask=key_mask)
        key_mask = combine(value_mask, key_mask)

        gate = None if self.gate_dense is None else on_tokens(self.gate_dense, query)
        scores_scope = current_scores_scope()
        axes, projected = self._axes, on_tokens(self.query_dense, query)
        unfold = axes.unfolder(projected, value)
        output, scores = self._attend(
            axes.fold(projected),
            lambda: (axes.fold(on_tokens(self.key_dense, key)), axes.fold(on_tokens(self.value_dense, value))),
            is_self_attention,
            key_mask=axes.fold_mask(key_mask),
            attention_mask=axes.fold_attention_mask(attention_mask, projected, value),
            use_causal_mask=use_causal_mask,
            bias=position_bias,
            dropout=self._active_dropout(training),
            return_scores=return_attention_scores or scores_scope is not None,
        )
        output = unfold.output(output)
        if query_mask is not None:  # a masked query attends to nothing; cheaper here than as a (T, S) mask
            alive = ops.cast(query_mask, "bool")
            output = ops.where(ops.expand_dims(alive, (-1, -2)), output, ops.zeros((), output.dtype))
        if scores is not None:
            folded_query_mask = axes.fold_mask(query_mask)
            if folded_query_mask is not None:
                alive = ops.expand_dims(ops.cast(folded_query_mask, scores.dtype), (1, -1))  # (B, 1, T, 1)
                scores = scores * alive
            scores = unfold.scores(scores)
        if scores_scope is not None:
            scores_scope.records.append((self, scores))
        output = output if gate is None else output * gate
        output = on_tokens(self.output_dense, output, feature_axes=2)
        return (output, scores) if return_attention_scores else output

    def _active_dropout(self, training):
        if not training or not self.dropout:
            return None
        return lambda x: self.dropout_layer(x, training=True)

    def _attend(
        self, query, project, is_self_attention, key_mask, attention_mask, use_causal_mask, bias, dropout, return_scores
    ):
        """Masks from positions, keys and values from the cache if a decoding scope is open, then attention."""
        scope = current_scope()
        causal, window = use_causal_mask, self.sliding_window
        query_positions = indices(ops.shape(query)[1])
        if scope is not None and causal and scope.caches:
            self._refuse_in_cache(attention_mask=attention_mask, position_bias=bias)
            key, value = scope.write(*project(), key_mask)
            query_positions, key_positions = scope.positions, scope.key_positions
        elif scope is not None and is_self_attention:
            if scope.caches:
                raise LooksBothWays(
                    f"The attention layer {self.path} looks both ways, so earlier tokens change with every new one: "
                    "the model cannot write texts. Decode with a causal model (`use_causal_mask=True`)."
                )
            key, value = project()
            query_positions, key_positions = scope.positions, scope.key_positions
            key_positions = key_positions if key_mask is None else ops.where(key_mask, key_positions, -1)
        elif scope is not None and scope.caches:
            self._refuse_in_cache(attention_mask=attention_mask, position_bias=bias, sliding_window=window)
            key, value, key_positions = scope.freeze(project, key_mask)
        else:
            key, value = project()
            key_positions = None if key_mask is None else index_positions(key_mask)
            if scope is not None and key_positions is None:
                key_positions = scope.encoder_positions

        mask = None
        if key_positions is None and window is not None:
            key_positions = indices(ops.shape(key)[1])
        if key_positions is not None:
            mask = ops.expand_dims(mask_from_positions(query_positions, key_positions, causal, window), 1)
            causal = False  # it is in the mask now
        mask = combine(mask, attention_mask)
        return attend(
            query,
            key,
            value,
            mask=mask,
            causal=causal,
            bias=bias,
            dropout=dropout,
            flash_attention=self.flash_attention,
            return_scores=return_scores,
        )

    def _refuse_in_cache(self, **arguments):
        for name, value in arguments.items():
            if value is not None:
                raise CannotCache(
                    f"The attention layer {self.path} was called with `{name}`, which is fixed to the tokens of one "
                    "call; while decoding through a cache the keys are those of the whole text."
                )

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        query_shape, *_ = self._shapes(query_shape, value_shape, key_shape)
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
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "output_shape": self._output_shape,
            "attention_axes": self.attention_axes,
            "sliding_window": self.sliding_window,
            "flash_attention": self.flash_attention,
            "num_key_value_heads": self.num_key_value_heads,
            "use_gate": self.use_gate,
            "seed": self.seed,
            **self.dense_options.get_config(),
        }
