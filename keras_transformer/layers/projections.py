"""The projections of attention: features into heads, and heads into features.

Letters: T tokens, all in one axis, D features, N heads, H head dim.
"""

import keras


def _has_bias(owner, name):
    return owner.use_bias if isinstance(owner.use_bias, bool) else name in owner.use_bias


def into_heads(owner, name, features, heads, dim, activation=None):
    """A projection (T, D) -> (T, N, H) of the layer `owner`, built."""
    layer = keras.layers.EinsumDense(
        "td,dnh->tnh",
        output_shape=(heads, dim),
        bias_axes="nh" if _has_bias(owner, name) else None,
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
        bias_axes=features if _has_bias(owner, name) else None,
        name=name,
        **owner.sublayer_options(name),
        **owner.dense_options.arguments(name),
    )
    layer.build((None, heads, dim))
    return layer
