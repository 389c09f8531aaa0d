"""What the builders share: the options of a stack of equal blocks."""

from types import MappingProxyType

import keras

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.common import clone_initializer, derived_seed, head_dim
from keras_transformer.layers.normalization import make_norm
from keras_transformer.layers.ownership import serialized

SUBLAYERS = MappingProxyType({"attention": "num_heads", "feed_forward": "intermediate_dim", "cross_attention": None})


def for_block(options, name, seed):
    """The options for the named one of several blocks: with initializers and a seed of its own, else all were equal.

    A sublayer among them is a pattern for all blocks, and takes the place of the number that stands for one.
    """
    initializers = {key: clone_initializer(options[key], name) for key in options if key.endswith("_initializer")}
    options = {**options, **initializers}
    for sublayer in patterns(options):
        options[sublayer] = clone_layer(options[sublayer], f"{name}/{sublayer}")
        options.pop(SUBLAYERS[sublayer], None)
    return {**options, "seed": derived_seed(seed, name), "name": name}


def patterns(options):
    """The names of the sublayers among the options."""
    return [name for name in SUBLAYERS if options.get(name) is not None]


def clone_layer(layer, name):
    """A layer of the same kind without weights, whose random numbers are those for the name."""
    config = layer.get_config()
    for key in config:
        if key.endswith("_initializer") and config[key] is not None:
            config[key] = keras.initializers.serialize(clone_initializer(config[key], name))
    if config.get("seed") is not None:
        config["seed"] = derived_seed(config["seed"], name)
    return type(layer).from_config(config)


def of_encoder(options):
    """The options of an encoder-decoder's blocks without that for the decoder alone."""
    return {key: value for key, value in options.items() if key != "cross_attention"}


def of_decoder(options, hidden_dim, seed):
    """Those of the decoder: where its attention is a pattern, its cross-attention is one that the numbers make."""
    if options.get("attention") is None or options.get("cross_attention") is not None:
        return options
    dense, options = dense_options(options)
    num_heads = options["num_heads"]
    key_dim = options.pop("key_dim", None) or head_dim(hidden_dim, num_heads)
    shared = {"dropout": options["dropout"], "dtype": options["dtype"], "seed": seed, **dense}
    return {**options, **dense, "cross_attention": MultiHeadAttention(num_heads, key_dim, **shared)}


# With these the sum of all sublayers is normalised nowhere; post placement normalises every sum.
NEEDS_FINAL_NORM = ("pre", "sandwich", "output")


def final_norm(x, options, name):
    """What comes out of a stack of blocks with these options, normed if no block has normed it."""
    placement = options["norm_placement"]
    return norm_layer(options, name)(x) if placement in NEEDS_FINAL_NORM else x


def norm_layer(options, name):
    """A norm as the blocks with these options have them."""
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
