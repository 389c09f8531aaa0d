"""Sizes that the tensors of a folder cannot have, refused before anything so large is made."""

from keras_transformer.arguments import check_count
from keras_transformer.convert import files

SIZES = ("vocabulary_size", "max_sequence_length", "intermediate_dim", "hidden_dim", "num_classes", "num_segments")
SIZES += ("num_experts", "decoder_intermediate_dim", "relative_buckets")
LAYERS = ("num_layers", "num_decoder_layers")


def check_sizes(arguments, tensors):
    """Refuse sizes that the tensors cannot have, before anything so large is made."""
    for name in (*SIZES, *LAYERS, "num_heads", "key_dim"):
        if arguments.get(name) is not None:
            check_count(0, **{name: arguments[name]})
    limit, layers = tensors.num_elements, sum(arguments.get(name) or 0 for name in LAYERS)
    hidden = arguments.get("hidden_dim") or 1
    heads = (arguments.get("num_heads") or 1) * (arguments.get("key_dim") or 1)
    products = {"num_layers": layers * hidden, "num_heads": heads * hidden * max(layers, 1)}
    products |= {name: hidden * (arguments.get(name) or 1) for name in SIZES}
    products["intermediate_dim"] *= max(layers, 1) * (arguments.get("num_experts") or 1)
    products |= _products_of_patches(arguments, hidden)
    if layers > len(tensors):
        raise ValueError(f"{files.CONFIG} asks for {layers:,} layers, more than the checkpoint has tensors.")
    for name, product in products.items():
        if product > limit:
            raise ValueError(
                f"{files.CONFIG} asks for {name}={arguments.get(name)!r} with hidden_dim={hidden!r}, more than the "
                f"{limit:,} numbers of the checkpoint can hold."
            )


def _products_of_patches(arguments, hidden):
    """Numbers in the tables that a model of images has."""
    image, patch, channels = (arguments.get(name, 1) for name in ("image_size", "patch_size", "num_channels"))
    sizes = [[x] * 2 if isinstance(x, int) else x for x in (image, patch)]
    if not all(isinstance(x, (list, tuple)) and len(x) == 2 and all(isinstance(n, int) for n in x) for x in sizes):
        return {}  # the builder refuses it
    check_count(1, num_channels=channels, patch_size=min(sizes[1]), image_size=min(sizes[0]))
    (height, width), (rows, columns) = sizes
    places = (height // rows) * (width // columns)
    return {"image_size": places * hidden, "patch_size": rows * columns * channels * hidden}
