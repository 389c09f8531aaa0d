"""A Vision Transformer for images of another size.

Source: Dosovitskiy et al. 2020, section 3.2 (https://arxiv.org/abs/2010.11929).
"""

import keras

from keras_transformer.layers import ClassToken, ModelCard, PatchEmbedding, PositionalEmbedding
from keras_transformer.layers.patches import grid_of, pair
from keras_transformer.ops.interpolate import interpolate_positions


def resize_vit(model, image_size):
    """The same model for images of another size: a new one, whose table of positions is resized bicubically.

    All other weights are copied as they are. It need not come from `vit`: any functional model over images of a fixed
    size with a `PatchEmbedding` and learned positions will do, with a head of your own behind, too.

    Args:
        model: from `images` (B, H, W, C); it stays as it is.
        image_size: height and width in pixels, a number or a pair: multiples of the patch size.

    Returns:
        A `keras.Model` from images (B, *image_size, C); compiled if the model is, with a new optimizer.

    Example: `larger = keras_transformer.models.resize_vit(model, (384, 256))`
    """
    image_size = pair(image_size=image_size)
    patches, positional = _only(model, PatchEmbedding), _only(model, PositionalEmbedding)
    shape = model.inputs[0].shape
    grid, new_grid = (grid_of(size, patches.patch_size) for size in (shape[1:3], image_size))
    if len(model.inputs) != 1 or len(shape) != 4 or None in grid or positional.position != "learned":
        raise ValueError(
            "`model` must take images of one fixed size and have learned positions. "
            f"Received: input shapes={[tuple(x.shape) for x in model.inputs]}, position={positional.position!r}"
        )
    num_tokens = sum(layer.num_tokens for layer in model.layers if isinstance(layer, ClassToken))

    def resized(layer):
        config = layer.get_config()
        if layer is positional:
            config["max_sequence_length"] = num_tokens + new_grid[0] * new_grid[1]
        if isinstance(layer, ModelCard) and "image_size" in layer.config:
            config["config"] = {**layer.config, "image_size": list(image_size)}
        return layer.__class__.from_config(config)

    def images(old):
        return keras.Input((*image_size, old.shape[-1]), dtype=old.dtype, name=old.name)

    inputs = keras.tree.map_structure(images, model.input)
    larger = keras.models.clone_model(model, inputs, clone_function=resized)
    for weight, new_weight in zip(model.weights, larger.weights, strict=True):
        if weight is positional.position_embeddings:
            prefix = num_tokens + positional.position_offset
            new_weight.assign(interpolate_positions(weight.value, grid, new_grid, prefix))
        else:
            new_weight.assign(weight)
    return larger


def _only(model, kind):
    """The one layer of this class in a model."""
    found = [layer for layer in getattr(model, "layers", ()) if isinstance(layer, kind)]
    if len(found) != 1:
        raise ValueError(f"`model` must have one {kind.__name__} among its layers. It has {len(found)}.")
    return found[0]
