"""What a model knows about itself."""

import keras

from keras_transformer.layers.common import register


@register
class ModelCard(keras.layers.Layer):
    """An identity layer that carries a model's configuration through saving, loading and cloning.

    The builders put it first in their graph; `generate` reads the special ids from it, `convert` the sizes.

    Args:
        config: dict of plain values: family, sizes, `pad_token_id`, `start_token_id`, `stop_token_id`.

    Example: `read_card(keras.models.load_model("translator.keras"))["stop_token_id"]`
    """

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.autocast = False  # token ids must not be rounded
        self.config = dict(config)

    def call(self, inputs):
        return inputs

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def get_config(self):
        return {**super().get_config(), "config": self.config}


@register
class HeadCard(ModelCard):
    """An identity layer between a model and its head: it says where the head begins, and what it is.

    `kt.models.with_head` puts it there, finds it when it puts on another head, and passes the mask on.

    Args:
        config: dict of plain values: `head`, and what it was given.

    Example: `read_head(model)["head"]`
    """


def read_card(model):
    """The configuration on a model's card, `{}` without one."""
    return _read(model, lambda layer: isinstance(layer, ModelCard) and not isinstance(layer, HeadCard))


def read_head(model):
    """What `with_head` has put on a model: `{"head": ..., "num_classes": ..., ...}`, `{}` for other models."""
    return _read(model, lambda layer: isinstance(layer, HeadCard))


def _read(model, is_card):
    for layer in getattr(model, "layers", []):
        found = layer.config if is_card(layer) else _read(layer, is_card)
        if found:
            return found
    return {}
