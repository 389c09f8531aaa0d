"""Training in a hurry: a few steps take less time than compiling them well."""

import keras

import keras_transformer as kt
from tests.backend import compiled, numpy


def train_in_a_hurry(monkeypatch):
    """On TensorFlow, `compile` does without XLA, and the optimizer is built before a graph would have to do it."""
    if keras.backend.backend() != "tensorflow":
        return
    trainer = [kind for kind in keras.Model.__mro__ if "compile" in vars(kind)][-1]  # whose method is Keras' own
    compile_well = trainer.compile

    def compile_in_a_hurry(model, *arguments, **options):
        compile_well(model, *arguments, **{**options, "jit_compile": False})
        if model.built:
            model.optimizer.build(model.trainable_variables)

    monkeypatch.setattr(trainer, "compile", compile_in_a_hurry)


def train_few_steps(monkeypatch, steps):
    """As `train_in_a_hurry`, and a budget of time is one of so many steps."""
    train_in_a_hurry(monkeypatch)
    budget = kt.training.Budget
    monkeypatch.setattr(kt.training, "Budget", lambda rate, warmup, seconds: budget(rate, 2, steps=steps))


def outputs_in_training(model, inputs, calls=1):
    """What so many calls with `training=True` give one after the other, as NumPy, in one compilation on JAX."""
    call = compiled(lambda trainable, others: model.stateless_call(trainable, others, inputs, training=True))
    trainable, others = ([v.value for v in x] for x in (model.trainable_variables, model.non_trainable_variables))
    outputs = []
    for _ in range(calls):
        output, others = call(trainable, others)
        outputs.append(numpy(output))
    return outputs
