"""The Vision Transformer.

Sources: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words" (https://arxiv.org/abs/2010.11929); with a token for
distillation: Touvron et al. 2020, "DeiT" (https://arxiv.org/abs/2012.12877).
"""

import keras

from keras_transformer import layers
from keras_transformer.arguments import check_size
from keras_transformer.layers.common import check_choice, check_optional_size, derived_seed
from keras_transformer.layers.patches import grid_of, pair
from keras_transformer.models.common import final_norm, for_block
from keras_transformer.models.sizes import sizes_of

# How a sequence of patches becomes one vector: by a token that all of them write to, or by their mean.
POOLINGS = {"class_token": "first", "mean": "mean"}


def vit(
    size="b16",
    num_classes=1000,
    image_size=224,
    num_channels=3,
    patch_size=None,
    num_layers=None,
    hidden_dim=None,
    num_heads=None,
    intermediate_dim=None,
    dropout=0.0,
    pooling="class_token",
    distillation_token=False,
    distillation_head=False,
    activation="gelu",
    norm_epsilon=1e-12,
    seed=None,
    dtype=None,
    name="vit",
    **block_options,
):
    """A Vision Transformer as a functional model: patches, a class token, positions, encoder blocks, a head.

    ViT-B/16 with its head of 1000 classes has 86,567,656 parameters. For images of another size see `resize_vit`.

    Args:
        size: `"ti16"`, `"s16"`, `"s32"`, `"b16"`, `"b32"`, `"l16"`, `"l32"` or `"h14"`. A size that is given
            replaces the published one. None: all of them are given.
        num_classes: size of the head; None leaves it off and gives the states of all tokens.
        image_size: height and width of the images in pixels, a number or a pair: multiples of the patch size.
        num_channels: of the images.
        patch_size, num_layers, hidden_dim, num_heads, intermediate_dim: sizes.
        dropout: after the positions, on the residuals and on the attention probabilities.
        pooling: `"class_token"`, or `"mean"` of the patches, without such a token.
        distillation_token: whether there is a second token behind the class token, as in DeiT.
        distillation_head: whether that one has a head of its own; the logits are the mean of both.
        activation: of the feed-forward networks; "gelu" is the exact one, by the error function.
        norm_epsilon: epsilon of all norms.
        seed: seed of all dropouts.
        dtype: dtype or policy of all layers; logits are float32.
        **block_options: further arguments of `EncoderBlock` (`norm_placement="pre"`, `use_bias`, ...).

    Returns:
        A `keras.Model` from `images` (B, H, W, C), channels last, to logits (B, num_classes), or to states (B, T, D)
        with T = H * W / patch area, and 1 more for each token in front.

    Example: `logits = keras_transformer.models.vit("ti16", num_classes=10, image_size=64)(images)`
    """
    sizes = {"patch_size": patch_size, "num_layers": num_layers, "hidden_dim": hidden_dim}
    sizes = sizes_of("vit", size, **sizes, num_heads=num_heads, intermediate_dim=intermediate_dim)
    check_choice(tuple(POOLINGS), pooling=pooling)
    check_optional_size(num_classes=num_classes)
    if (distillation_token and pooling != "class_token") or (distillation_head and not distillation_token):
        raise ValueError(
            "A distillation token stands behind a class token, and its head needs it. Received: "
            f"pooling={pooling!r}, distillation_token={distillation_token}, distillation_head={distillation_head}"
        )
    check_size(**{key: value for key, value in sizes.items() if key != "patch_size"}, num_channels=num_channels)
    patch_size, image_size = pair(patch_size=sizes["patch_size"]), pair(image_size=image_size)
    rows, columns = grid_of(image_size, patch_size)
    config = {**sizes, "patch_size": list(patch_size), "image_size": list(image_size), "num_channels": num_channels}
    config |= {"family": "vit", "num_classes": num_classes, "pooling": pooling, "norm_epsilon": norm_epsilon}
    config |= {"distillation_token": distillation_token, "distillation_head": distillation_head}

    images = keras.Input((*image_size, num_channels), name="images")
    x = layers.ModelCard(config, name="model_card")(images)
    x = layers.PatchEmbedding(patch_size, sizes["hidden_dim"], dtype=dtype, name="patch_embedding")(x)
    in_front = ["distillation_token"] * distillation_token + ["class_token"] * (pooling == "class_token")
    for token in in_front:  # so that the class token is the first
        x = layers.ClassToken(dtype=dtype, name=token)(x)
    options = {"dropout": dropout, "dtype": dtype}
    x = layers.PositionalEmbedding(
        None,
        sizes["hidden_dim"],
        rows * columns + len(in_front),
        position="learned",
        position_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        seed=derived_seed(seed, "embedding"),
        name="embedding",
        **options,
    )(x)
    options |= {"num_heads": sizes["num_heads"], "intermediate_dim": sizes["intermediate_dim"]}
    options |= {"norm_placement": "pre", "activation": activation, "norm_epsilon": norm_epsilon, **block_options}
    for i in range(sizes["num_layers"]):
        x = layers.EncoderBlock(**for_block(options, f"encoder_block_{i}", seed))(x)
    x = final_norm(x, options, "encoder_norm")
    if num_classes is not None:
        states = x
        x = layers.SequencePooling(POOLINGS[pooling], dtype=dtype, name="pooling")(states)
        x = keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)
    if num_classes is not None and distillation_head:
        second = keras.layers.Cropping1D((1, 0), dtype=dtype, name="without_class_token")(states)
        second = layers.SequencePooling("first", dtype=dtype, name="distillation_pooling")(second)
        second = keras.layers.Dense(num_classes, dtype="float32", name="distillation_logits")(second)
        x = keras.layers.Average(dtype="float32", name="mean_logits")([x, second])
    return keras.Model(images, x, name=name)
