"""Callbacks of `fit`: a budget that ends it, Ctrl-C that ends it without losing anything, texts after each epoch."""

import math
import signal
import threading
import time

import keras

from keras_transformer import weights
from keras_transformer.arguments import check_count, check_positive_number, check_size


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

    A training that `BackupAndRestore` takes up again goes on where it was if that callback stands behind this one, and
    begins with a warm-up and a budget of its own if it stands in front.

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


class SampleTexts(keras.callbacks.Callback):
    """Has the model write texts after every epoch, prints some of them, and scores all.

    The scores are in the `logs` of the epoch, and so in what `fit` prints and returns.

    Args:
        inputs: list of what the model is given, for example of validation sources.
        references: list of what should come out, one for each; None if there is no such thing.
        generate: function of the model and `inputs` that returns a list of texts, one for each, such as
            `lambda model, inputs: kt.generate(model, inputs, max_new_tokens=40, tokenizer=tokenizer)`.
        score: function of the texts and `references` that returns a number, or a dict of them by name; None for none.
        name: of the score in the logs, behind `val_`, if it is a single number.
        num_shown: how many texts are printed, with input and reference; the same ones in every epoch.
        every: number of epochs from one time to the next.

    Attributes:
        texts: what came out last.

    Raises:
        ValueError: there is no input, or the references, or what `generate` returns, are not as many.

    Example:

    ```python
    bleu = lambda texts, references: sacrebleu.corpus_bleu(texts, [references]).score
    write = lambda model, inputs: kt.generate(model, inputs, max_new_tokens=40, tokenizer=tokenizer)
    sample = SampleTexts(valid.sources[:50], valid.targets[:50], write, bleu, name="bleu")
    history = model.fit(data, epochs=10, callbacks=[sample])
    history.history["val_bleu"]
    ```
    """

    def __init__(self, inputs, references, generate, score=None, name="score", num_shown=3, every=1):
        super().__init__()
        self.inputs, self.references = list(inputs), None if references is None else list(references)
        if not self.inputs or (self.references is not None and len(self.references) != len(self.inputs)):
            count = None if self.references is None else len(self.references)
            raise ValueError(
                "`inputs` must hold one at least, and `references` as many. "
                f"Received: {len(self.inputs)} inputs and {count} references"
            )
        check_count(0, num_shown=num_shown)
        check_size(every=every)
        self.generate, self.score, self.name = generate, score, name
        self.num_shown, self.every, self.texts = num_shown, every, None

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every:
            return
        weights.bring_back(self.model)
        self.texts = list(self.generate(self.model, self.inputs))
        if len(self.texts) != len(self.inputs):
            raise ValueError(
                "`generate` must return a text for each of `inputs`. "
                f"Received: {len(self.texts)} texts for {len(self.inputs)} inputs"
            )
        found = {} if self.score is None else self.score(self.texts, self.references)
        found = found if isinstance(found, dict) else {self.name: found}
        scores = {f"val_{name}": float(value) for name, value in found.items()}
        if logs is not None:
            logs.update(scores)
        print(f"\nepoch {epoch + 1}:", ", ".join(f"{name} {value:.4g}" for name, value in scores.items()))
        for i in range(min(self.num_shown, len(self.inputs))):
            print(f"  input      {self.inputs[i]}\n  text       {self.texts[i]}")
            if self.references is not None:
                print(f"  reference  {self.references[i]}")
