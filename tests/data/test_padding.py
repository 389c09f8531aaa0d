import keras
import numpy as np
import pytest

from keras_transformer.data import check_in_vocabulary, pad_batch, shift_right


def random_rows(seed=0, num_rows=20):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 50, rng.integers(0, 12)).tolist() for _ in range(num_rows)]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("length", [None, 15])
def test_pad_batch_agrees_with_keras_pad_sequences(side, length):
    name = {"right": "post", "left": "pre"}[side]
    ids, mask = pad_batch(random_rows(), pad_token_id=7, length=length, side=side)
    assert ids.dtype == np.int32 and mask.dtype == bool
    np.testing.assert_array_equal(
        ids, keras.utils.pad_sequences(random_rows(), maxlen=length, padding=name, truncating=name, value=7)
    )
    ones = [[1] * len(row) for row in random_rows()]
    np.testing.assert_array_equal(mask, keras.utils.pad_sequences(ones, maxlen=length, padding=name) == 1)


def test_pad_batch_masks_by_place_not_by_id():
    ids, mask = pad_batch([[0, 5], [0]])
    assert ids.tolist() == [[0, 5], [0, 0]] and mask.tolist() == [[True, True], [True, False]]


def test_pad_batch_takes_arrays_and_backend_tensors():
    expected = [[5, 6], [7, 8]]
    for rows in (np.array(expected), [np.array(row) for row in expected], keras.ops.convert_to_tensor(expected)):
        assert pad_batch(rows)[0].tolist() == expected


def test_pad_batch_of_empty_rows_keeps_one_column():
    ids, mask = pad_batch([[], []], pad_token_id=3)
    assert ids.tolist() == [[3], [3]] and not mask.any()


@pytest.mark.parametrize(
    "ragged, options, message",
    [
        ([], {}, "empty batch"),
        ([[1, 2, 3]], {"length": 2}, "at least 3.*length=2"),
        ([[1.0, 2.0]], {}, "integer"),
        ([[1], [2.5]], {}, "integer"),
        ([[1], [-1]], {}, "id -1"),
        ([[1], [2**31]], {}, str(2**31)),
        ([[True]], {}, "integer"),
        (["ab"], {}, "list of id lists"),
        ([["a", "b"]], {}, "integer"),
        ([1, 2], {}, "list of id lists"),
        ([[1], 2], {}, "`ragged`"),
        ([[[1, 2]], [[3, 4]]], {}, "nested"),
        ([[[1]]], {}, "nested"),
        ([[1]], {"side": "top"}, "side='top'"),
        ([[1]], {"pad_token_id": 1.5}, "pad_token_id=1.5"),
        ([[1]], {"pad_token_id": None}, "pad_token_id=None"),
        ([[1]], {"length": 2.5}, "length=2.5"),
    ],
)
def test_pad_batch_refuses(ragged, options, message):
    with pytest.raises(ValueError, match=message):
        pad_batch(ragged, **options)


def test_check_in_vocabulary_accepts_every_form_of_valid_ids():
    for ids in ([], [[]], [0, 9], [[0], [9, 3]], np.zeros((2, 3), "uint8"), keras.ops.convert_to_tensor([[9]])):
        assert check_in_vocabulary(ids, 10) is None


@pytest.mark.parametrize("wrong", [10, -1, 2**40])
@pytest.mark.parametrize("form", [lambda i: [3, i], lambda i: [[3], [4, i]], lambda i: np.array([[3, i]])])
def test_check_in_vocabulary_names_the_id_and_the_limit(wrong, form):
    with pytest.raises(ValueError, match=rf"`labels` must be in \[0, 10\).* id {wrong}\."):
        check_in_vocabulary(form(wrong), 10, name="labels")


@pytest.mark.parametrize("ids", [[1.0], [[1], [2.0]], np.ones((2, 2), "float32"), [["a"]], [None], 3, "text", [True]])
def test_check_in_vocabulary_refuses_what_is_not_an_integer(ids):
    with pytest.raises(ValueError, match="`token_ids`"):
        check_in_vocabulary(ids, 10)


def test_shift_right_replaces_ignored_labels_and_does_not_wrap_round():
    shifted = shift_right([[0, 8, 2, -100, -100, -100]], 2, 1)
    assert shifted.dtype == np.int32 and shifted.tolist() == [[2, 0, 8, 2, 1, 1]]


def test_shift_right_agrees_with_a_loop():
    labels = np.random.default_rng(0).integers(3, 50, (4, 7))
    labels[1, 5:] = labels[2, :] = -1
    expected = [[9] + [0 if label == -1 else label for label in row[:-1]] for row in labels.tolist()]
    assert shift_right(labels, 9, ignore_id=-1).tolist() == expected
    assert shift_right(labels[1], 9, ignore_id=-1).tolist() == expected[1]
    assert shift_right(np.zeros((2, 0), int), 9).shape == (2, 0)


@pytest.mark.parametrize(
    "labels, message",
    [([[1, -5]], "id -5"), ([[1.5]], "integer"), ([[1], [2, 3]], "`labels`"), ([[2**32]], f"id {2**32}")],
)
def test_shift_right_refuses(labels, message):
    with pytest.raises(ValueError, match=message):
        shift_right(labels, 2, 1)
