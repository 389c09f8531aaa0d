"""Variables of a loaded model begin with what the folder holds, on every backend, and a failing read breaks nothing."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.convert import files, load_pretrained
from keras_transformer.convert.first_values import FirstValues
from tests.backend import numpy, predict
from tests.models import published

IDS = np.array([[1, 2, 3]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpt2")
    published.theirs("gpt2").save_pretrained(path)
    return path


def test_nothing_is_drawn_that_the_folder_holds(folder, monkeypatch):
    """What `finish` would have to do is done already: the name of Keras that it needs is the right one."""
    left = []
    finish = FirstValues.finish
    monkeypatch.setattr(FirstValues, "finish", lambda self: (left.append(dict(self.values)), finish(self)))
    load_pretrained(folder)
    assert left == [{}]


def test_without_the_name_that_keras_does_not_publish(folder, monkeypatch):
    """Variables begin with random numbers then, and get the others as `assign` gives them."""
    create = FirstValues.__init__

    def forget(self, model, values):
        create(self, model, {})
        self.values = values

    expected = predict(load_pretrained(folder), IDS)
    monkeypatch.setattr(FirstValues, "__init__", forget)
    np.testing.assert_array_equal(predict(load_pretrained(folder), IDS), expected)


@pytest.mark.parametrize("error", [OSError("the disk is gone"), KeyboardInterrupt()], ids=["disk", "Ctrl-C"])
def test_a_tensor_that_cannot_be_read(error, folder, monkeypatch):
    """It is the error, and models can be made and loaded afterwards."""
    read, calls = files.Stored.__array__, []

    def fail(self, *args, **kwargs):
        calls.append(self)
        if len(calls) == 5:
            raise error
        return read(self, *args, **kwargs)

    monkeypatch.setattr(files.Stored, "__array__", fail)
    with pytest.raises(type(error)):
        load_pretrained(folder)
    assert len(calls) == 5
    assert np.isfinite(predict(load_pretrained(folder), IDS)).all()
    keras.layers.Dense(2).build((None, 3))


def test_a_new_head_begins_as_always(folder):
    """Beside weights of the folder."""
    model = load_pretrained(folder, head="token_classification", pad_token_id=0)
    (head,) = (x for x in model.weights if x.path.endswith("kernel") and x.shape[-1] == 2)
    assert 0 < np.std(numpy(head)) < 1
    same = load_pretrained(folder, pad_token_id=0)
    table = "embedding/embeddings"
    ours, theirs = (next(x for x in m.weights if x.path.endswith(table)) for m in (model, same))
    np.testing.assert_array_equal(numpy(ours), numpy(theirs))


def test_training_reaches_all_that_was_loaded(folder):
    """Seeds of dropout, optimizer and, on PyTorch, the module's own list of parameters are those of a built model."""
    loaded, built = load_pretrained(folder, pad_token_id=0), published.ours("gpt2")
    assert [x.path for x in loaded.trainable_variables] == [x.path for x in built.trainable_variables]
    names = [[x for x in getattr(m, "state_dict", dict)() if "seed_generator" not in x] for m in (loaded, built)]
    assert names[0] == names[1]
    before = [numpy(x) for x in loaded.trainable_variables]
    loaded.compile("adam", kt.training.MaskedCrossentropy())
    loaded.fit(np.array([[1, 2, 3, 4]]), np.array([[2, 3, 4, 5]]), verbose=0)
    assert all(np.isfinite(numpy(x)).all() for x in loaded.trainable_variables)
    assert sum((numpy(x) != y).any() for x, y in zip(loaded.trainable_variables, before)) > len(before) / 2
