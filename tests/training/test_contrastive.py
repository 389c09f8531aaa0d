"""The contrastive loss against PyTorch's cross-entropy, and what it does not count."""

import keras
import numpy as np
import pytest
import torch

from keras_transformer.training import ContrastiveLoss
from tests.backend import gradients, run, vectors

X = vectors(6, 4) / np.linalg.norm(vectors(6, 4), axis=-1, keepdims=True)
PAIRS = np.array([3, 3, 8, 8, 5, 5])


def by_torch(groups, vectors, temperature):
    """For each row the mean, over its partners, of the cross-entropy of finding it among all others."""
    similarity = vectors @ vectors.T / temperature
    losses = []
    for row, group in enumerate(groups):
        others = [i for i in range(len(groups)) if i != row]
        partners = [place for place, i in enumerate(others) if groups[i] == group]
        if partners:
            asked = similarity[row, others].expand(len(partners), -1)
            losses.append(torch.nn.functional.cross_entropy(asked, torch.tensor(partners)))
    return torch.stack(losses)


@pytest.mark.parametrize("groups", [PAIRS, np.array([1, 1, 1, 2, 2, 9])])
def test_value_and_gradient_are_those_of_torch(groups):
    x = torch.tensor(X, requires_grad=True)
    expected = by_torch(groups, x, 0.2).mean()
    expected.backward()
    loss = ContrastiveLoss(0.2)
    np.testing.assert_allclose(run(lambda x: loss(groups, x), X), expected.item(), rtol=1e-5)
    (found,) = gradients(lambda x: loss(groups, x), X)
    np.testing.assert_allclose(found, x.grad.numpy(), atol=1e-5)


def test_the_example_by_hand():
    found = ContrastiveLoss(1.0)(np.array([7, 7, 8, 8]), np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]], "float32"))
    assert float(found) == pytest.approx(np.log(1 + 2 / np.e), abs=1e-6)


def test_weights_and_rows_without_a_partner():
    groups = np.array([1, 1, 2, 3, 3, 3])
    rows = by_torch(groups, torch.tensor(X), 0.05).numpy()  # of all but the third one
    loss = ContrastiveLoss()
    assert float(loss(groups, X)) == pytest.approx(rows.mean(), rel=1e-5)
    weights = np.array([2, 0, 5, 1, 0, 0], "float32")
    assert float(loss(groups[:, None], X, weights)) == pytest.approx((2 * rows[0] + rows[2]) / 3, rel=1e-5)
    assert float(loss(np.arange(6), X)) == 0 and float(loss(groups[:1], X[:1])) == 0


def test_half_precision_is_computed_in_float32():
    assert float(ContrastiveLoss(0.001)(PAIRS, X.astype("float16"))) == pytest.approx(
        by_torch(PAIRS, torch.tensor(X.astype("float16").astype("float32")), 0.001).mean().item(), rel=1e-4
    )


def test_it_serialises():
    loss = keras.losses.deserialize(keras.losses.serialize(ContrastiveLoss(0.3, name="pairs")))
    assert loss.get_config() == {"name": "pairs", "temperature": 0.3}


def test_what_cannot_be_used_is_refused():
    with pytest.raises(ValueError, match="`temperature` must be a finite number above 0. Received: temperature=0"):
        ContrastiveLoss(0)
    for groups, x in ((PAIRS, X[None]), (np.stack([PAIRS, PAIRS], 1), X)):
        with pytest.raises(ValueError, match=r"`y_true` must be a number for each row.* y_true.shape=\(6"):
            ContrastiveLoss()(groups, x)
