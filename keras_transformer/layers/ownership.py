"""Layers that are given to another layer: whose they are, and how they are saved with it."""

import weakref

import keras

# Which layer a given one is in, {layer: (weak reference to the owner, argument)}. Kept here and not on the layer:
# neither a copy of it nor a file may inherit its owner.
_owners = weakref.WeakKeyDictionary()


def own(owner, **sublayers):
    """Refuse a layer that already belongs to another: shared weights save, but do not load."""
    for name, layer in sublayers.items():
        if layer is None:
            continue
        known, argument = _owners.get(layer, (lambda: None, None))
        if known() is not None and (known() is not owner or argument != name):
            raise ValueError(
                f"`{name}` of {owner.name} must be a layer of its own, but {layer.name} already is the "
                f"`{argument}` of {known().name}: make one for each, for instance by "
                "`type(layer).from_config(layer.get_config())`."
            )
        _owners[layer] = weakref.ref(owner), name


def serialized(layer):
    """A layer in serialised form; anything else as it is."""
    if not isinstance(layer, keras.layers.Layer):
        return layer
    config = keras.saving.serialize_keras_object(layer)
    # The owner builds it, under its own name: built by itself, its variables' paths would lack the owner's.
    config.pop("build_config", None)
    return config


def deserialized(config, names):
    """A configuration with the named layers in it made."""
    given = {name: config[name] for name in names if isinstance(config.get(name), dict)}
    return {**config, **{name: keras.saving.deserialize_keras_object(layer) for name, layer in given.items()}}
