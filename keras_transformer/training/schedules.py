"""Learning rates as functions of the number of updates made so far (Keras counts from 0)."""

import keras
from keras import ops

from keras_transformer.arguments import check_positive_number, check_size
from keras_transformer.layers.common import register


@register
class InverseSquareRootSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then decay with the inverse square root of the step.

    `rate = scale * hidden_dim**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)`

    The rate is 0 at step 0, so the very first update moves no weight, and peaks at
    `scale / sqrt(hidden_dim * warmup_steps)` when `step == warmup_steps`.

    Args:
        hidden_dim: width of the model.
        warmup_steps: number of updates until the peak.
        scale: factor on the whole curve.

    Raises:
        ValueError: an argument is not positive, or a count is not an integer.

    Example:

    ```python
    import keras
    from keras_transformer.training import InverseSquareRootSchedule

    schedule = InverseSquareRootSchedule(hidden_dim=512, warmup_steps=4000)
    schedule(4000)    # 6.9877e-04
    optimizer = keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9)
    ```

    Source: [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 5.3.
    """

    def __init__(self, hidden_dim, warmup_steps=4000, scale=1.0):
        check_size(hidden_dim=hidden_dim, warmup_steps=warmup_steps)
        check_positive_number(scale=scale)
        self.hidden_dim, self.warmup_steps, self.scale = int(hidden_dim), int(warmup_steps), float(scale)

    def __call__(self, step):
        step = ops.cast(step, "float32")
        # At step 0 the minimum is that of infinity and 0.
        shape = ops.minimum(ops.rsqrt(step), step * self.warmup_steps**-1.5)
        return self.scale * self.hidden_dim**-0.5 * shape

    def get_config(self):
        return {"hidden_dim": self.hidden_dim, "warmup_steps": self.warmup_steps, "scale": self.scale}


@register
class LinearWarmup(keras.optimizers.schedules.LearningRateSchedule):
    """From 0 in a straight line to the peak, then constant, or in a straight line back to 0.

    Args:
        peak_learning_rate: rate at step `warmup_steps`.
        warmup_steps: number of updates until the peak.
        decay_steps: number of updates from the peak to 0, where the rate stays; None keeps the peak.

    Raises:
        ValueError: an argument is not positive, or a count is not an integer.

    Example:

    ```python
    from keras_transformer.training import LinearWarmup

    schedule = LinearWarmup(1e-4, warmup_steps=100, decay_steps=900)
    schedule(50), schedule(100), schedule(550), schedule(1000)    # 5e-5, 1e-4, 5e-5, 0
    ```

    Source: [BERT](https://arxiv.org/abs/1810.04805), appendix A.2.
    """

    def __init__(self, peak_learning_rate, warmup_steps, decay_steps=None):
        check_positive_number(peak_learning_rate=peak_learning_rate)
        check_size(warmup_steps=warmup_steps, decay_steps=1 if decay_steps is None else decay_steps)
        self.peak_learning_rate, self.warmup_steps = float(peak_learning_rate), int(warmup_steps)
        self.decay_steps = None if decay_steps is None else int(decay_steps)

    def __call__(self, step):
        step = ops.cast(step, "float32")
        share = ops.minimum(step / self.warmup_steps, 1.0)
        if self.decay_steps is not None:
            remaining = (self.warmup_steps + self.decay_steps - step) / self.decay_steps
            share = ops.minimum(share, ops.maximum(remaining, 0.0))
        return self.peak_learning_rate * share

    def get_config(self):
        return {
            "peak_learning_rate": self.peak_learning_rate,
            "warmup_steps": self.warmup_steps,
            "decay_steps": self.decay_steps,
        }
