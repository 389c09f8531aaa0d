"""A task for small encoder-decoders of ids 3 to 7 that start with 1: write what was read."""

import keras
import numpy as np

CHANCE = np.log(5)  # the best loss without the source


def loss_of_copying(model, learning_rate, epochs):
    """The loss of the last epoch; five updates make one."""
    source = np.random.default_rng(0).integers(3, 8, (640, 3))
    target = np.concatenate([np.full((640, 1), 1), source], axis=1)
    model.compile(keras.optimizers.Adam(learning_rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit([source, target[:, :-1]], source, epochs=epochs, batch_size=128, verbose=0)
    return history.history["loss"][-1]
