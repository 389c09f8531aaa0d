"""What TensorFlow does at the end of every epoch."""

import keras


def end_epochs_at_once():
    """Do not wait at the end of each epoch, and of each `predict` and `evaluate`, on TensorFlow.

    Beside every iterator over a `tf.data` pipeline TensorFlow runs a thread that tunes the pipeline, and sleeps 10 ms,
    then 20, 40 and so on up to a minute. Who drops the iterator waits for it, and the call that should wake it often
    comes too early to be seen (TensorFlow 2.21: `Model::OptimizeLoop`, `CancellationManager::StartCancel`): an epoch
    of 6 seconds then takes 10.2, and one of 21 takes 41. Keras makes such a pipeline of whatever `fit` is given, so
    this switches the tuning off for the whole process. A pipeline whose options say `autotune.enabled` keeps its own;
    where they do not, `tf.data.AUTOTUNE` means as many calls in parallel as there are cores.

    Returns:
        Whether there was something to do: on TensorFlow. On other backends nothing happens.

    Example: `end_epochs_at_once()  # then fit`
    """
    if keras.config.backend() != "tensorflow":
        return False
    import tensorflow as tf

    begin = tf.data.Dataset.__iter__
    if getattr(begin, "is_untuned", False):
        return True
    untuned = tf.data.Options()
    untuned.autotune.enabled = False

    def __iter__(dataset):
        chosen = dataset.options().autotune.enabled is not None
        return begin(dataset if chosen else dataset.with_options(untuned))

    __iter__.is_untuned = True
    tf.data.Dataset.__iter__ = __iter__
    return True
