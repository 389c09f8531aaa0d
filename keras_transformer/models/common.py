"""What the builders share: the options of a stack of equal blocks."""

import keras

from keras_transformer.layers.common import clone_initializer, derived_seed
from keras_transformer.layers.normalization import make_norm
from keras_transformer.layers.ownership import serialized


def for_block(options, name, seed):
    """The options for the named one of several blocks: with initializers and a seed of its own, else all were equal."""
    initializers = {key: clone_initializer(options[key], name) for key in options if key.endswith("_initializer")}
    return {**options, **initializers, "seed": derived_seed(seed, name), "name": name}


def final_norm(options, name):
    """The norm behind a stack of blocks with these options."""
    norm, epsilon = serialized(options.get("norm", "layer")), options.get("norm_epsilon", 1e-5)
    return make_norm(norm, epsilon, name, options["dtype"])


def dense_options(options):
    """Those of the options of a block that are for its projections, and the others."""
    dense = {key: options[key] for key in options if key == "use_bias" or key.startswith(("kernel_", "bias_"))}
    return dense, {key: options[key] for key in options if key not in dense}


def sublayers(block_name, seed, shared, **parts):
    """Sublayers for the named block, each with initializers and a seed of its own.

    Args:
        block_name, seed: as for `for_block`.
        shared: options of all of them.
        **parts: argument of the block -> class of the layer, and options.
    """
    made = {}
    for argument, (layer, options) in parts.items():
        name = "self_attention" if argument == "attention" else argument
        options = for_block({**shared, **options}, f"{block_name}/{name}", seed)
        made[argument] = layer(**{**options, "name": name})
    return made


def dropped(x, rate, name, seed, dtype):
    """The vectors behind a named dropout."""
    return keras.layers.Dropout(rate, seed=derived_seed(seed, name), dtype=dtype, name=name)(x)
