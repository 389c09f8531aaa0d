"""Reading single entries of each row, and repeating rows, in few operations."""

from keras import ops


def at(x, index):
    """x (B, S, ...) at each row's own index (B,) or indices (B, K), which are in [0, S): (B, ...) or (B, K, ...).

    What `ops.take_along_axis` gives too, for which TensorFlow traces three times as many operations.
    """
    num_rows, length, *rest = ops.shape(x)
    begins = ops.arange(num_rows, dtype="int32") * length
    begins = ops.reshape(begins, (num_rows, *[1] * (len(index.shape) - 1)))
    return ops.take(ops.reshape(x, (num_rows * length, *rest)), ops.cast(index, "int32") + begins, axis=0)


def repeat_rows(x, repeats):
    """Every row of x (B, ...) so many times in turn: (B * repeats, ...), what `ops.repeat` gives too."""
    if repeats == 1:
        return x
    num_rows, *rest = ops.shape(x)
    x = ops.broadcast_to(ops.expand_dims(x, 1), (num_rows, repeats, *rest))
    return ops.reshape(x, (num_rows * repeats, *rest))
