"""How often the model runs, how often it is compiled, and what `generate` leaves alone (B20, B28, B29)."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from tests import reference
from tests.generation.models import VOCABULARY_SIZE, ragged

PROMPTS = ragged((5, 1, 9))
BACKEND = keras.config.backend()
TRACED, RUN = [], []  # not on the layer: Keras would wrap the lists


class Counter(keras.layers.Layer):
    """Counts how often Python runs its call, and how often it really runs inside what was compiled."""

    def build(self, shape):
        self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def call(self, x):
        TRACED.append(1)
        if BACKEND == "jax":
            import jax

            jax.debug.callback(lambda: RUN.append(1))
        elif BACKEND == "tensorflow":
            self.count.assign_add(1)
        else:
            RUN.append(1)
        return x


def counted(model, function):
    """What the function returns, and how often the model ran and was traced meanwhile."""
    counter = model.get_layer("counter")
    del RUN[:], TRACED[:]
    counter.count.assign(0)
    result = function()
    if BACKEND == "jax":
        import jax

        jax.effects_barrier()
    runs = int(ops.convert_to_numpy(counter.count)) if BACKEND == "tensorflow" else len(RUN)
    return result, runs, len(TRACED)


@functools.cache
def counting(encoder_decoder=False):
    """A small model with a counter; what is tried on it before the first text is behind it."""
    if encoder_decoder:
        source = keras.Input((None,), dtype="int32", name="encoder_token_ids")
        target = keras.Input((None,), dtype="int32", name="decoder_token_ids")
        table = keras.layers.Embedding(VOCABULARY_SIZE, 16)
        x = keras.layers.GRU(16, return_sequences=True)(table(target), keras.layers.GRU(16)(table(source)))
        model = keras.Model([source, target], keras.layers.Dense(VOCABULARY_SIZE)(Counter(name="counter")(x)))
    else:
        ids = keras.Input((None,), dtype="int32")
        table = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None)
        x = kt.layers.DecoderBlock(2, 32)(Counter(name="counter")(table(ids)))
        model = keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE)(x))
    reference.randomize(model, stddev=0.5)
    return model


def generate(model, max_new_tokens, **options):
    return kt.generate(model, PROMPTS, max_new_tokens, return_dict=True, **{"stop_token_id": [], **options})


class TestTheLoopEndsWithItsLastRow:
    @pytest.mark.filterwarnings("ignore:generate")
    @pytest.mark.parametrize(
        "options",
        [{}, {"cache": False}, {"sampler": "sample", "seed": 1, "temperature": 2.0, "num_return_sequences": 3}],
        ids=str,
    )
    def test_one_run_for_each_token_of_the_longest_row(self, options):
        """Three rows share a shape with four: the one that fills up keeps nobody waiting."""
        model = counting()
        free = generate(model, 12, **options)
        repeats = len(free["lengths"]) // len(PROMPTS)
        texts = [
            free["token_ids"][i, len(PROMPTS[i // repeats]) :][:12].tolist() for i in range(len(free["token_ids"]))
        ]
        stop = sorted({text[3] for text in texts})
        expected = [next(i for i, token in enumerate(text) if token in stop) + 1 for text in texts]
        result, runs, _ = counted(model, lambda: generate(model, 50, stop_token_id=stop, **options))
        assert result["lengths"] == expected
        assert runs == max(expected)

    @pytest.mark.filterwarnings("ignore:generate")
    def test_without_sub_models(self):
        model = counting(encoder_decoder=True)
        free = generate(model, 8, start_token_id=1)["token_ids"]
        stop = sorted({int(text[2]) for text in free})
        expected = [next(i for i, token in enumerate(text) if token in stop) + 1 for text in free.tolist()]
        result, runs, _ = counted(model, lambda: generate(model, 60, start_token_id=1, stop_token_id=stop))
        assert result["lengths"] == expected
        # this model does not mask its sources, so each length is a batch of its own
        assert runs == sum(expected)

    def test_beams_end_with_the_last_text_that_is_wanted(self):
        model = counting()
        options = {"num_beams": 3, "num_return_sequences": 3, "early_stopping": True}
        generate(model, 2, **options)
        result, runs, _ = counted(model, lambda: generate(model, 60, stop_token_id=[4, 7, 9, 12], **options))
        assert runs == max(result["lengths"]) < 60

    def test_one_token_is_one_run_and_none_is_none(self):
        model = counting()
        generate(model, 2)
        assert counted(model, lambda: generate(model, 1))[1] == 1
        assert counted(model, lambda: generate(model, 0))[1] == 0


@functools.cache
def after_two(row_is_banned):
    """A processor that bans everything from the third token on in some of the rows."""

    def processor(logits, text):
        banned = ops.logical_and(text.num_new >= 2, ops.convert_to_tensor(row_is_banned)[:, None])
        return ops.where(banned, float("-inf"), logits)

    return processor


class TestEverythingIsBanned:
    """A row ends there, with the tokens before it, finite numbers and no run too many."""

    @pytest.mark.parametrize("sampler", ["greedy", "sample"])
    def test_in_all_rows(self, sampler):
        model, processor = counting(), after_two((True,) * 4)
        options = {"logits_processors": [processor], "sampler": sampler, "seed": 0}
        if sampler == "sample":
            options |= {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.9}
        generate(model, 2, **options)
        result, runs, _ = counted(model, lambda: generate(model, 20, **options))
        assert result["lengths"] == [2] * 3 and runs == 3
        assert np.isfinite(np.concatenate(result["log_probs"])).all()
        free = generate(model, 2, **options)
        assert (result["token_ids"] == free["token_ids"]).all()

    def test_in_one_row(self):
        """The others write what they write without it."""
        model, processor = counting(), after_two((False, True, False, False))  # rows are sorted, the longest first
        result = generate(model, 6, logits_processors=[processor])
        free = generate(model, 6)
        assert sorted(result["lengths"]) == [2, 6, 6]
        for i, (prompt, length) in enumerate(zip(PROMPTS, result["lengths"])):
            end = len(prompt) + length
            assert (result["token_ids"][i, :end] == free["token_ids"][i, :end]).all()
            assert (result["token_ids"][i, end:] == 0).all()

    @pytest.mark.parametrize("sampler", ["greedy", "sample", "beam"])
    def test_from_the_first_token_on(self, sampler):
        model = counting()
        options = {"allowed_token_ids": [4], "bad_words_ids": [4], "sampler": sampler}
        result = generate(model, 6, **options)
        assert set(result["lengths"]) == {0}
        assert [text[text != 0].tolist() for text in result["token_ids"]] == PROMPTS
        if sampler == "beam":
            assert (result["scores"] == -np.inf).all()

    def test_by_a_stop_token_that_may_not_come_yet(self):
        result = generate(counting(), 6, allowed_token_ids=[4], stop_token_id=4, min_new_tokens=3)
        assert result["lengths"] == [0] * 3


def test_what_pads_a_row_is_not_penalised():
    """B28: a batch of padded rows is each row alone."""
    model = counting()
    options = {"repetition_penalty": 3.0, "presence_penalty": 0.5, "frequency_penalty": 0.5, "no_repeat_ngram_size": 2}
    alone = [kt.generate(model, [prompt], 8, **options)[0, len(prompt) :].tolist() for prompt in PROMPTS]
    for side in ("left", "right"):
        ids, mask = kt.data.pad_batch(PROMPTS, pad_token_id=alone[1][0], side=side)
        texts = kt.generate(model, ids, 8, padding_mask=mask, **options)
        assert texts[:, ids.shape[1] :].tolist() == alone


class TestCompiledOnce:
    """As docs/decoding.md says: batches of 1, 2, 4, ... rows, prompts of 16, 32, ... and caches of 64, 128, ...

    On torch nothing is compiled: Python runs the model once for each token.
    """

    def test_a_mix_of_prompts_and_batches(self):
        model = keras.models.clone_model(counting())  # of which nothing is compiled yet

        def write(*lengths, new=5):
            kt.generate(model, ragged(lengths), new)

        def mix():
            for lengths in ((3,), (16, 2), (30, 1, 17), (4, 5, 6, 7), (31,), (9, 20), (1, 2, 3)):
                write(*lengths)
            write(10, new=64)  # what does not fit into 64 goes on in 128

        write(70, new=1)  # the model is tried at its first use
        _, runs, traces = counted(model, mix)
        assert runs == 7 * 5 + 64
        if BACKEND == "torch":
            assert traces == runs
            return
        # prompts: of 16 and 32 tokens for 1, 2 and 4 rows; steps: for 1, 2 and 4 rows, and for 1 row in the large cache
        assert traces == 2 * 3 + 3 + 1
        _, _, traces = counted(model, lambda: [mix(), write(12, 13), write(32, 5, 6), write(25, new=60)])
        assert traces == 0

    def test_values_of_options(self):
        model = counting()
        values = [
            {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.8, "seed": 1},
            {"temperature": 1.7, "top_k": 9, "top_p": 0.5, "min_p": 0.0, "typical_p": 0.5, "seed": 2},
        ]
        penalties = [
            {"repetition_penalty": 1.2, "presence_penalty": 0.1, "frequency_penalty": 0.2, "min_new_tokens": 2},
            {"repetition_penalty": 1.9, "presence_penalty": 0.3, "frequency_penalty": 0.1, "min_new_tokens": 4},
        ]
        lists = [
            {"bad_words_ids": [[5, 6], 7], "allowed_token_ids": [*range(3, 12)], "stop_token_id": 3},
            {"bad_words_ids": [8, [4, 9]], "allowed_token_ids": [*range(2, 15)], "stop_token_id": [2, 5, 6]},
        ]
        one, other = ({**a, **b, **c} for a, b, c in zip(values, penalties, lists))
        kt.generate(model, PROMPTS, 6, **one)
        _, runs, traces = counted(model, lambda: kt.generate(model, PROMPTS, 9, **other))
        assert traces == (runs if BACKEND == "torch" else 0)

    def test_training_is_left_alone(self):
        """The optimizer, the loss, the compiled training step and its shapes are those of before."""
        model = keras.models.clone_model(counting())
        model.compile(keras.optimizers.Adam(1e-2, clipnorm=1.0), kt.training.MaskedCrossentropy())
        x = np.random.default_rng(0).integers(3, VOCABULARY_SIZE, (4, 6))
        model.fit(x, x, batch_size=2, verbose=0)
        optimizer, step, loss = model.optimizer, model.train_function, model.loss
        state = [ops.convert_to_numpy(variable) for variable in optimizer.variables]
        weights = [weight for weight in model.get_weights() if weight.shape]  # the counter counts
        trainable = [weight.trainable for weight in model.weights]
        for options in ({}, {"temperature": 0.5}, {"num_beams": 2}):
            kt.generate(model, PROMPTS, 3, **options)
        assert (model.optimizer, model.train_function, model.loss) == (optimizer, step, loss)
        for before, after in zip(state, optimizer.variables, strict=True):
            np.testing.assert_array_equal(before, ops.convert_to_numpy(after))
        for before, after in zip(weights, [w for w in model.get_weights() if w.shape], strict=True):
            np.testing.assert_array_equal(before, after)
        assert trainable == [weight.trainable for weight in model.weights]
        _, runs, traces = counted(model, lambda: model.fit(x, x, batch_size=2, verbose=0))
        assert traces == (runs if BACKEND == "torch" else 0)
