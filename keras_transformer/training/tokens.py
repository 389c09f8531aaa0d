"""Which tokens of a batch count, and how much: one answer for the loss and the metrics.

Shapes: B batch, T length, V vocabulary, N = B * T tokens. `token_weights` holds the rules.
"""

import keras
from keras import ops


def flatten_tokens(y_true, y_pred, sample_weight=None):
    """Checks what `fit` passes to a loss or metric and lines it up token by token.

    Returns:
        `(labels, logits, weights)`: int32 `(N,)`, float `(N, V)`, float32 `(N,)`. Ids of weight 0 are set to 0, so
        that whatever stood there ("ignore" markers) cannot reach the result.
    """
    mask = implicit_mask(y_pred)
    labels, logits = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
    _check_dtypes(labels, logits)
    if len(labels.shape) == len(logits.shape) and labels.shape[-1] == 1:
        labels = ops.squeeze(labels, axis=-1)
    if len(logits.shape) < 2 or not _shapes_fit(labels.shape, logits.shape[:-1]):
        raise ValueError(
            "`y_true` must be token ids of the logits' shape without its last axis, (B, T) for logits (B, T, V). "
            f"Received: y_true.shape={tuple(labels.shape)}, y_pred.shape={tuple(logits.shape)}"
        )
    weights = ops.reshape(token_weights(labels, mask, sample_weight), (-1,))
    labels = ops.reshape(ops.cast(labels, "int32"), (-1,))
    return ops.where(weights == 0, 0, labels), ops.reshape(logits, (-1, logits.shape[-1])), weights


def token_weights(labels, mask=None, sample_weight=None):
    """Weight of each position by the rules of `MaskedCrossentropy`.

    Args:
        labels: ids `(B, T)` or `(B,)`; only their shape matters.
        mask: boolean of the labels' shape, or None.
        sample_weight: of the labels' shape, one number per row, a scalar, or None.

    Returns:
        Float32 of the labels' shape.
    """
    everywhere = ops.ones(ops.shape(labels), dtype="float32")
    if mask is not None and not _shapes_fit(mask.shape, labels.shape):
        raise ValueError(
            "The implicit mask of `y_pred` must have the shape of `y_true`. "
            f"Received: mask.shape={tuple(mask.shape)}, y_true.shape={tuple(labels.shape)}"
        )
    by_mask = everywhere if mask is None else ops.cast(mask, "float32")
    if sample_weight is None:
        return by_mask

    sample_weight = ops.convert_to_tensor(sample_weight, dtype="float32")
    shape, weight_shape = tuple(labels.shape), tuple(sample_weight.shape)
    if weight_shape == ():
        return by_mask * sample_weight
    one_per_row = shape[:1] + (1,) * (len(weight_shape) - 1)
    is_per_row = weight_shape[1:] == one_per_row[1:] and _shapes_fit(weight_shape[:1], shape[:1])
    if is_per_row and len(weight_shape) <= len(shape) and shape != one_per_row:
        return by_mask * ops.reshape(sample_weight, (-1,) + (1,) * (len(shape) - 1))
    if _shapes_fit(weight_shape, shape) or _shapes_fit(weight_shape, shape + (1,)):
        return ops.reshape(sample_weight, ops.shape(labels))
    raise ValueError(
        "`sample_weight` must have the shape of `y_true` or one number per row. "
        f"Received: sample_weight.shape={weight_shape}, y_true.shape={shape}"
    )


def in_vocabulary(labels, vocabulary_size):
    """True where an id names one of the `vocabulary_size` tokens."""
    return ops.logical_and(labels >= 0, labels < vocabulary_size)


def implicit_mask(tensor):
    """The mask that Keras has attached to `tensor`, or None."""
    return _mask_reader(tensor) if ops.is_tensor(tensor) else None


def keep_mask_outside_gradient(y_pred):
    """Lets metrics see the mask of the logits in `fit` on JAX, as they do everywhere else.

    There `y_pred` is traced for differentiation. The value that comes out of the gradient, and goes to the metrics,
    is another object, its `primal`, and Keras loses the mask on the way.
    """
    primal = getattr(y_pred, "primal", None)
    if primal is not None:
        mask = implicit_mask(y_pred)
        if mask is not None:
            _mask_writer(primal, mask=getattr(mask, "primal", mask))


class _MaskReader(keras.layers.Layer):
    """Keras gives its implicit mask to layers only, in `call`."""

    def call(self, inputs, mask=None):
        return mask

    def compute_mask(self, inputs, previous_mask):
        return None


class _MaskWriter(keras.layers.Layer):
    """Attaches the mask it is called with to its input, which it returns."""

    def call(self, inputs, mask=None):
        return inputs

    def compute_mask(self, inputs, previous_mask):
        return previous_mask


_mask_reader = _MaskReader(name="mask_reader", autocast=False)
_mask_writer = _MaskWriter(name="mask_writer", autocast=False)


def _check_dtypes(labels, logits):
    labels_dtype, logits_dtype = (keras.backend.standardize_dtype(x.dtype) for x in (labels, logits))
    if "int" not in labels_dtype:
        raise ValueError(f"`y_true` must hold integer token ids. Received: dtype={labels_dtype}")
    if "float" not in logits_dtype:
        raise ValueError(f"`y_pred` must hold float logits. Received: dtype={logits_dtype}")


def _shapes_fit(shape, expected):
    """Equal, as far as the sizes are known while tracing."""
    pairs = zip(shape, expected)
    return len(shape) == len(expected) and all(a == b or a is None or b is None for a, b in pairs)
