import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.training import InverseSquareRootSchedule, LinearWarmup, MaskedCrossentropy

VOCABULARY, STEPS = 9, 6


def value(schedule, step):
    return float(ops.convert_to_numpy(schedule(step)))


@pytest.mark.parametrize("dtype", [None, "int32", "float32"])
@pytest.mark.parametrize(
    "step, expected", [(0, 0.0), (1, 1.746928e-07), (4000, 6.987712e-04), (8000, 4.941059e-04), (10**6, 4.41942e-05)]
)
def test_values_of_the_paper(step, expected, dtype):
    schedule = InverseSquareRootSchedule(hidden_dim=512, warmup_steps=4000)
    step = step if dtype is None else ops.convert_to_tensor(step, dtype)
    assert value(schedule, step) == pytest.approx(expected, rel=1e-6)


def test_curve_equals_the_formula_of_the_paper():
    schedule = InverseSquareRootSchedule(hidden_dim=64, warmup_steps=10, scale=2.0)
    for step in range(1, 40):
        expected = 2.0 * 64**-0.5 * min(step**-0.5, step * 10**-1.5)
        assert value(schedule, step) == pytest.approx(expected, rel=1e-6)


def test_linear_warmup_rises_stays_and_falls():
    steps = [0, 50, 100, 550, 1000, 2000]
    constant = LinearWarmup(1e-3, warmup_steps=100)
    assert [value(constant, s) for s in steps] == pytest.approx([0, 5e-4, 1e-3, 1e-3, 1e-3, 1e-3], rel=1e-6)
    falling = LinearWarmup(1e-3, warmup_steps=100, decay_steps=900)
    assert [value(falling, s) for s in steps] == pytest.approx([0, 5e-4, 1e-3, 5e-4, 0, 0], rel=1e-6, abs=1e-12)


SCHEDULES = [
    InverseSquareRootSchedule(hidden_dim=48, warmup_steps=3, scale=0.5),
    LinearWarmup(0.01, warmup_steps=2),
    LinearWarmup(0.01, warmup_steps=2, decay_steps=6),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_round_trip_through_the_config(schedule):
    restored = type(schedule).from_config(schedule.get_config())
    serialized = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    for copy in (restored, serialized):
        assert type(copy) is type(schedule)
        assert copy.get_config() == schedule.get_config()
        assert [value(copy, s) for s in range(9)] == [value(schedule, s) for s in range(9)]


@pytest.mark.parametrize(
    "build, argument",
    [
        (lambda: InverseSquareRootSchedule(512, warmup_steps=0), "warmup_steps"),
        (lambda: InverseSquareRootSchedule(512, warmup_steps=-5), "warmup_steps"),
        (lambda: InverseSquareRootSchedule(512, warmup_steps=2.5), "warmup_steps"),
        (lambda: InverseSquareRootSchedule(0), "hidden_dim"),
        (lambda: InverseSquareRootSchedule(True), "hidden_dim"),
        (lambda: InverseSquareRootSchedule(512, scale=0.0), "scale"),
        (lambda: InverseSquareRootSchedule(512, scale=float("inf")), "scale"),
        (lambda: LinearWarmup(1e-3, warmup_steps=0), "warmup_steps"),
        (lambda: LinearWarmup(-1e-3, warmup_steps=1), "peak_learning_rate"),
        (lambda: LinearWarmup(1e-3, warmup_steps=1, decay_steps=0), "decay_steps"),
    ],
)
def test_impossible_arguments_are_refused(build, argument):
    with pytest.raises(ValueError, match=f"`{argument}`.*{argument}="):
        build()


def compiled_model(schedule):
    keras.utils.set_random_seed(3)
    ids = keras.Input((None,), dtype="int32")
    embedding = kt.layers.PositionalEmbedding(VOCABULARY, 8)
    model = keras.Model(ids, embedding(kt.layers.DecoderBlock(2, 12, use_bias=False)(embedding(ids)), reverse=True))
    model.compile(keras.optimizers.AdamW(schedule, clipnorm=0.1), MaskedCrossentropy(label_smoothing=0.1))
    return model


def data():
    rng = np.random.default_rng(4)
    return rng.integers(1, VOCABULARY, (4, 5)), rng.integers(0, VOCABULARY, (4, 5))


def fit(model, epochs, **arguments):
    return model.fit(*data(), batch_size=4, epochs=epochs, shuffle=False, verbose=0, **arguments)


def assert_equal_weights(model, reference):
    for ours, theirs in zip(model.get_weights(), reference.get_weights()):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES[::2])
def test_saved_and_resumed_training_equals_training_in_one_go(tmp_path, schedule):
    """B38, for a stack of our layers with a tied table."""
    uninterrupted = compiled_model(schedule)
    initial = uninterrupted.get_weights()
    fit(uninterrupted, STEPS)

    model = compiled_model(schedule)
    fit(model, 3)
    model.save(tmp_path / "model.keras")
    resumed = keras.models.load_model(tmp_path / "model.keras")
    assert int(ops.convert_to_numpy(resumed.optimizer.iterations)) == 3
    history = fit(resumed, STEPS, initial_epoch=3)

    assert history.epoch == [3, 4, 5]
    assert int(ops.convert_to_numpy(resumed.optimizer.iterations)) == STEPS
    assert_equal_weights(resumed, uninterrupted)
    for before, after in zip(initial, resumed.get_weights()):
        assert np.abs(before - after).max() > 1e-4
    assert value(lambda _: resumed.optimizer.learning_rate, None) == pytest.approx(value(schedule, STEPS), rel=1e-6)


class Interruption(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 3:
            raise KeyboardInterrupt


def test_backup_and_restore_after_an_interruption(tmp_path):
    schedule = SCHEDULES[0]
    uninterrupted = compiled_model(schedule)
    fit(uninterrupted, STEPS)

    backup = {"backup_dir": str(tmp_path / "backup")}
    with pytest.raises(KeyboardInterrupt):
        fit(compiled_model(schedule), STEPS, callbacks=[keras.callbacks.BackupAndRestore(**backup), Interruption()])
    model = compiled_model(schedule)
    history = fit(model, STEPS, callbacks=[keras.callbacks.BackupAndRestore(**backup)])

    assert history.epoch == [3, 4, 5]
    assert int(ops.convert_to_numpy(model.optimizer.iterations)) == STEPS
    assert_equal_weights(model, uninterrupted)


def test_first_update_moves_no_weight_and_makes_no_nan():
    model = compiled_model(InverseSquareRootSchedule(hidden_dim=512, warmup_steps=4000))
    initial = model.get_weights()
    fit(model, 1)
    for before, after in zip(initial, model.get_weights()):
        np.testing.assert_array_equal(before, after)
    fit(model, 2, initial_epoch=1)
    assert all(np.isfinite(weights).all() for weights in model.get_weights())
