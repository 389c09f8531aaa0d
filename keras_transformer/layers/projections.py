"""The projections of attention: features into heads, and heads into features.

Letters: T tokens, all in one axis, D features, N heads, H head dim.
"""

import keras


def check_shapes(query_shape, value_shape, key_shape):
    """The three shapes, with those left out filled in; refuses what cannot be attended to."""
    value_shape = query_shape if value_shape is None else value_shape
    key_shape = value_shape if key_shape is None else key_shape
    if tuple(value_shape[1:-1]) != tuple(key_shape[1:-1]):
        raise ValueError(
            "`value` and `key` must agree in all but the last dimension. "
            f"Received: value_shape={tuple(value_shape)}, key_shape={tuple(key_shape)}"
        )
    for name, shape in (("query", query_shape), ("value", value_shape), ("key", key_shape)):
        if len(shape) < 3 or shape[-1] is None:
            raise ValueError(
                f"`{name}` must have shape (batch, length, features) with known features. Received: {tuple(shape)}"
            )
    return query_shape, value_shape, key_shape


def into_heads(owner, name, features, heads, dim, activation=None):
    """A projection (T, D) -> (T, N, H) of the layer `owner`, built."""
    layer = keras.layers.EinsumDense(
        "td,dnh->tnh",
        output_shape=(heads, dim),
        bias_axes="nh" if owner.use_bias else None,
        activation=activation,
        name=name,
        **owner.sublayer_options(name),
        **owner.dense_options.arguments(name),
    )
    layer.build((None, features))
    return layer


def out_of_heads(owner, name, heads, dim, output_shape):
    """A projection (T, N, H) -> (T, *output_shape) of the layer `owner`, built."""
    features = "uvwxyz"[: len(output_shape)]
    layer = keras.layers.EinsumDense(
        f"tnh,nh{features}->t{features}",
        output_shape=output_shape,
        bias_axes=features if owner.use_bias else None,
        name=name,
        **owner.sublayer_options(name),
        **owner.dense_options.arguments(name),
    )
    layer.build((None, heads, dim))
    return layer
