"""Callbacks of `fit`: a budget that ends the training, and Ctrl-C that ends it without losing anything."""

import math
import signal
import threading
import time

import keras

from keras_transformer import weights
from keras_transformer.arguments import check_positive_number


class Budget(keras.callbacks.Callback):
    """Ends `fit` after a number of updates or an amount of time, with a learning rate that is 0 just then.

    The rate rises in a straight line for `warmup_steps` updates and then follows a straight line from the peak to 0
    over the whole budget, wherever time will have run out by then: most of what a model learns from a short training,
    it learns while the rate falls.

    Args:
        peak_learning_rate: rate that the falling line starts from. It is set on `model.optimizer` before every batch,
            so the optimizer must have been given a number, not a schedule.
        warmup_steps: number of updates until the falling line is met.
        steps: number of updates; None for no limit.
        seconds: wall-clock seconds, those of validation and compilation included; None for no limit. Whichever limit
            is met first ends the training, after the batch at hand.

    With `compile(steps_per_execution=n)` the rate is set, and the limits are looked at, once for n updates.

    Attributes:
        step: int, updates made so far.
        seconds_in_batches: float, time spent in them, without validation.

    Raises:
        ValueError: there is no limit, or an argument is not above 0.

    Example:

    ```python
    budget = Budget(peak_learning_rate=1e-3, warmup_steps=200, seconds=20 * 60)
    model.fit(data, epochs=1000, callbacks=[budget])
    print(budget.step / budget.seconds_in_batches, "updates per second")
    ```

    Source of the straight line to 0: [Bergsma et al., 2025](https://arxiv.org/abs/2502.15938).
    """

    def __init__(self, peak_learning_rate, warmup_steps, steps=None, seconds=None):
        super().__init__()
        if steps is None and seconds is None:
            raise ValueError("`steps` or `seconds` must be given. Received: steps=None, seconds=None")
        limits = {name: limit for name, limit in (("steps", steps), ("seconds", seconds)) if limit is not None}
        check_positive_number(peak_learning_rate=peak_learning_rate, warmup_steps=warmup_steps, **limits)
        self.peak_learning_rate, self.warmup_steps = peak_learning_rate, warmup_steps
        self.steps, self.seconds = limits.get("steps", math.inf), limits.get("seconds", math.inf)
        self.step, self.seconds_in_batches = 0, 0.0

    def on_train_begin(self, logs=None):
        self._begin = time.monotonic()
        self.step, self.seconds_in_batches = 0, 0.0
        self._updates_before = int(self.model.optimizer.iterations)

    def on_train_batch_begin(self, batch, logs=None):
        self._batch_begin = time.monotonic()
        self._count_updates()  # again: on TensorFlow, an execution that the epoch cuts short has no end
        share = max(0.0, min((self.step + 1) / self.warmup_steps, 1 - self._spent()))
        self.model.optimizer.learning_rate = self.peak_learning_rate * share

    def on_train_batch_end(self, batch, logs=None):
        self._count_updates()
        self.seconds_in_batches += time.monotonic() - self._batch_begin
        if self._spent() >= 1:
            self.model.stop_training = True

    def _count_updates(self):
        """Ask the optimizer: with `steps_per_execution`, what Keras calls a batch here is several."""
        weights.bring_back(self.model)
        self.step = int(self.model.optimizer.iterations) - self._updates_before

    def _spent(self):
        """The share of the budget that is spent."""
        return max(self.step / self.steps, (time.monotonic() - self._begin) / self.seconds)


class StopOnInterrupt(keras.callbacks.Callback):
    """Ends `fit` in good order at Ctrl-C: the batch at hand is finished, and `fit` returns as usual.

    A `KeyboardInterrupt` in the middle of a batch would leave a model without weights on JAX. A second Ctrl-C does what
    it did before. Outside of the main thread, which alone receives signals, the callback does nothing.

    Attributes:
        interrupted: bool, whether Ctrl-C was pressed.

    Example:

    ```python
    model.fit(data, epochs=1000, callbacks=[StopOnInterrupt()])
    model.save("as_far_as_it_came.keras")
    ```
    """

    def __init__(self):
        super().__init__()
        self.interrupted = False
        self._handler_before = None

    def on_train_begin(self, logs=None):
        self.on_train_end()  # a `fit` that ended by an error has not called it
        self.interrupted = False
        if threading.current_thread() is threading.main_thread():
            self._handler_before = signal.signal(signal.SIGINT, self._stop)

    def on_train_end(self, logs=None):
        if self._handler_before is not None:
            signal.signal(signal.SIGINT, self._handler_before)
            self._handler_before = None

    def _stop(self, *_):
        print("\nStopping after this batch; Ctrl-C once more leaves at once.", flush=True)
        self.interrupted = True
        self.model.stop_training = True
        self.on_train_end()
