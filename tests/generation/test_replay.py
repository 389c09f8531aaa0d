"""Steps that are recorded and replayed (on PyTorch; elsewhere they are compiled) give what the layers give."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.generation import compile as compiling
from tests.generation.models import greedy_by_hand, ragged, stacked_gpt, translator


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(compiling._Replayed, "eager_steps", 0)


def recorded(model):
    """The recorded steps of a model's decoders."""
    steps = [decoder.__dict__.get("step") for decoder in model._decoding.decoders.values()]
    return [step for step in steps if isinstance(step, compiling._Replayed)]


def test_replayed_steps_write_the_same_text():
    model, prompts = stacked_gpt.__wrapped__(pad_token_id=0, position="learned"), ragged((5, 2, 4))
    texts = kt.generate(model, prompts, 8)
    for prompt, text in zip(prompts, texts, strict=True):
        assert text[len(prompt) : len(prompt) + 8].tolist() == greedy_by_hand(model, prompt, 8)
    steps = recorded(model)
    assert len(steps) == (keras.config.backend() == "torch") and all(step.recorded for step in steps)


def test_replayed_steps_of_an_encoder_decoder():
    model, sources = translator.__wrapped__(), ragged((5, 2, 4))
    for options in ({}, {"num_beams": 3}):
        texts = kt.generate(model, sources, 6, stop_token_id=[], **options)
        expected = kt.generate(model, sources, 6, stop_token_id=[], cache=False, **options)
        np.testing.assert_array_equal(texts, expected)


def test_steps_whose_scores_are_asked_for_are_not_replayed(monkeypatch):
    """A replay calls no layer, which would leave the scores where coverage looks for them."""
    model, sources = translator.__wrapped__(), ragged((5, 2, 4))
    options = {"stop_token_id": 2, "num_beams": 3, "coverage_penalty": 1.0, "return_dict": True}
    found = kt.generate(model, sources, 6, **options)
    monkeypatch.setattr(compiling._Replayed, "eager_steps", 1000)
    expected = kt.generate(model, sources, 6, **options)
    np.testing.assert_array_equal(found["token_ids"], expected["token_ids"])
    np.testing.assert_allclose(found["scores"], expected["scores"], atol=1e-5)


def test_weights_are_never_out_of_date():
    model, prompt = stacked_gpt.__wrapped__(), [5, 6, 7]
    before = kt.generate(model, [prompt], 8)
    for seed, weight in enumerate(model.trainable_variables):
        weight.assign(weight + 0.5 * np.random.default_rng(seed).normal(size=weight.shape))
    after = kt.generate(model, [prompt], 8)
    assert after[0, 3:].tolist() == greedy_by_hand(model, prompt, 8)
    assert after.tolist() != before.tolist()


def test_layers_that_may_compute_elsewhere_are_not_recorded():
    class Doubled(keras.layers.Layer):
        def call(self, x):
            return x * 2

    ids = keras.Input((None,), dtype="int32")
    table = kt.layers.PositionalEmbedding(23, 16, pad_token_id=None)
    x = kt.layers.DecoderBlock(2, 32)(Doubled()(table(ids)))
    model = keras.Model(ids, table(x, reverse=True))
    texts = kt.generate(model, [[5, 6]], 5)
    assert texts[0, 2:].tolist() == greedy_by_hand(model, [5, 6], 5) and not recorded(model)
