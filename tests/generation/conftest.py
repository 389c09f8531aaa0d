"""On TensorFlow, XLA compiles what is written in some modules, which try every way to write; graphs do in the others.

Compiling with XLA takes most of the time, and TensorFlow keeps what it compiled as long as the process lives: 10 GB for
all of these modules. What is traced is the same.
"""

import keras
import pytest

from keras_transformer.generation import compile as compilation

WITH_XLA = ("test_beam", "test_generate", "test_recurrent", "test_steps")


@pytest.fixture(autouse=True, scope="module")
def without_xla(request):
    if keras.backend.backend() != "tensorflow" or request.module.__name__.split(".")[-1] in WITH_XLA:
        yield
        return
    import tensorflow as tf

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "_tensorflow", lambda function, *others: tf.function(function, autograph=False))
        yield
