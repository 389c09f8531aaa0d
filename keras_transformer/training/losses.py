"""Cross-entropy over the real tokens of a batch.

Shapes: B batch, T length, V vocabulary, N = B * T tokens. Which tokens count is decided in
`keras_transformer.training.tokens`, for the metrics as well.
"""

import keras
from keras import ops

from keras_transformer.layers.common import check_rate, register
from keras_transformer.training.tokens import flatten_tokens, in_vocabulary, keep_mask_outside_gradient


@register
class MaskedCrossentropy(keras.losses.Loss):
    """Cross-entropy between token ids and logits, averaged over the batch's real tokens.

    `loss = sum(w * ce) / sum(w)`, so padding changes neither the loss nor its gradient. The weights `w` are:

    1. `sample_weight` of the labels' shape, if given. It replaces the mask: a position that a model must predict may
       well sit on an input that is padding (a start token with the pad's id).
    2. `sample_weight` with one number per row, `(B,)` or `(B, 1)`: it multiplies the mask, or all positions.
    3. The implicit Keras mask of the logits, if the model's layers have kept it.
    4. With neither, every position counts.

    The loss is in nats and is computed in float32 whatever the logits' dtype. No one-hot of the logits' size is made.
    A batch whose weights are all 0 has the loss 0. Keras averages the `loss` it prints over batches by their rows;
    `TokenCrossentropy` is the exact mean over all tokens of an epoch. On PyTorch the loss can be differentiated once.

    Args:
        label_smoothing: share of the target probability that is spread evenly over the vocabulary, in [0, 1).
        name: name of the loss.

    Call arguments:
        y_true: integer ids, `(B, T)` or `(B,)`. An id outside `[0, V)` makes the loss NaN, unless its weight is 0
            (-100 as "ignore" needs such a weight); its gradient is 0.
        y_pred: float logits, `(B, T, V)` or `(B, V)`.
        sample_weight: see above.

    Returns:
        A float32 scalar.

    Raises:
        ValueError: `label_smoothing` is outside [0, 1); ids are not integers, logits are not floats, or shapes do not
            fit together.

    Example:

    ```python
    import numpy as np
    from keras_transformer.training import MaskedCrossentropy

    logits = np.array([[[2.0, 0, -1], [0, 1, 0], [5, 5, -5]]])
    loss = MaskedCrossentropy()
    loss(np.array([[0, 1, 0]]), logits, sample_weight=np.array([[1, 1, 0]]))    # 0.3606
    # model.compile("adam", MaskedCrossentropy(label_smoothing=0.1), weighted_metrics=[TokenAccuracy()])
    ```

    Source of label smoothing: [Szegedy et al., 2015](https://arxiv.org/abs/1512.00567), section 7.
    """

    def __init__(self, label_smoothing=0.0, name="masked_crossentropy"):
        check_rate(label_smoothing=label_smoothing)
        super().__init__(name=name, reduction="mean_with_sample_weight", dtype="float32")
        self.label_smoothing = float(label_smoothing)

    def __call__(self, y_true, y_pred, sample_weight=None):
        keep_mask_outside_gradient(y_pred)
        labels, logits, weights = flatten_tokens(y_true, y_pred, sample_weight)
        return super().__call__(labels, logits, sample_weight=weights)

    def call(self, y_true, y_pred):
        return token_crossentropy(y_true, y_pred, self.label_smoothing)

    def get_config(self):
        return {"name": self.name, "label_smoothing": self.label_smoothing}


def token_crossentropy(labels, logits, label_smoothing=0.0):
    """Cross-entropy of each token in nats.

    Args:
        labels: ids `(...)`.
        logits: `(..., V)`.
        label_smoothing: as in `MaskedCrossentropy`.

    Returns:
        Float32 `(...)`; NaN where the id is outside `[0, V)`.
    """
    vocabulary_size = logits.shape[-1]
    labels = ops.cast(labels, "int32")
    flat_labels = ops.reshape(labels, (-1,))
    flat_logits = ops.reshape(ops.cast(logits, "float32"), (-1, vocabulary_size))
    # An id outside is replaced before the lookup: backends read another row, crash, or give NaN gradients there.
    valid = in_vocabulary(flat_labels, vocabulary_size)
    losses = _smoothed_crossentropy(ops.where(valid, flat_labels, 0), flat_logits, label_smoothing)
    return ops.reshape(ops.where(valid, losses, float("nan")), ops.shape(labels))


def _smoothed_crossentropy(labels, logits, smoothing):
    """`(N,)` valid ids and `(N, V)` float32 logits -> `(N,)`."""

    def losses(logits, log_partition):
        label_logits = ops.squeeze(ops.take_along_axis(logits, labels[:, None], axis=-1), axis=-1)
        target_logits = (1.0 - smoothing) * label_logits
        if smoothing:
            target_logits = target_logits + smoothing * ops.mean(logits, axis=-1)
        return log_partition - target_logits, ops.exp(label_logits - log_partition)

    # XLA fuses the derivative of the plain expression and is as fast as with any closed form given to it. TensorFlow
    # and PyTorch write out an array of the logits' size for each term of that derivative: there the closed form,
    # softmax - target, is 1.3 to 4 times as fast on a CPU.
    if keras.config.backend() == "jax":
        return losses(logits, ops.logsumexp(logits, axis=-1))[0]

    @ops.custom_gradient
    def crossentropy(logits):
        probabilities = ops.softmax(logits, axis=-1)
        # The highest probability is at least 1 / V, so its logarithm is safe, and no second pass of exp is needed.
        log_partition = ops.max(logits, axis=-1) - ops.log(ops.max(probabilities, axis=-1))
        values, label_probabilities = losses(logits, log_partition)
        kept = [probabilities]

        def gradient(*args, upstream=None):
            # Keras hands the upstream gradient over by position on TensorFlow, by keyword on PyTorch.
            upstream = args[0] if upstream is None else upstream
            uniform = smoothing / logits.shape[-1]
            # On PyTorch the gradient is written over the probabilities: a new array of this size costs more than the
            # arithmetic on it. Whoever differentiates a second time pays for new ones.
            result = kept.pop() if kept else ops.softmax(logits, axis=-1)
            result *= upstream[:, None]
            if smoothing:
                result -= (uniform * upstream)[:, None]
            return _set_columns(result, labels, (label_probabilities - uniform - (1.0 - smoothing)) * upstream)

        return values, gradient

    return crossentropy(logits)


def _set_columns(matrix, columns, values):
    """`matrix[i, columns[i]] = values[i]` for each row."""
    rows = ops.arange(ops.shape(columns)[0], dtype=columns.dtype)
    if keras.config.backend() == "torch":  # Keras' scatter would copy the matrix: a quarter of the loss's time.
        matrix[rows, columns] = values
        return matrix
    return ops.scatter_update(matrix, ops.stack([rows, columns], axis=-1), values)
