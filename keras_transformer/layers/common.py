"""What the layers share: checked arguments, cloned initializers, dtype policies of sublayers."""

import zlib
from numbers import Integral, Real

import keras
from keras import ops

from keras_transformer.arguments import check_size

PACKAGE = "keras_transformer"


def register(cls):
    """Register a class for saving, under this package's name."""
    return keras.saving.register_keras_serializable(package=PACKAGE)(cls)


def check_optional_size(**arguments):
    """Refuse anything but positive integers and None."""
    check_size(**{name: value for name, value in arguments.items() if value is not None})


def plain_int(value):
    """NumPy's integers as Python's, which JSON knows; anything else as it is."""
    return int(value) if isinstance(value, Integral) else value


def check_rate(**arguments):
    """Refuse anything but a probability below 1."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value < 1:
            raise ValueError(f"`{name}` must be in the range [0, 1). Received: {name}={value!r}")


def check_choice(choices, **arguments):
    """Refuse a value that is not among the choices."""
    for name, value in arguments.items():
        if value not in choices:
            known = ", ".join(repr(choice) for choice in choices)
            raise ValueError(f"`{name}` must be one of {known}. Received: {name}={value!r}")


def check_token_ids(vocabulary_size, **arguments):
    """Refuse ids, or lists of them, outside the vocabulary; None passes."""
    for name, ids in arguments.items():
        for token_id in ids if isinstance(ids, (list, tuple)) else [ids]:
            if token_id is not None and token_id not in range(vocabulary_size):
                raise ValueError(
                    f"`{name}` must be a token id below the vocabulary size {vocabulary_size}, or None. "
                    f"Received: {name}={token_id!r}"
                )


def check_mask(x, **arguments):
    """Refuse a mask over positions whose shape is not that of x (B, ..., D) without the features."""
    expected = tuple(x.shape[:-1])
    for name, mask in arguments.items():
        given = expected if mask is None else tuple(mask.shape)
        one_for_all = (1, *expected[1:]) if given[:1] == (1,) else expected
        fits = len(given) == len(expected) and all(
            a in (b, None) or b is None for a, b in zip(given, one_for_all, strict=True)
        )
        if not fits:
            raise ValueError(f"`{name}` must have the shape of the positions, {expected}. Received: {given}")


def head_dim(hidden_dim, num_heads):
    """The size of a head where none is given."""
    if hidden_dim % num_heads:
        raise ValueError(
            "`hidden_dim` must be a multiple of `num_heads` when `key_dim` is not given. "
            f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}"
        )
    return hidden_dim // num_heads


def feature_shape(output_shape):
    """The `output_shape` argument as a tuple, or None."""
    if output_shape is None:
        return None
    if isinstance(output_shape, Integral):
        output_shape = (output_shape,)
    if not isinstance(output_shape, (list, tuple)) or not output_shape:
        raise ValueError(
            f"`output_shape` must be a positive integer or a tuple of them. Received: output_shape={output_shape!r}"
        )
    for size in output_shape:
        check_size(output_shape=size)
    return tuple(map(int, output_shape))


def on_tokens(dense, x, feature_axes=1):
    """A dense layer over the last axes of x, called with all tokens in one axis: (B, ..., D) as (B * ..., D).

    With a single axis of tokens the gradient of the kernel is a plain matrix product. With two, XLA copies both
    factors into other layouts first, which makes a whole training step on a CPU half as slow again.
    """
    leading = ops.shape(x)[:-feature_axes]
    y = dense(ops.reshape(x, (-1, *x.shape[-feature_axes:])))
    return ops.reshape(y, (*leading, *y.shape[1:]))


def clone_initializer(initializer, name):
    """A copy for the named weight: one initializer instance given to two would draw the same values twice."""
    initializer = keras.initializers.get(initializer)
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    if isinstance(getattr(initializer, "seed", None), keras.random.SeedGenerator):
        return initializer  # it draws anew each time, which copies of the generator would not
    config = initializer.get_config()
    if isinstance(config.get("seed"), int):
        config = {**config, "seed": derived_seed(config["seed"], name)}
    return initializer.__class__.from_config(config)


def derived_seed(seed, name):
    """A seed for one of several sublayers: with one and the same, their dropouts would drop the same places."""
    return None if seed is None else (int(seed) + zlib.crc32(name.encode())) % 2**31


class DenseOptions:
    """Initializers, regularizers and constraints of a layer's kernels and biases, under Keras' names."""

    def __init__(self, options):
        self.kernel_initializer = keras.initializers.get(options.pop("kernel_initializer", "glorot_uniform"))
        self.bias_initializer = keras.initializers.get(options.pop("bias_initializer", "zeros"))
        self.kernel_regularizer = keras.regularizers.get(options.pop("kernel_regularizer", None))
        self.bias_regularizer = keras.regularizers.get(options.pop("bias_regularizer", None))
        self.kernel_constraint = keras.constraints.get(options.pop("kernel_constraint", None))
        self.bias_constraint = keras.constraints.get(options.pop("bias_constraint", None))

    def arguments(self, name):
        """Keyword arguments for the named sublayer."""
        return {
            "kernel_initializer": clone_initializer(self.kernel_initializer, f"{name}/kernel"),
            "bias_initializer": clone_initializer(self.bias_initializer, f"{name}/bias"),
            "kernel_regularizer": self.kernel_regularizer,
            "bias_regularizer": self.bias_regularizer,
            "kernel_constraint": self.kernel_constraint,
            "bias_constraint": self.bias_constraint,
        }

    def get_config(self):
        """The same in serialised form."""
        return {
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }


class PolicyLayer(keras.layers.Layer):
    """A layer whose sublayers may have dtype policies of their own, as they do after `quantize`.

    The config then holds a `DTypePolicyMap` from the sublayer's name to its policy, and the configurations that
    `quantize` was given, so that a quantised model is rebuilt as it was saved. Subclasses list their sublayers in
    `sublayers`.
    """

    def __init__(self, dtype=None, **kwargs):
        policy = keras.dtype_policies.get(dtype)
        self._sublayer_policies = {}
        if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            self._sublayer_policies = {name: policy[name] for name in policy}
            policy = policy.default_policy
        self._quantization_configs = _Configs(kwargs.pop("quantization_configs", {}))  # written by `get_config` alone
        super().__init__(dtype=policy, **kwargs)
        self.supports_masking = True

    @property
    def sublayers(self):
        """The sublayers that exist by now."""
        return []

    def sublayer_options(self, name):
        """The dtype policy, and where there is one the quantisation, to make the named sublayer with."""
        options = {"dtype": self._sublayer_policies.get(name, self.dtype_policy)}
        if name in self._quantization_configs.by_name:
            config = keras.saving.deserialize_keras_object(self._quantization_configs.by_name[name])
            options["quantization_config"] = config
        return options

    def get_config(self):
        config = super().get_config()
        quantized = {x.name: x.dtype_policy for x in self.sublayers if x.dtype_policy.quantization_mode is not None}
        if quantized:
            policies = keras.dtype_policies.DTypePolicyMap(self.dtype_policy.name, quantized)
            config["dtype"] = keras.dtype_policies.serialize(policies)
        configs = {x.name: getattr(x, "quantization_config", None) for x in self.sublayers}
        configs = {name: keras.saving.serialize_keras_object(x) for name, x in configs.items() if x is not None}
        return {**config, "quantization_configs": configs} if configs else config


class _Configs:
    """A dict that Keras does not take for a part of the model."""

    def __init__(self, by_name):
        self.by_name = by_name
