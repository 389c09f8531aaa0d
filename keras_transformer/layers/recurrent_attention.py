"""The attention of recurrent decoders: one score for each pair of a decoder state and an encoder state.

Letters: B batch, T query length, S key length, D features, U units.
"""

import keras
from keras import ops

from keras_transformer.arguments import check_size
from keras_transformer.layers.attention_checks import check_shapes
from keras_transformer.layers.common import (
    PolicyLayer,
    check_choice,
    check_mask,
    check_optional_size,
    clone_initializer,
    on_tokens,
    plain_int,
    register,
)
from keras_transformer.layers.key_source import KeySource, find_keys
from keras_transformer.ops.cache import current_scope
from keras_transformer.ops.capture import ScoresScope
from keras_transformer.ops.masks import NOT_A_TOKEN, combine


class RecurrentAttention(PolicyLayer):
    """What the two have in common: everything but the score.

    A subclass makes its weights in `build_score` and gives `project_query`, `project_key` (what is done with each
    alone, once) and `score`, from the projected (B, T, U) and (B, S, U) to (B, T, S).
    """

    def __init__(self, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, query_shape, value_shape, key_shape=None):
        query_shape, _, key_shape = check_shapes(query_shape, value_shape, key_shape)
        self.build_score(query_shape[-1], key_shape[-1])
        self.built = True

    def _dense(self, name, inputs, units):
        layer = keras.layers.Dense(
            units,
            use_bias=False,
            kernel_initializer=clone_initializer(self.kernel_initializer, name),
            name=name,
            **self.sublayer_options(name),
        )
        layer.build((None, inputs))
        return layer

    def _vector(self, units):
        initializer = clone_initializer(self.kernel_initializer, "score")
        return self.add_weight(shape=(units, 1), initializer=initializer, name="score_kernel")

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        return_attention_scores=False,
        mask=None,
    ):
        query_mask = mask if query_mask is None else query_mask
        are_queries, key = value is query, value if key is None else key
        check_mask(query, query_mask=query_mask)
        check_mask(key, value_mask=value_mask, key_mask=key_mask)
        keys = find_keys(
            KeySource(
                layer=self.path,
                # one head, whose keys are what is kept while decoding
                project=lambda positions: (ops.expand_dims(self.project_key(key), 2), ops.expand_dims(value, 2)),
                length=value.shape[1],
                mask=combine(value_mask, key_mask),
                are_queries=are_queries,
                are_encoders=False,
                fixed={},
            ),
            current_scope(),
            causal=False,
        )
        scores = ops.cast(self.score(self.project_query(query), keys.key[:, :, 0]), "float32")
        allowed = None if keys.key_positions is None else ops.expand_dims(keys.key_positions > NOT_A_TOKEN, 1)
        if query_mask is not None:
            allowed = combine(allowed, ops.expand_dims(query_mask, -1))
        probabilities = _softmax(scores, allowed)  # (B, T, S)
        output = ops.matmul(ops.cast(probabilities, value.dtype), keys.value[:, :, 0])
        probabilities = ops.cast(probabilities, self.compute_dtype)
        captured = ScoresScope.current()
        if captured is not None:
            captured.records.append((self, ops.expand_dims(probabilities, 1)))
        return (output, probabilities) if return_attention_scores else output

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:-1], value_shape[-1])

    def compute_output_spec(self, query, value, key=None, return_attention_scores=False, **kwargs):
        output = keras.KerasTensor(self.compute_output_shape(query.shape, value.shape), dtype=self.compute_dtype)
        if not return_attention_scores:
            return output
        return output, keras.KerasTensor((*query.shape[:-1], value.shape[1]), dtype=self.compute_dtype)

    def get_config(self):
        initializer = keras.initializers.serialize(self.kernel_initializer)
        return {**super().get_config(), "kernel_initializer": initializer}


