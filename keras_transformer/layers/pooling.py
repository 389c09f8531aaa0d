"""One vector for a sequence, whatever padding surrounds it.

Letters: B batch, T length, D features.
"""

import keras
from keras import ops

from keras_transformer.arguments import check_size
from keras_transformer.layers.activations import get_activation
from keras_transformer.layers.common import DenseOptions, PolicyLayer, check_choice, check_mask, register

MODES = ("mean", "max", "first", "last")


@register
class SequencePooling(keras.layers.Layer):
    """Pools the tokens of each row that are not masked: padding on either side, and holes, change nothing.

    Args:
        mode: `"mean"` (summed in float32), `"max"`, `"first"` or `"last"` token.

    Call arguments:
        inputs: (B, T, D). Its implicit mask, or `mask` (B, T), True = real token, says which tokens count.

    Returns:
        (B, D), without a mask; zeros for a row that is all padding.

    Example: `SequencePooling("mean")(x)`
    """

    def __init__(self, mode="mean", **kwargs):
        check_choice(MODES, mode=mode)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.mode = mode

    def call(self, inputs, mask=None):
        return pool(inputs, mask, self.mode)

    def compute_mask(self, inputs, mask=None):
        return None

    def compute_output_shape(self, inputs_shape):
        _check(inputs_shape)
        return (inputs_shape[0], inputs_shape[-1])

    def get_config(self):
        return {**super().get_config(), "mode": self.mode}


@register
class Pooler(PolicyLayer):
    """A dense layer on the first token that is not masked, which BERT puts under its classifiers.

    Source: Devlin et al. 2018 (https://arxiv.org/abs/1810.04805).

    Args:
        hidden_dim: size of the result.
        activation: of the dense layer.
        use_bias: whether the dense layer has a bias.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, kernel_constraint,
            bias_constraint: of the dense layer.

    Call arguments:
        inputs: (B, T, D).

    Returns:
        (B, hidden_dim), without a mask.

    Example: `Pooler(768)(sequence_output)`
    """

    def __init__(self, hidden_dim, activation="tanh", use_bias=True, **kwargs):
        check_size(hidden_dim=hidden_dim)
        self.dense_options = DenseOptions(kwargs)
        super().__init__(**kwargs)
        self.hidden_dim = int(hidden_dim)
        self.activation = get_activation(activation)
        self.use_bias = use_bias
        self.dense = keras.layers.Dense(
            self.hidden_dim,
            activation=self.activation,
            use_bias=use_bias,
            name="dense",
            **self.sublayer_options("dense"),
            **self.dense_options.arguments("dense"),
        )

    @property
    def sublayers(self):
        return [self.dense]

    def build(self, inputs_shape):
        _check(inputs_shape)
        self.dense.build((inputs_shape[0], inputs_shape[-1]))
        self.built = True

    def call(self, inputs, mask=None):
        return self.dense(pool(inputs, mask, "first"))

    def compute_mask(self, inputs, mask=None):
        return None

    def compute_output_shape(self, inputs_shape):
        return (inputs_shape[0], self.hidden_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            **self.dense_options.get_config(),
        }


def pool(x, mask, mode):
    """(B, T, D) to (B, D), over the places where the mask (B, T) is True, or over all."""
    _check(x.shape)
    check_mask(x, mask=mask)
    if mask is None and mode in ("first", "last"):
        return x[:, 0] if mode == "first" else x[:, -1]
    real = ops.ones_like(x[..., 0], dtype="bool") if mask is None else ops.cast(mask, "bool")  # (B, T)
    if mode in ("first", "last"):
        return ops.sum(ops.where(_only(real, mode)[..., None], x, 0.0), axis=1)  # of a single one
    if mode == "mean":
        total = ops.sum(ops.where(real[..., None], ops.cast(x, "float32"), 0.0), axis=1)
        count = ops.sum(ops.cast(real, "float32"), axis=1, keepdims=True)
        return ops.cast(total / ops.maximum(count, 1.0), x.dtype)
    highest = ops.max(ops.where(real[..., None], x, float("-inf")), axis=1)
    return ops.where(ops.any(real, axis=1, keepdims=True), highest, 0.0)


def _only(real, mode):
    """The mask with nothing but each row's first or last True."""
    before = ops.cumsum(ops.cast(real, "int32"), axis=1)  # how many up to here, this one included
    wanted = 1 if mode == "first" else before[:, -1:]
    return ops.logical_and(real, ops.equal(before, wanted))


def _check(shape):
    if len(shape) != 3 or shape[-1] is None or shape[1] == 0:
        raise ValueError(
            "Pooling expects vectors of shape (batch, length, features) with known features and at least one token. "
            f"Received: inputs.shape={tuple(shape)}"
        )
