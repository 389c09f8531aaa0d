"""Position-wise feed-forward network.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.3 (https://arxiv.org/abs/1706.03762); gated
variants: Shazeer 2020, "GLU Variants Improve Transformer" (https://arxiv.org/abs/2002.05202).
"""

import keras

from keras_transformer.arguments import check_size
from keras_transformer.layers.activations import get_activation
from keras_transformer.layers.common import (
    DenseOptions,
    PolicyLayer,
    check_rate,
    on_tokens,
    plain_int,
    register,
)


@register
class FeedForward(PolicyLayer):
    """`output = W2 activation(W1 x)`, or gated `W2 (activation(Wg x) * W1 x)`, at each position alone.

    Args:
        intermediate_dim: inner size, F.
        activation: any Keras activation, or "gelu_tanh"; with `gated=True` "silu" is SwiGLU, "gelu" is GEGLU, "sigmoid"
            is GLU.
        gated: multiply by an activated gate.
        dropout: rate on the inner activations.
        use_bias: whether the projections have biases.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, kernel_constraint,
            bias_constraint: of all projections.
        seed: seed of the dropout.

    Call arguments:
        inputs: (B, ..., D); a mask is passed on.

    Returns:
        The same shape.

    Raises:
        ValueError: a size or rate is none.

    Example: `FeedForward(2048, activation="silu", gated=True)(x)`
    """

    def __init__(
        self, intermediate_dim, activation="relu", gated=False, dropout=0.0, use_bias=True, seed=None, **kwargs
    ):
        check_size(intermediate_dim=intermediate_dim)
        check_rate(dropout=dropout)
        self.dense_options = DenseOptions(kwargs)
        super().__init__(**kwargs)
        self.intermediate_dim = int(intermediate_dim)
        self.activation = get_activation(activation)
        self.gated = gated
        self.dropout = dropout
        self.use_bias = use_bias
        self.seed = plain_int(seed)
        self.intermediate_dense = self._dense("intermediate", self.intermediate_dim)
        self.gate_dense = self._dense("gate", self.intermediate_dim) if gated else None
        self.output_dense = None  # its size is known when the input is
        self.dropout_layer = keras.layers.Dropout(dropout, seed=self.seed, dtype=self.dtype_policy, name="dropout")

    def _dense(self, name, units):
        return keras.layers.Dense(
            units,
            use_bias=self.use_bias,
            name=name,
            **self.sublayer_options(name),
            **self.dense_options.arguments(name),
        )

    @property
    def sublayers(self):
        dense = [self.intermediate_dense, self.gate_dense, self.output_dense]
        return [layer for layer in dense if layer is not None]

    def build(self, inputs_shape):
        if inputs_shape[-1] is None:
            raise ValueError(f"The last dimension of the inputs must be known. Received: shape={tuple(inputs_shape)}")
        self.intermediate_dense.build(inputs_shape)
        if self.gated:
            self.gate_dense.build(inputs_shape)
        self.output_dense = self._dense("output", inputs_shape[-1])
        self.output_dense.build((*inputs_shape[:-1], self.intermediate_dim))
        self.built = True

    def call(self, inputs, training=None):
        return on_tokens(lambda x: self._transform(x, training), inputs)

    def _transform(self, inputs, training):
        x = self.intermediate_dense(inputs)
        x = self.activation(self.gate_dense(inputs)) * x if self.gated else self.activation(x)
        if self.dropout:
            x = self.dropout_layer(x, training=training)
        return self.output_dense(x)

    def compute_output_shape(self, inputs_shape):
        return tuple(inputs_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": keras.activations.serialize(self.activation),
            "gated": self.gated,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "seed": self.seed,
            **self.dense_options.get_config(),
        }