@register
class BahdanauAttention(RecurrentAttention):
    """Additive attention: the score of a query q and a key k is `v . tanh(W q + U k)`.

    Source: Bahdanau et al. 2014, "Neural Machine Translation by Jointly Learning to Align and Translate", appendix
    A.1.2 (https://arxiv.org/abs/1409.0473). There the query is the decoder's state before its step; here it is what
    the layer is called with.

    Args:
        units: size of the space in which queries and keys meet, U.
        kernel_initializer: of W, U and v.

    Call arguments:
        query: (B, T, D), the decoder's states.
        value: (B, S, D'), the encoder's states.
        key: (B, S, D''); the value by default.
        query_mask, value_mask, key_mask: boolean (B, T), (B, S), (B, S); Keras fills them from the implicit masks. A
            masked value is not seen, a masked query gives zeros, and so does one that may see nothing.
        return_attention_scores: also return the probabilities (B, T, S).

    Returns:
        The contexts (B, T, D'), or `(contexts, probabilities)`.

    Example: `context = BahdanauAttention(64)(decoder_states, encoder_states)  # (B, T, D')`
    """

    def __init__(self, units, **kwargs):
        check_size(units=units)
        super().__init__(**kwargs)
        self.units = int(units)

    @property
    def sublayers(self):
        return [self.query_dense, self.key_dense] if self.built else []

    def build_score(self, query_dim, key_dim):
        self.query_dense = self._dense("query", query_dim, self.units)
        self.key_dense = self._dense("key", key_dim, self.units)
        self.score_kernel = self._vector(self.units)

    def project_query(self, query):
        return on_tokens(self.query_dense, query)

    def project_key(self, key):
        return on_tokens(self.key_dense, key)

    def score(self, query, key):
        return _additive(query, key, self.score_kernel)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@register
class LuongAttention(RecurrentAttention):
    """Multiplicative attention, or the two forms that it was compared with.

    The score of a query q and a key k is `q . k` (`"dot"`), `q . (W k)` (`"general"`) or
    `v . tanh(W [q; k])` (`"concat"`, with W in two parts, so that each side is multiplied once).

    Source: Luong et al. 2015, "Effective Approaches to Attention-based Neural Machine Translation", section 3.1
    (https://arxiv.org/abs/1508.04025); global attention, where the query is the decoder's state after its step.

    Args:
        score: `"dot"` (the sizes of query and key must be equal), `"general"` or `"concat"`.
        units: size U of W's output in `"concat"`; the query's size by default.
        kernel_initializer: of W and v.

    Call arguments, returns: as for `BahdanauAttention`.

    Example: `context = LuongAttention("general")(decoder_states, encoder_states)  # (B, T, D')`
    """

    def __init__(self, score="dot", units=None, **kwargs):
        check_choice(("dot", "general", "concat"), score=score)
        check_optional_size(units=units)
        if units is not None and score != "concat":
            raise ValueError(f'`units` goes with score="concat". Received: units={units}, score={score!r}')
        super().__init__(**kwargs)
        self.score_name, self.units = score, plain_int(units)
        self.query_dense = self.key_dense = None

    @property
    def sublayers(self):
        return [layer for layer in (self.query_dense, self.key_dense) if layer is not None]

    def build_score(self, query_dim, key_dim):
        if self.score_name == "dot" and query_dim != key_dim:
            raise ValueError(
                'score="dot" multiplies query and key, which must be of one size; "general" projects the key. '
                f"Received: {query_dim} and {key_dim} features"
            )
        units = self.units or query_dim
        if self.score_name != "dot":
            self.key_dense = self._dense("key", key_dim, units)
        if self.score_name == "concat":
            self.query_dense = self._dense("query", query_dim, units)
            self.score_kernel = self._vector(units)

    def project_query(self, query):
        return query if self.query_dense is None else on_tokens(self.query_dense, query)

    def project_key(self, key):
        return key if self.key_dense is None else on_tokens(self.key_dense, key)

    def score(self, query, key):
        if self.score_name == "concat":
            return _additive(query, key, self.score_kernel)
        return ops.einsum("btu,bsu->bts", ops.cast(query, "float32"), ops.cast(key, "float32"))

    def get_config(self):
        return {**super().get_config(), "score": self.score_name, "units": self.units}


def _additive(query, key, kernel):
    """v . tanh(q + k) for all pairs, summed in float32."""
    met = ops.tanh(ops.expand_dims(query, 2) + ops.expand_dims(key, 1))  # (B, T, S, U)
    return ops.matmul(ops.cast(met, "float32"), ops.cast(kernel, "float32"))[..., 0]


def _softmax(scores, allowed):
    """Probabilities over the last axis; zeros where nothing is allowed."""
    if allowed is None:
        return ops.softmax(scores, axis=-1)
    # A finite number, so that no NaN can reach a gradient.
    probabilities = ops.softmax(ops.where(allowed, scores, -1e9), axis=-1)
    return ops.where(allowed, probabilities, 0.0)
