"""A loss for vectors of which some belong together.

Letters: B rows of a batch, D features.
"""

import keras
from keras import ops

from keras_transformer.arguments import check_positive_number
from keras_transformer.layers.common import register

HIDDEN = -1e9  # finite, so that a batch of a single row gives no NaN


@register
class ContrastiveLoss(keras.losses.Loss):
    """Each vector of a batch is to be nearer to those it belongs to than to all others, which are not told one by one.

    A row is asked which of the other rows of the batch belongs to it, by a softmax over the dot products with them: the
    loss is the cross-entropy of that. With several that do, it is the mean over them. A row that belongs to none is
    only compared with, and does not count. The loss is computed in float32 and averaged over the rows that count.

    Sources: Chen et al. 2020, "A Simple Framework for Contrastive Learning" (https://arxiv.org/abs/2002.05709); with
    more than one partner Khosla et al. 2020, "Supervised Contrastive Learning" (https://arxiv.org/abs/2004.11362).

    Args:
        temperature: what dot products are divided by, above 0.
        name: name of the loss.

    Call arguments:
        y_true: integers (B,) below 2**24; rows with the same number belong together.
        y_pred: vectors (B, D), of length 1 if cosines are to be compared, as a `"sentence_embedding"` head gives them.
        sample_weight: one number for each row, or None.

    Returns:
        A float32 scalar, 0 where no row counts.

    Raises:
        ValueError: `temperature` is not above 0, or the shapes are others.

    Example:

    ```python
    import numpy as np
    from keras_transformer.training import ContrastiveLoss

    vectors = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]])
    ContrastiveLoss(temperature=1.0)(np.array([7, 7, 8, 8]), vectors)    # log(1 + 2 / e) = 0.5514
    ```
    """

    def __init__(self, temperature=0.05, name="contrastive_loss"):
        check_positive_number(temperature=temperature)
        super().__init__(name=name, reduction="mean_with_sample_weight", dtype="float32")
        self.temperature = float(temperature)

    def __call__(self, y_true, y_pred, sample_weight=None):
        groups, vectors = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        if len(vectors.shape) != 2 or len(groups.shape) not in (1, 2) or tuple(groups.shape[1:]) not in ((), (1,)):
            raise ValueError(
                "`y_true` must be a number for each row, (B,), and `y_pred` vectors (B, D). "
                f"Received: y_true.shape={tuple(groups.shape)}, y_pred.shape={tuple(vectors.shape)}"
            )
        groups = ops.reshape(groups, (-1,))
        counts = ops.cast(ops.any(self._partners(groups), axis=-1), "float32")
        if sample_weight is not None:
            counts = counts * ops.reshape(ops.convert_to_tensor(sample_weight, dtype="float32"), (-1,))
        return super().__call__(groups, vectors, sample_weight=counts)

    def call(self, y_true, y_pred):
        similarity = ops.matmul(y_pred, ops.transpose(y_pred)) / self.temperature
        similarity = ops.where(_itself(y_true), HIDDEN, similarity)
        log_shares = similarity - ops.logsumexp(similarity, axis=-1, keepdims=True)
        partners = ops.cast(self._partners(y_true), "float32")
        return -ops.sum(partners * log_shares, axis=-1) / ops.maximum(ops.sum(partners, axis=-1), 1.0)

    def get_config(self):
        return {"name": self.name, "temperature": self.temperature}

    def _partners(self, groups):
        """True where two different rows belong together, (B, B)."""
        return ops.logical_and(ops.equal(groups[:, None], groups[None]), ops.logical_not(_itself(groups)))


def _itself(rows):
    """True where a row meets itself, (B, B)."""
    numbers = ops.arange(ops.shape(rows)[0])
    return ops.equal(numbers[:, None], numbers[None])
