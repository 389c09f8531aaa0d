"""Figures per token, exact over an epoch: sums and counts are kept over all batches and divided once.

Which tokens count, and with what weight, is decided as in `MaskedCrossentropy`: `sample_weight` per token, else the
implicit mask of the logits, else all. Keras passes `sample_weight` to `weighted_metrics=`, not to `metrics=`: with
weights that differ from the mask, use the former.

On JAX, Keras drops the implicit mask before the metrics of `fit` run; `MaskedCrossentropy` hands it on. With another
loss on JAX give the weights explicitly.
"""

import keras
from keras import ops

from keras_transformer.layers.common import register
from keras_transformer.training.losses import token_crossentropy
from keras_transformer.training.tokens import flatten_tokens, in_vocabulary


class _TokenMean(keras.metrics.Metric):
    """Weighted mean of a figure over all tokens seen since the last reset; 0 before the first.

    Args:
        token_values: function of `(N,)` ids and `(N, V)` logits to the figure of each token, `(N,)` float32.
        name: name of the metric.
        dtype: as in `keras.metrics.Metric`; the sums are kept in float32.
    """

    def __init__(self, token_values, name, dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.token_values = token_values
        self.total = self.add_variable((), "zeros", dtype="float32", name="total")
        self.count = self.add_variable((), "zeros", dtype="float32", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch.

        Args:
            y_true: integer ids, `(B, T)` or `(B,)`.
            y_pred: float logits, `(B, T, V)` or `(B, V)`.
            sample_weight: `(B, T)`, one number per row, or None.
        """
        labels, logits, weights = flatten_tokens(y_true, y_pred, sample_weight)
        values = self.token_values(labels, ops.stop_gradient(logits))
        self.total.assign_add(ops.sum(values * weights))
        self.count.assign_add(ops.sum(weights))

    def result(self):
        return ops.divide_no_nan(self.total, self.count)


@register
class TokenAccuracy(_TokenMean):
    """Share of the real tokens whose id has the highest logit.

    An id outside the vocabulary with a weight other than 0 makes the result NaN.

    Args:
        name: name of the metric.
        dtype: as in `keras.metrics.Metric`.

    Example:

    ```python
    import numpy as np
    from keras_transformer.training import TokenAccuracy

    accuracy = TokenAccuracy()
    accuracy.update_state(np.array([[1, 0, 0]]), np.array([[[0.0, 1], [0, 1], [0, 1]]]), np.array([[1, 1, 0]]))
    accuracy.result()    # 0.5
    ```
    """

    def __init__(self, name="token_accuracy", dtype=None):
        super().__init__(_hits, name, dtype)
        self._direction = "up"  # read by EarlyStopping and ModelCheckpoint in mode "auto"


def _hits(labels, logits):
    hits = ops.cast(ops.equal(labels, ops.cast(ops.argmax(logits, axis=-1), "int32")), "float32")
    return ops.where(in_vocabulary(labels, logits.shape[-1]), hits, float("nan"))


@register
class TokenCrossentropy(_TokenMean):
    """Cross-entropy per real token in nats, without label smoothing.

    This, not the `loss` that Keras prints, is the figure to report: Keras averages the loss over batches by their
    rows, which weighs the tokens of a batch of short rows more.

    Args:
        name: name of the metric.
        dtype: as in `keras.metrics.Metric`.

    Example:

    ```python
    import numpy as np
    from keras_transformer.training import TokenCrossentropy

    crossentropy = TokenCrossentropy()
    crossentropy.update_state(np.array([[0, 1]]), np.zeros((1, 2, 4)))
    crossentropy.result()    # log(4) = 1.3863
    ```
    """

    def __init__(self, name="token_crossentropy", dtype=None):
        super().__init__(token_crossentropy, name, dtype)
        self._direction = "down"


@register
class Perplexity(TokenCrossentropy):
    """Exponential of the cross-entropy per real token (in nats): V for a model that knows nothing, 1 at best
    (and before the first token).

    Args:
        name: name of the metric.
        dtype: as in `keras.metrics.Metric`.

    Example:

    ```python
    import numpy as np
    from keras_transformer.training import Perplexity

    perplexity = Perplexity()
    perplexity.update_state(np.array([[0, 1]]), np.zeros((1, 2, 4)))
    perplexity.result()    # 4.0
    ```
    """

    def __init__(self, name="perplexity", dtype=None):
        super().__init__(name=name, dtype=dtype)

    def result(self):
        return ops.exp(super().result())
