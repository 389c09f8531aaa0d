"""A layer's configuration against the arguments that it was made with."""

import inspect
import json

import keras

KINDS = {"initializer": keras.initializers, "regularizer": keras.regularizers, "constraint": keras.constraints}


def plain(name, value):
    """An argument as a configuration writes it."""
    kind = KINDS.get(name.rsplit("_", 1)[-1])
    if kind is not None:
        return kind.serialize(kind.get(value))
    if isinstance(value, keras.layers.Layer):
        return keras.saving.serialize_keras_object(value)
    if name == "activation":
        return keras.activations.serialize(keras.activations.get(value))
    if name == "dtype":
        return keras.dtype_policies.serialize(keras.dtype_policies.get(value))
    return value


def assert_config_holds(layer_class, options, ignored=()):
    """Every argument that was given is in the configuration with its value, and nothing is lost on the way back.

    `options` must give every argument of the constructors that is not `ignored` a value that is not the default.
    """
    defaults = {
        name: parameter.default
        for base in layer_class.__mro__
        for name, parameter in inspect.signature(base.__init__).parameters.items()
        if base.__module__.startswith("keras_transformer") and parameter.default is not parameter.empty
    }
    assert {name for name in defaults if options.get(name, defaults[name]) == defaults[name]} == set(ignored) & set(
        defaults
    )
    layer = layer_class(**options)
    expected = {name: plain(name, value) for name, value in options.items()}
    config = layer.get_config()
    assert {name: config[name] for name in expected} == expected
    through_json = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    for again in (layer_class.from_config(config), keras.saving.deserialize_keras_object(through_json)):
        assert again.get_config() == config
