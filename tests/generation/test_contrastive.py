"""Contrastive search against its definition, token for token."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from tests.backend import predict
from tests.generation.models import VOCABULARY_SIZE, ragged, translator

PROMPTS = ragged((5, 1, 9))
SOURCES = ragged((4, 7), seed=1)
ROOM = 24


@functools.cache
def gpt(head="tied", pad_token_id=None, position="sinusoidal"):
    """A decoder-only model and its hidden states, as a user would cut them out."""
    ids = keras.Input((None,), dtype="int32")
    table = kt.layers.PositionalEmbedding(
        VOCABULARY_SIZE, 16, max_sequence_length=64, position=position, pad_token_id=pad_token_id
    )
    hidden = kt.layers.DecoderBlock(2, 32, norm_placement="pre")(table(ids))
    logits = table(hidden, reverse=True) if head == "tied" else keras.layers.Dense(VOCABULARY_SIZE)(hidden)
    model, random = keras.Model(ids, logits), np.random.default_rng(0)
    model.set_weights([w + random.normal(0, 0.3, w.shape) for w in model.get_weights()])  # far enough from each other
    return model, keras.Model(ids, hidden)


def contrastive_by_hand(forward, prompt, max_new_tokens, alpha, top_k, stop=(), masked=None, process=None):
    """New tokens of one row; `forward` gives logits (B, T, V) and hidden states (B, T, D) of id lists of one length."""
    row = list(prompt)
    logits = forward([row])[0][0, -1]
    for _ in range(max_new_tokens):
        logits = logits.astype("float64")
        logits = logits if process is None else process(row, logits)
        probabilities = np.exp(logits - logits.max())
        probabilities /= probabilities.sum()
        is_token = np.asarray(row) != masked
        candidates = np.argsort(-probabilities, kind="stable")[:top_k].tolist()
        all_logits, all_states = forward([[*row, token] for token in candidates])
        scores = []
        for token, states in zip(candidates, all_states, strict=True):
            states = states / np.linalg.norm(states, axis=-1, keepdims=True)
            similarity = max((states[:-1] @ states[-1])[is_token], default=0.0)
            score = (1 - alpha) * probabilities[token] - alpha * similarity
            scores.append(score if logits[token] > -np.inf else -np.inf)
        best = int(np.argmax(scores))
        row.append(candidates[best])
        logits = all_logits[best, -1]
        if row[-1] in stop:
            break
    return row[len(prompt) :]


def padded(rows):
    return ops.convert_to_tensor([row + [3] * (ROOM - len(row)) for row in rows], "int32")


def forward_of(model, hidden):
    return lambda rows: [predict(x, padded(rows))[:, : len(rows[0])] for x in (model, hidden)]


@pytest.mark.parametrize("head, cache", [("tied", "auto"), ("dense", "auto"), ("tied", False)])
def test_decoder_only_as_by_hand(head, cache):
    model, hidden = gpt(head)
    forward = forward_of(model, hidden)
    found = kt.generate(model, PROMPTS, 8, penalty_alpha=0.6, top_k=4, cache=cache, return_dict=True)
    for i, prompt in enumerate(PROMPTS):
        expected = contrastive_by_hand(forward, prompt, 8, 0.6, 4)
        assert found["token_ids"][i, len(prompt) : len(prompt) + 8].tolist() == expected
        logits = forward([prompt + expected])[0][0]
        log_probs = logits - np.log(np.exp(logits.astype("float64")).sum(-1, keepdims=True))
        expected = log_probs[np.arange(len(prompt) - 1, len(prompt) + 7), expected]
        np.testing.assert_allclose(found["log_probs"][i], expected, atol=1e-4)
    assert (found["token_ids"] != kt.generate(model, PROMPTS, 8)).any()


@pytest.mark.parametrize("cache", ["auto", False])
def test_encoder_decoder_as_by_hand(cache):
    model = translator()
    states = kt.models.encoder_from_ids(model)(model.inputs[0])
    target = model.get_layer("target_embedding")(model.inputs[1])
    hidden = keras.Model(model.inputs, model.get_layer("decoder")([target, states]))
    found = kt.generate(model, SOURCES, 6, penalty_alpha=0.7, top_k=5, cache=cache)
    for source, text in zip(SOURCES, found, strict=True):

        def forward(rows, source=source):
            inputs = {"encoder_token_ids": np.asarray([source] * len(rows)), "decoder_token_ids": padded(rows)}
            return [predict(x, inputs)[:, : len(rows[0])] for x in (model, hidden)]

        expected = contrastive_by_hand(forward, [1], 6, 0.7, 5, stop=[2], masked=0)
        assert text[: len(expected)].tolist() == expected and (text[len(expected) :] == 0).all()


def test_without_a_penalty_or_a_choice_it_is_greedy():
    model = gpt()[0]
    expected = kt.generate(model, PROMPTS, 60)  # the cache is doubled on the way
    for options in ({"penalty_alpha": 0.0, "top_k": 4}, {"penalty_alpha": 0.9, "top_k": 1}):
        assert (kt.generate(model, PROMPTS, 60, **options) == expected).all()


def test_ids_that_the_model_masks_are_no_text_to_compare_with():
    model, hidden = gpt("tied", pad_token_id=0)
    prompts = [[5, 0, 6, 7], [5, 6]]

    def often_zero(logits, text):
        return 0.3 * logits + 6.0 * ops.one_hot(0, VOCABULARY_SIZE)

    def process(row, logits):
        return 0.3 * logits + 6.0 * (np.arange(VOCABULARY_SIZE) == 0)

    options = {"penalty_alpha": 0.6, "top_k": 3, "logits_processors": [often_zero]}
    texts = kt.generate(model, prompts, 8, **options)
    for prompt, text in zip(prompts, texts, strict=True):
        expected = contrastive_by_hand(forward_of(model, hidden), prompt, 8, 0.6, 3, masked=0, process=process)
        assert text[len(prompt) : len(prompt) + 8].tolist() == expected
    assert (texts[:, 4:10] == 0).any()


def test_banned_tokens_are_no_candidates():
    model, hidden = gpt("tied")

    def process(row, logits):
        return np.where(np.isin(np.arange(VOCABULARY_SIZE), [5, 6]), logits, -np.inf)

    texts = kt.generate(model, PROMPTS, 6, penalty_alpha=0.9, top_k=50, allowed_token_ids=[5, 6])
    for prompt, text in zip(PROMPTS, texts, strict=True):
        expected = contrastive_by_hand(forward_of(model, hidden), prompt, 6, 0.9, 50, process=process)
        assert text[len(prompt) : len(prompt) + 6].tolist() == expected


def test_stops_batches_and_streams():
    model = gpt()[0]
    options = {"penalty_alpha": 0.6, "top_k": 4}
    free = kt.generate(model, PROMPTS, 12, **options)
    options["stop_token_id"] = int(free[0, 5 + 3])
    found = kt.generate(model, PROMPTS, 12, return_dict=True, **options)
    first = free[0, 5:].tolist().index(options["stop_token_id"])
    assert found["lengths"][0] == first + 1
    assert (kt.generate(model, PROMPTS, 12, batch_size=1, **options) == found["token_ids"]).all()
    pieces = list(kt.stream(model, PROMPTS, 12, chunk_size=4, **options))
    for i, length in enumerate(found["lengths"]):
        whole = [token for piece in pieces for token in piece[i]]
        assert whole == found["token_ids"][i, len(PROMPTS[i]) : len(PROMPTS[i]) + length].tolist()


def test_the_model_itself_stays_as_it_is(tmp_path):
    for model in (gpt("tied")[0], translator(share_embeddings=None)):
        summary, config = model.count_params(), model.get_config()
        prompts = PROMPTS if len(model.inputs) == 1 else SOURCES
        expected = kt.generate(model, prompts, 5, penalty_alpha=0.6, top_k=4)
        assert model.count_params() == summary and model.get_config() == config
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        assert (kt.generate(loaded, prompts, 5, penalty_alpha=0.6, top_k=4) == expected).all()
        ids = np.asarray([[4, 5, 6, 7]])
        inputs = ids if len(model.inputs) == 1 else {"encoder_token_ids": ids, "decoder_token_ids": ids}
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        before = model.get_weights()
        model.fit(inputs, ids, verbose=0)
        assert any((old != new).any() for old, new in zip(before, model.get_weights(), strict=True))
        loaded.set_weights(model.get_weights())
        trained = kt.generate(loaded, prompts, 5, penalty_alpha=0.6, top_k=4)
        assert (kt.generate(model, prompts, 5, penalty_alpha=0.6, top_k=4) == trained).all()


def test_errors_say_what_is_wrong():
    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = gpt()[0]

        def call(self, token_ids):
            return self.inner(token_ids)

    subclassed = Subclassed()
    ids = keras.Input((None,), dtype="int32")
    scaled = keras.Model(ids, keras.layers.Activation("tanh")(gpt()[0](ids)))
    both = {"penalty_alpha": 0.6, "top_k": 4}
    for model, options, message in (
        (gpt()[0], {"penalty_alpha": 0.6}, "top_k=None"),
        (gpt()[0], {"sampler": "contrastive", "top_k": 4}, "penalty_alpha=None"),
        (gpt()[0], {"penalty_alpha": 1.5, "top_k": 4}, "penalty_alpha=1.5"),
        (gpt()[0], {**both, "temperature": 0.5}, "temperature"),
        (gpt()[0], {**both, "num_beams": 2}, "num_beams"),
        (gpt()[0], {**both, "sampler": "sample"}, "sampler='sample'"),
        (gpt()[0], {**both, "num_return_sequences": 2}, "num_return_sequences=2"),
        (gpt()[0], {**both, "assistant_model": gpt()[0]}, "assistant_model.*contrastive"),
        (gpt(position="learned")[0], {**both, "max_new_tokens": 56}, "64 learned"),
        (subclassed, both, "(?s)hidden states.*functional"),
        (scaled, both, "Activation"),
    ):
        with pytest.raises(ValueError, match=message):
            kt.generate(model, PROMPTS, **{"max_new_tokens": 3, "cache": False, **options})
