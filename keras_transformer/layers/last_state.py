"""The last state of a recurrent encoder.

Letters: B batch, T length, D features.
"""

from keras import ops

from keras_transformer.layers.common import PolicyLayer, check_mask, register
from keras_transformer.ops.cache import LooksBothWays, current_scope
from keras_transformer.ops.masks import NOT_A_TOKEN, combine


@register
class LastState(PolicyLayer):
    """The state in which a recurrent encoder ended, from its outputs (B, T, D): (B, D).

    That is the output at the last real token; of a bidirectional layer, whose outputs are one direction behind the
    other, the second half comes from the first real token, where the backward direction ends. A row of nothing but
    padding gives zeros.

    Args:
        bidirectional: whether the outputs are those of two directions.

    Call arguments:
        x: (B, T, D). Its implicit mask and `padding_mask` hide padding; in a `DecodingScope` its `encoder_positions`
            do so as well.
        padding_mask: boolean (B, T), True = real token.

    Example: `start = keras.layers.Dense(64, "tanh")(LastState(bidirectional=True)(states))  # (B, 64)`
    """

    def __init__(self, bidirectional=False, **kwargs):
        super().__init__(**kwargs)
        self.bidirectional = bool(bidirectional)

    def build(self, x_shape):
        if self.bidirectional and x_shape[-1] % 2:
            raise ValueError(f"The outputs of two directions have an even size. Received: {x_shape[-1]} features")
        self.built = True

    def call(self, x, padding_mask=None, mask=None, x_mask=None):
        check_mask(x, padding_mask=padding_mask)
        mask = combine(mask, x_mask, padding_mask)
        for positions in self._positions_of(x, current_scope()):
            mask = combine(mask, positions > NOT_A_TOKEN)
        if mask is None:
            mask = ops.ones_like(x[..., 0], dtype="bool")
        real = ops.cast(mask, "int32")
        first = ops.cast(ops.argmax(real, axis=1), "int32")
        last = ops.shape(x)[1] - 1 - ops.cast(ops.argmax(ops.flip(real, axis=1), axis=1), "int32")
        halves = ops.split(x, 2, axis=-1) if self.bidirectional else [x]
        ends = [_at(half, index, mask) for half, index in zip(halves, (last, first), strict=False)]
        return ops.concatenate(ends, axis=-1) if self.bidirectional else ends[0]

    def _positions_of(self, x, scope):
        if scope is None:
            return []
        known = [scope.encoder_positions] if scope.caches else [scope.positions, scope.encoder_positions]
        known = [positions for positions in known if positions is not None]
        if scope.begins and not known and x.shape[1] in (None, scope.positions.shape[1]):
            raise LooksBothWays(
                f"The layer {self.path} takes the last state of the text itself, which changes with every new token: "
                "the model cannot write texts. If it is an encoder's, say so by `DecodingScope(..., "
                "encoder_positions=...)`."
            )
        return [positions for positions in known if x.shape[1] in (None, positions.shape[1])]

    def compute_mask(self, x, mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return (x_shape[0], x_shape[-1])

    def get_config(self):
        return {**super().get_config(), "bidirectional": self.bidirectional}


def _at(x, index, mask):
    """x (B, T, D) at each row's own index (B,), zeros where the row has no token."""
    found = ops.take_along_axis(x, ops.expand_dims(index, (1, 2)), axis=1)[:, 0]
    return ops.where(ops.any(mask, axis=1, keepdims=True), found, ops.zeros((), found.dtype))
