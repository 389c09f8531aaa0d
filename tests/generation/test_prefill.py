"""Texts that were read once are continued as if they were read in whole."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.generation.models import VOCABULARY_SIZE, greedy_by_hand, ragged, stacked_gpt, translator

BEGUN = ragged((5, 1, 9), seed=1)
REST = ragged((3, 6, 0), seed=2)  # nothing is added to the last one
WHOLE = [begun + rest for begun, rest in zip(BEGUN, REST, strict=True)]
MASKING = {"pad_token_id": 0, "position": "learned"}


@pytest.mark.parametrize("options", [{}, MASKING], ids=str)
def test_the_prefix_changes_nothing_and_is_not_used_up(options):
    model = stacked_gpt(**options)
    prefix = kt.prefill(model, BEGUN)
    expected = kt.generate(model, WHOLE, 6)
    for _ in range(2):
        assert (kt.generate(model, REST, 6, prefix=prefix) == expected).all()
    assert expected[1, :13].tolist() == WHOLE[1] + greedy_by_hand(model, WHOLE[1], 6)


def test_a_prefix_that_fills_its_cache():
    """What is read and written behind it finds room."""
    model = stacked_gpt(position="sinusoidal")
    begun, rest = ragged((62, 3)), ragged((9, 2))
    prefix = kt.prefill(model, begun)
    texts = kt.generate(model, rest, 4, prefix=prefix)
    assert (texts == kt.generate(model, [a + b for a, b in zip(begun, rest, strict=True)], 4)).all()


def test_one_row_for_all_and_nothing_added_to_any():
    model, (begun, *_) = stacked_gpt(), BEGUN
    prefix = kt.prefill(model, begun)
    assert len(prefix) == 1
    rests = ragged((2, 0, 7), seed=3)
    expected = kt.generate(model, [begun + rest for rest in rests], 6)
    assert (kt.generate(model, rests, 6, prefix=prefix) == expected).all()
    assert (kt.generate(model, rests, 6, prefix=prefix, batch_size=2) == expected).all()
    bare = kt.generate(model, [[], []], 6, prefix=prefix)
    assert (bare == kt.generate(model, [begun] * 2, 6)).all()
    assert (kt.generate(model, [[]], 0, prefix=prefix) == [begun]).all()


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3, "num_return_sequences": 2},
        {"temperature": 2.0, "seed": 5, "num_return_sequences": 2},
        {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "bad_words_ids": [[4, 5], 6]},
        {"penalty_alpha": 0.5, "top_k": 3},
        {"prompt_lookup_num_tokens": 3},
    ],
    ids=str,
)
def test_every_way_to_choose_tokens(options):
    model = stacked_gpt()
    prefix = kt.prefill(model, BEGUN)
    assert (kt.generate(model, REST, 6, prefix=prefix, **options) == kt.generate(model, WHOLE, 6, **options)).all()


def test_streams():
    model = stacked_gpt()
    prefix = kt.prefill(model, BEGUN)
    pieces = list(kt.stream(model, REST, 8, prefix=prefix))
    assert pieces == list(kt.stream(model, WHOLE, 8))


@pytest.mark.parametrize("side", ["left", "right"])
def test_arrays_keep_their_padding(side):
    model = stacked_gpt()
    ids, mask = kt.data.pad_batch(REST[:2], pad_token_id=7, side=side)
    texts = kt.generate(model, ids, 5, prefix=kt.prefill(model, BEGUN[:2]), padding_mask=mask)
    expected = kt.generate(model, WHOLE[:2], 5)
    for begun, whole, given, text, right in zip(BEGUN, WHOLE, ids, texts, expected, strict=False):
        in_front = [*begun, *given]
        assert text[: len(in_front)].tolist() == in_front
        assert text[len(in_front) :][:5].tolist() == right[len(whole) :][:5].tolist()


@pytest.mark.parametrize("cache", [True, False])
def test_encoder_decoders_read_the_source_once(cache):
    """The inputs continue the targets."""
    model, sources = translator(), ragged((5, 2, 9), seed=4)
    prefix, nothing = kt.prefill(model, sources, cache=cache), [[]] * 3
    options = {"stop_token_id": [], "cache": cache}
    assert (kt.generate(model, nothing, 4, prefix=prefix, **options) == kt.generate(model, sources, 4, **options)).all()
    begun = kt.generate(model, REST, 3, prefix=prefix, **options)
    for source, rest, text in zip(sources, REST, begun, strict=True):
        assert text[: len(rest) + 3].tolist() == rest + greedy_by_hand(model, [1, *rest], 3, source=source)
    further = kt.prefill(model, REST, prefix=prefix, cache=cache)
    assert (kt.generate(model, nothing, 3, prefix=further, **options) == begun).all()


def test_beams_of_an_encoder_decoder():
    model, sources = translator(), ragged((5, 2, 9), seed=4)
    options = {"num_beams": 3, "stop_token_id": []}
    beams = kt.generate(model, [[]] * 3, 4, prefix=kt.prefill(model, sources), **options)
    assert (beams == kt.generate(model, sources, 4, **options)).all()


class TestConversation:
    def test_turns(self):
        """What was said is not read again, and every reply is that to the whole conversation."""
        model, turns = stacked_gpt(**MASKING), [ragged((4, 2), seed) for seed in range(3)]
        said, prefix = [[3, 4], [5]], None
        prefix = kt.prefill(model, said)
        for turn in turns:
            whole = [[*old, *new] for old, new in zip(said, turn, strict=True)]
            expected = kt.generate(model, whole, 5, stop_token_id=[9, 11], return_dict=True)
            found = kt.generate(model, turn, 5, stop_token_id=[9, 11], prefix=prefix, return_prefix=True)
            assert (found["token_ids"] == expected["token_ids"]).all()
            assert found["lengths"] == expected["lengths"]
            prefix = found["prefix"]
            ends = [len(row) + new for row, new in zip(whole, expected["lengths"], strict=True)]
            said = [row[:end].tolist() for row, end in zip(expected["token_ids"], ends, strict=True)]
            assert [row.tolist() for row in prefix.rows] == said

    def test_every_result_is_continued(self):
        model = stacked_gpt()
        options = {"num_beams": 3, "num_return_sequences": 2, "return_prefix": True}
        for prefix, inputs in ((None, WHOLE), (kt.prefill(model, BEGUN[0]), REST)):
            found = kt.generate(model, inputs, 4, prefix=prefix, **options)
            texts = [row.tolist() for row in found["prefix"].rows]
            assert len(texts) == 6
            again = kt.generate(model, [[3]] * 6, 4, prefix=found["prefix"])
            assert (again == kt.generate(model, [[*text, 3] for text in texts], 4)).all()

    def test_padding_takes_no_room(self):
        """Slots are taken by tokens, not by the shapes that they come in."""
        model, prefix = stacked_gpt(), None
        prefix = kt.prefill(model, [[3, 4, 5]])
        for _ in range(5):
            prefix = kt.prefill(model, [[6, 7]], prefix=prefix)
        assert prefix.kept.used == 13
        positions = keras.ops.convert_to_numpy(prefix.kept.state["cache"]["positions"])
        assert positions[0, :13].tolist() == list(range(13)) and (positions[0, 13:] == -1).all()


def foreign_model():
    ids = keras.Input((None,), dtype="int32")
    x = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None)(ids)
    x = kt.layers.DecoderBlock(2, 32)(keras.layers.LSTM(16, return_sequences=True)(x))
    return keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE)(x))


@pytest.mark.filterwarnings("ignore:generate")
def test_models_without_a_cache_keep_the_tokens_alone():
    model = foreign_model()
    prefix = kt.prefill(model, BEGUN)
    assert prefix.kept is None and prefix.nbytes == 0
    assert (kt.generate(model, REST, 4, prefix=prefix) == kt.generate(model, WHOLE, 4)).all()
    cached = stacked_gpt()
    texts = kt.generate(cached, REST, 4, prefix=kt.prefill(cached, BEGUN), cache=False)
    assert (texts == kt.generate(cached, WHOLE, 4)).all()


class TestRefusals:
    def test_other_models_and_weights(self):
        model = keras.models.clone_model(stacked_gpt())
        prefix = kt.prefill(model, BEGUN)
        with pytest.raises(ValueError, match="another model"):
            kt.generate(stacked_gpt(), REST, 4, prefix=prefix)
        kernel = model.trainable_variables[0]
        before = keras.ops.convert_to_numpy(kernel).copy()
        changed = before.copy()
        changed[1] = before[2]
        kernel.assign(changed)
        with pytest.raises(ValueError, match="before the weights"):
            kt.generate(model, REST, 4, prefix=prefix)
        with pytest.raises(ValueError, match="before the weights"):
            kt.prefill(model, REST, prefix=prefix)
        kernel.assign(before)
        assert (kt.generate(model, REST, 4, prefix=prefix) == kt.generate(model, WHOLE, 4)).all()

    @pytest.mark.parametrize("change", ["fit", "lora", "int8"])
    def test_training_lora_and_quantising(self, change):
        ids = keras.Input((None,), dtype="int32")
        x = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 8, pad_token_id=None)(ids)
        model = keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE)(kt.layers.DecoderBlock(2, 16)(x)))
        prefix = kt.prefill(model, BEGUN)
        if change == "fit":
            model.compile(keras.optimizers.SGD(1e-3), kt.training.MaskedCrossentropy())
            model.fit(np.ones((2, 4), "int32"), np.ones((2, 4), "int32"), verbose=0)
        elif change == "lora":
            model.layers[-1].enable_lora(2)
        else:
            model.quantize("int8")
        with pytest.raises(ValueError, match="before the weights"):
            kt.generate(model, REST, 4, prefix=prefix)

    def test_numbers_of_rows_and_other_things(self):
        model = stacked_gpt()
        prefix = kt.prefill(model, BEGUN)
        with pytest.raises(ValueError, match="3 rows.*2"):
            kt.generate(model, REST[:2], 4, prefix=prefix)
        with pytest.raises(ValueError, match="prefill"):
            kt.generate(model, REST, 4, prefix=BEGUN)
        with pytest.raises(ValueError, match="at least one token"):
            kt.generate(model, REST, 4)
        with pytest.raises(ValueError, match=r"inputs\[0\].*23"):
            kt.generate(model, [[23]] * 3, 4, prefix=prefix)

    def test_learned_positions_end(self):
        model = stacked_gpt(**MASKING)  # 64 positions
        prefix = kt.prefill(model, ragged((50,)))
        assert kt.generate(model, ragged((4,)), 11, prefix=prefix).shape == (1, 65)
        for refused in (
            lambda: kt.generate(model, ragged((4,)), 12, prefix=prefix),
            lambda: kt.generate(model, ragged((4,)), 11, prefix=prefix, return_prefix=True),
            lambda: kt.prefill(model, ragged((15,)), prefix=prefix),
            lambda: kt.prefill(model, ragged((65,))),
        ):
            with pytest.raises(ValueError, match="64 learned positions"):
                refused()
