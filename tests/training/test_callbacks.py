"""`Budget` ends `fit` when it says and sets the rate that it says; `StopOnInterrupt` ends it in good order;
`SampleTexts` shows what the model writes by then.
"""

import signal
import types

import keras
import numpy as np
import pytest

from keras_transformer.training import callbacks
from keras_transformer.training.callbacks import Budget, SampleTexts, StopOnInterrupt

X = np.ones((4, 1), "float32")


def falling_model(**compile_options):
    """The gradient of its only weight is 1 whatever happens, so SGD takes off the learning rate at every update."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    options = {"optimizer": keras.optimizers.SGD(1.0), **compile_options}
    model.compile(loss=lambda y, prediction: prediction, **options)
    return model


def weight(model):
    return model.get_weights()[0].item()


def at_batch_end(function):
    return keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: function(batch))


def at_batch_begin(function):
    """Behind `Budget` it sees the variables on JAX as well, where they are away from the model during a batch."""
    return keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: function(batch))


def fit(model, *fit_callbacks, epochs=100):
    return model.fit(X, X, batch_size=1, epochs=epochs, verbose=0, callbacks=list(fit_callbacks))


def test_steps_and_the_rate_that_acts():
    model, budget, weights = falling_model(), Budget(0.1, warmup_steps=3, steps=10), []
    history = fit(model, budget, at_batch_begin(lambda _: weights.append(weight(model))))
    rates = [0.1 * min(step / 3, 1 - (step - 1) / 10) for step in range(1, 11)]
    assert budget.step == 10 and len(history.epoch) == 3
    np.testing.assert_allclose(-np.diff([*weights, weight(model)]), rates, rtol=1e-4)


def test_updates_are_counted_not_executions():
    """Epochs of 4 updates run as 3 + 1, so the limit of 10 is met after 3, 4, 7, 8, 11."""
    at_once = 1 if keras.backend.backend() == "torch" else 3  # Keras has no other on PyTorch
    model, budget = falling_model(steps_per_execution=at_once), Budget(0.1, warmup_steps=1, steps=10)
    fit(model, budget)
    assert budget.step == int(model.optimizer.iterations) == {1: 10, 3: 11}[at_once]
    first_of_execution = range(10) if at_once == 1 else [0, 0, 0, 3, 4, 4, 4, 7, 8, 8, 8]
    assert weight(model) == pytest.approx(-sum(0.1 * (1 - update / 10) for update in first_of_execution), rel=1e-4)


def test_batches_whose_gradients_are_only_accumulated_are_no_updates():
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    model, budget = falling_model(optimizer=optimizer), Budget(0.1, warmup_steps=1, steps=3)
    history = fit(model, budget)
    assert budget.step == 3 and len(history.epoch) == 2
    assert weight(model) == pytest.approx(-0.1 * (1 + 2 / 3 + 1 / 3), rel=1e-4)


def test_time(monkeypatch):
    clock = types.SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(callbacks, "time", clock)
    model, budget, rates = falling_model(), Budget(0.1, warmup_steps=1, seconds=8.0), []

    def pass_time(batch):
        rates.append(float(model.optimizer.learning_rate))
        clock.now += 3.0

    fit(model, budget, at_batch_begin(pass_time))
    assert budget.step == 3 and budget.seconds_in_batches == 9.0
    np.testing.assert_allclose(rates, [0.1, 0.1 * 5 / 8, 0.1 * 2 / 8], rtol=1e-5)


def test_whichever_limit_comes_first(monkeypatch):
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(callbacks, "time", clock)
    budget = Budget(0.1, warmup_steps=1, steps=5, seconds=1e6)
    fit(falling_model(), budget)
    assert budget.step == 5


def test_an_epoch_that_ends_first_ends_the_training_and_a_second_one_starts_again():
    model, budget = falling_model(), Budget(0.1, warmup_steps=1, steps=100)
    fit(model, budget, epochs=2)
    assert budget.step == 8
    fit(model, budget, epochs=1)
    assert budget.step == 4


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "`steps` or `seconds`"),
        ({"steps": 0}, "`steps`.*steps=0"),
        ({"seconds": -1.0}, "`seconds`.*seconds=-1.0"),
        ({"steps": float("nan")}, "`steps`"),
        ({"steps": 5, "warmup_steps": 0}, "`warmup_steps`.*warmup_steps=0"),
        ({"steps": 5, "peak_learning_rate": "fast"}, "`peak_learning_rate`.*'fast'"),
    ],
)
def test_impossible_budgets(arguments, message):
    with pytest.raises(ValueError, match=message):
        Budget(**{"peak_learning_rate": 0.1, "warmup_steps": 1, **arguments})


def test_interrupt_finishes_the_batch_and_keeps_the_weights(capsys):
    def press(batch):
        if batch == 2:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    model, stop, budget = falling_model(), StopOnInterrupt(), Budget(0.1, warmup_steps=1, steps=1000)
    fit(model, stop, budget, at_batch_end(press))
    assert stop.interrupted and budget.step == 3
    assert weight(model) == pytest.approx(-0.1 * 3, rel=0.01)
    assert "Stopping after this batch" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_does_what_it_did_before(capsys):
    def press_twice(batch):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    def leave(signum, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGINT, leave)  # a shell starts background jobs with Ctrl-C ignored
    try:
        with pytest.raises(TimeoutError):
            fit(falling_model(), StopOnInterrupt(), at_batch_end(press_twice))
    finally:
        signal.signal(signal.SIGINT, before)


def test_without_interrupt_nothing_happens():
    before = signal.getsignal(signal.SIGINT)
    stop = StopOnInterrupt()
    fit(falling_model(), stop, epochs=1)
    assert not stop.interrupted and signal.getsignal(signal.SIGINT) is before


def test_a_fit_that_ends_by_an_error_does_not_keep_ctrl_c(capsys):
    def press_and_fail(batch):
        signal.raise_signal(signal.SIGINT)
        raise RuntimeError

    before, stop = signal.getsignal(signal.SIGINT), StopOnInterrupt()
    with pytest.raises(RuntimeError):
        fit(falling_model(), stop, at_batch_end(press_and_fail))
    fit(falling_model(), stop, epochs=1)
    assert not stop.interrupted and signal.getsignal(signal.SIGINT) is before


def test_texts_are_written_with_the_weights_of_the_epoch(capsys):
    """Each of the 4 updates of an epoch takes 1 off the weight."""
    sample = SampleTexts(
        ["a", "b"],
        ["c", "d"],
        lambda model, inputs: [f"{text}{weight(model):.0f}" for text in inputs],
        lambda texts, references: len({*texts, *references}),
        num_shown=1,
    )
    history = fit(falling_model(), sample, epochs=2).history
    assert history["val_score"] == [4.0, 4.0] and sample.texts == ["a-8", "b-8"]
    epochs = [f"\nepoch {i}: val_score 4\n  input      a\n  text       a-{4 * i}\n  reference  c\n" for i in (1, 2)]
    assert capsys.readouterr().out == "".join(epochs)


def test_texts_of_some_epochs_with_several_scores_or_none(capsys):
    options = {"num_shown": 0, "every": 2}
    many = SampleTexts(["a"], None, lambda *_: ["x"], lambda *_: {"one": 1, "two": 2.5}, **options)
    none = SampleTexts(["b"], None, lambda *_: ["y"], every=3)
    history = fit(falling_model(), many, none, epochs=5).history
    assert history["val_one"] == [1.0, 1.0] and history["val_two"] == [2.5, 2.5] and "val_score" not in history
    printed = capsys.readouterr().out
    assert printed.count("val_one 1, val_two 2.5\n") == 2 and printed.count("  input      b\n  text       y\n") == 1


def test_texts_that_do_not_fit_are_refused():
    for inputs, references in (([], None), ([], []), (["a"], [])):
        with pytest.raises(ValueError, match="`inputs` must hold one at least, and `references` as many"):
            SampleTexts(inputs, references, list)
    with pytest.raises(ValueError, match="`every` must be a positive integer"):
        SampleTexts(["a"], None, list, every=0)
    with pytest.raises(ValueError, match="a text for each of `inputs`. Received: 2 texts for 1 inputs"):
        fit(falling_model(), SampleTexts(["a"], None, lambda *_: ["x", "y"]), epochs=1)
