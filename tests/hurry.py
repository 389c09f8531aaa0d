"""Training a few steps in a hurry: on TensorFlow, XLA compiles for several times as long as they take without it."""

import keras

JIT_COMPILE = False if keras.backend.backend() == "tensorflow" else "auto"  # of `keras.Model.compile`


def train_without_xla(monkeypatch):
    """For code that calls `compile` by itself: nothing changes but on TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        return
    trainer = [kind for kind in keras.Model.__mro__ if "compile" in vars(kind)][-1]  # whose method is Keras' own
    compile_model = trainer.compile

    def compile_without_xla(self, *arguments, **options):
        return compile_model(self, *arguments, **{**options, "jit_compile": False})

    monkeypatch.setattr(trainer, "compile", compile_without_xla)
