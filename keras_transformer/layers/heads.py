"""What heads need beside `keras.layers.Dense`: some of the tokens, a bias of a tied output, and spans.

Letters: B batch, T length, D features, P number of places.
"""

import keras
from keras import ops

from keras_transformer.arguments import check_id
from keras_transformer.layers.common import check_mask, register
from keras_transformer.layers.pooling import pool
from keras_transformer.ops.masks import NOT_A_TOKEN, combine
from keras_transformer.ops.rows import at

# Finite, so that a row without any place to choose gives no NaN.
HIDDEN_LOGIT, HIDDEN_IN_FLOAT16 = -1e9, -6e4


@register
class TokensAt(keras.layers.Layer):
    """The vectors at given places: only these then become logits, which are most of a masked language model's work.

    Source: Devlin et al. 2018, "BERT" (https://arxiv.org/abs/1810.04805), whose head looks at the masked tokens alone.

    Call arguments:
        inputs: a list of vectors (B, T, D) and integer places (B, P); -1 is no place.

    Returns:
        (B, P, D), masked where there is no place. A place outside the text is NaN.

    Example: `TokensAt()([states, masked_positions])`
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs):
        x, places = inputs
        last = ops.shape(x)[1] - 1
        rows = at(x, ops.clip(ops.cast(places, "int32"), 0, last))
        rows = ops.where((places > NOT_A_TOKEN)[..., None], rows, ops.zeros((), rows.dtype))
        is_outside = ops.logical_or(places > last, places < NOT_A_TOKEN)
        return ops.where(is_outside[..., None], ops.full((), float("nan"), rows.dtype), rows)

    def compute_mask(self, inputs, mask=None):
        return inputs[1] > NOT_A_TOKEN

    def compute_output_shape(self, inputs_shape):
        x, places = inputs_shape
        if len(x) != 3 or len(places) != 2:
            raise ValueError(
                f"{self.name} expects vectors (batch, length, features) and places (batch, number). "
                f"Received: {tuple(x)} and {tuple(places)}"
            )
        return (*places, x[-1])

    def get_config(self):
        return super().get_config()  # Keras refuses to write a policy as `dtype` where this is not overridden


@register
class StateAtToken(keras.layers.Layer):
    """The vector at the last place where a token with a given id stands, which BART and T5 classify.

    Source: Lewis et al. 2019, "BART", section 3.1 (https://arxiv.org/abs/1910.13461).

    Args:
        token_id: the id, or a list of them.

    Call arguments:
        inputs: a list of vectors (B, T, D) and token ids (B, T).

    Returns:
        (B, D), without a mask. A row in which the token does not occur gives the last vector that is not masked.

    Example: `StateAtToken(token_id=2)([states, token_ids])`
    """

    def __init__(self, token_id, **kwargs):
        token_ids = list(token_id) if isinstance(token_id, (list, tuple)) else [token_id]
        for each in token_ids or [None]:
            check_id(token_id=each)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.token_id = [int(each) for each in token_ids]

    def call(self, inputs, mask=None):
        x, ids = inputs
        check_mask(x, token_ids=ids)
        found = ops.zeros(ops.shape(ids), "bool")
        for token_id in self.token_id:
            found = ops.logical_or(found, ops.equal(ids, token_id))
        real = ops.ones_like(found) if mask is None or mask[0] is None else ops.cast(mask[0], "bool")
        return pool(x, ops.where(ops.any(found, axis=1, keepdims=True), found, real), "last")

    def compute_mask(self, inputs, mask=None):
        return None

    def compute_output_shape(self, inputs_shape):
        return (inputs_shape[0][0], inputs_shape[0][-1])

    def get_config(self):
        return {**super().get_config(), "token_id": self.token_id}


@register
class AddBias(keras.layers.Layer):
    """Adds a learned vector, the bias of an output whose kernel is the token table. Masks are passed on.

    Args:
        bias_initializer: of the vector.
        dtype: float32 by default, as logits are.

    Call arguments:
        inputs: (B, ..., D).

    Returns:
        The same shape.

    Example: `AddBias()(embedding(x, reverse=True))`
    """

    def __init__(self, bias_initializer="zeros", dtype="float32", **kwargs):
        super().__init__(dtype=dtype, **kwargs)
        self.supports_masking = True
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, inputs_shape):
        self.bias = self.add_weight((inputs_shape[-1],), initializer=self.bias_initializer, name="bias")
        self.built = True

    def call(self, inputs):
        return inputs + ops.cast(self.bias, inputs.dtype)

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)

    def get_config(self):
        return {**super().get_config(), "bias_initializer": keras.initializers.serialize(self.bias_initializer)}


@register
class SpanLogits(keras.layers.Layer):
    """Two numbers for each token as the logits of where an answer starts and ends; no answer lies in padding.

    Source: Devlin et al. 2018, "BERT", section 4.2 (https://arxiv.org/abs/1810.04805).

    Args:
        dtype: float32 by default, as logits are.

    Call arguments:
        inputs: (B, T, 2). Its implicit mask hides padding.
        segment_ids: integers (B, T). Given, tokens of segment 0, the question's, are hidden too, but for the first
            real one: there a model points that finds no answer.

    Returns:
        The logits of starts and of ends, (B, T) each, -1e9 (in float16 -6e4) where nothing may start or end. They have
        no mask.

    Example: `start, end = SpanLogits()(keras.layers.Dense(2)(states))`
    """

    def __init__(self, dtype="float32", **kwargs):
        super().__init__(dtype=dtype, **kwargs)
        self.supports_masking = True

    def call(self, inputs, segment_ids=None, mask=None, inputs_mask=None):
        logits, real = ops.cast(inputs, self.compute_dtype), combine(mask, inputs_mask)
        allowed = real
        if segment_ids is not None:
            check_mask(inputs, segment_ids=segment_ids)
            real = ops.ones_like(segment_ids, dtype="bool") if real is None else real
            is_first = ops.logical_and(real, ops.equal(ops.cumsum(ops.cast(real, "int32"), axis=1), 1))
            allowed = ops.logical_and(real, ops.logical_or(segment_ids > 0, is_first))
        if allowed is not None:
            hidden = HIDDEN_IN_FLOAT16 if self.compute_dtype == "float16" else HIDDEN_LOGIT
            logits = ops.where(allowed[..., None], logits, hidden)
        return logits[..., 0], logits[..., 1]

    def compute_mask(self, inputs, mask=None):
        return None

    def compute_output_spec(self, inputs, segment_ids=None, mask=None, inputs_mask=None):
        if len(inputs.shape) != 3 or inputs.shape[-1] != 2:
            raise ValueError(
                f"{self.name} expects numbers of shape (batch, length, 2). Received: {tuple(inputs.shape)}"
            )
        return tuple(keras.KerasTensor(inputs.shape[:2], self.compute_dtype) for _ in range(2))
