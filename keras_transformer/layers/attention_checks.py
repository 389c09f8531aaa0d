"""What `MultiHeadAttention` refuses, when it is made and when it is built."""

from keras_transformer.arguments import check_size
from keras_transformer.layers.common import check_choice, check_optional_size, check_rate

PROJECTIONS = ("query", "key", "gate", "value", "attention_output")


def check_arguments(num_heads, num_key_value_heads, dropout, flash_attention, key_dim, **optional_sizes):
    """Refuse what is no size or rate, heads that cannot share keys and values evenly, and a kernel with dropout."""
    check_size(num_heads=num_heads, key_dim=key_dim)
    check_optional_size(num_key_value_heads=num_key_value_heads, **optional_sizes)
    check_rate(dropout=dropout)
    if num_heads % (num_key_value_heads or num_heads):
        raise ValueError(
            "`num_heads` must be a multiple of `num_key_value_heads`. "
            f"Received: num_heads={num_heads}, num_key_value_heads={num_key_value_heads}"
        )
    if flash_attention and dropout > 0:
        raise ValueError(
            "`flash_attention=True` does not go with dropout; leave it None to use the kernel at inference. "
            f"Received: dropout={dropout}"
        )


def biased_projections(use_bias):
    """The `use_bias` argument as a bool, or a tuple of names of projections; refuses anything else."""
    if isinstance(use_bias, (list, tuple, set, frozenset)):
        for name in use_bias:
            check_choice(PROJECTIONS, use_bias=name)
        return tuple(name for name in PROJECTIONS if name in use_bias)
    check_choice((False, True), use_bias=use_bias)
    return bool(use_bias)


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
