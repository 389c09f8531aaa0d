"""Which ids are padding, said without a table."""

import keras
from keras import ops

from keras_transformer.arguments import check_id
from keras_transformer.layers.common import plain_int, register


@register
class PaddingMask(keras.layers.Layer):
    """Hands token ids on as they are and masks those that are padding.

    `PositionalEmbedding(pad_token_id=)` does it where one rule holds for all ids. T5 begins its targets with the id
    that pads its sources: there the table masks nothing, and this layer stands in front of it for the sources alone.

    Args:
        pad_token_id: the id that is padding.

    Call arguments:
        inputs: integer token ids (B, T).

    Returns:
        The same.

    Example: `x = embedding(PaddingMask(0)(token_ids))`
    """

    def __init__(self, pad_token_id=0, **kwargs):
        check_id(pad_token_id=pad_token_id)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.autocast = False  # ids must not be rounded
        self.pad_token_id = plain_int(pad_token_id)

    def call(self, inputs):
        return ops.copy(inputs)  # Keras hangs the mask on what comes out, and the caller's tensor is to stay as it is

    def compute_mask(self, inputs, previous_mask=None):
        tokens = ops.not_equal(inputs, self.pad_token_id)
        return tokens if previous_mask is None else ops.logical_and(tokens, ops.cast(previous_mask, "bool"))

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def get_config(self):
        return {**super().get_config(), "pad_token_id": self.pad_token_id}
