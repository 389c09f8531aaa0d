"""Sizes, orders and values at which decoding had gone wrong, or could: each gives what the full forward gives."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from tests.generation.models import VOCABULARY_SIZE, assert_greedy, ragged, stacked_gpt, translator
from tests.generation.test_decoder_inputs import Letters, Marking
from tests.generation.test_foreign_layers import Positions, stack


@pytest.mark.parametrize("begun, rest", [(40, 1), (33, 0), (47, 3), (70, 2), (127, 0)])
def test_a_long_prefix_and_a_short_text_behind_it(begun, rest):
    """The cache that was made for it is larger than what the texts would need."""
    model, (beginning, behind) = stacked_gpt(), ragged((begun, rest), seed=4)
    prefix = kt.prefill(model, beginning)
    texts = kt.generate(model, [behind], 4, prefix=prefix)
    assert_greedy(model, [beginning + behind], texts, 4)


@functools.cache
def windowed(window):
    """A bias made in the graph, for an attention layer with a window."""
    ids = keras.Input((None,), dtype="int32")
    x = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None)(ids)
    bias = kt.layers.AlibiBias(2)(x)
    attention = kt.layers.MultiHeadAttention(2, 8, sliding_window=window)
    x = kt.layers.DecoderBlock(attention=attention, intermediate_dim=16)(x, position_bias=bias)
    return keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE)(x))


@pytest.mark.parametrize("window", [2, 8, 128])
def test_a_bias_of_the_graph_and_a_window(window):
    """Slots of a window lie in another order than those that the bias follows."""
    model, prompts = windowed(window), ragged((5, 2), seed=5)
    with pytest.warns(UserWarning, match="sliding_window.*position_bias"):
        texts = kt.generate(model, prompts, 5)
    assert_greedy(model, prompts, texts, 5)


def test_a_stream_that_finds_out_late_that_there_is_no_cache(monkeypatch):
    """What was given already does not come twice."""
    from keras_transformer.generation.loop import Loop
    from keras_transformer.ops.cache import CannotCache

    model, prompts = keras.models.clone_model(stacked_gpt()), ragged((3, 2), seed=6)
    whole, calls = Loop.stream, []

    def interrupted(self, *args, **kwargs):
        for number, part in enumerate(whole(self, *args, **kwargs)):
            if not calls and number == 2:
                calls.append(number)
                raise CannotCache("this was tried")
            yield part

    monkeypatch.setattr(Loop, "stream", interrupted)
    with pytest.warns(UserWarning, match="this was tried"):
        pieces = list(kt.stream(model, prompts, 7, stop_token_id=[], chunk_size=2))
    texts = [prompt + sum((piece[row] for piece in pieces), []) for row, prompt in enumerate(prompts)]
    assert calls and [len(text) for text in texts] == [10, 9]
    assert_greedy(model, prompts, kt.generate(model, prompts, 7, stop_token_id=[]), 7)
    assert texts == [row[:n].tolist() for row, n in zip(kt.generate(model, prompts, 7, stop_token_id=[]), (10, 9))]


def test_contrastive_search_reads_the_last_token_too():
    """Of the 20 places of a table of the user's 18 are taken by the prompt."""
    model = stack(Positions())
    options = {"penalty_alpha": 0.6, "top_k": 4}
    (prompt,) = ragged((18,), seed=7)
    assert kt.generate(model, [prompt], 2, **options).shape == (1, 20)
    with pytest.raises(ValueError, match="18 tokens and `max_new_tokens` is 3, of which the last.*has 20 positions"):
        kt.generate(model, [prompt], 3, **options)
    assert kt.generate(model, [prompt], 3).shape == (1, 21)


def cycle(broken_row=None, value=float("nan")):
    """Writes 0, 1, 2, 3 and again; behind one token the logits are no numbers."""
    ids = keras.Input((None,), dtype="int32")
    table = keras.layers.Embedding(4, 4)
    model = keras.Model(ids, table(ids))
    weights = 5.0 * np.eye(4)[[1, 2, 3, 0]]
    if broken_row is not None:
        weights[broken_row] = value
    table.set_weights([weights])
    return model


def test_drafts_whose_logits_are_no_numbers():
    """The last round of a text is looked at as a whole, and what a broken model drafts is not taken."""
    with pytest.raises(ValueError, match="NaN or infinite"):
        kt.generate(cycle(3), [[2, 3, 0, 1]], 3, prompt_lookup_num_tokens=2)
    broken = cycle(slice(None))
    options = {"temperature": 0.05, "seed": 1}
    texts = kt.generate(cycle(), [[0, 1]], 6, assistant_model=broken, **options)
    assert texts.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3]]


def force_by_infinity(logits, text):
    return ops.where(ops.arange(4) == 1, float("inf"), logits)


def ban_by_zero(logits, text):
    return ops.where(ops.arange(4) == 1, float("-inf"), logits) * ops.cast(ops.arange(4) != 1, "float32")


WAYS = [{}, {"temperature": 1.0}, {"num_beams": 2}, {"prompt_lookup_num_tokens": 2}]


@pytest.mark.parametrize("processor", [force_by_infinity, ban_by_zero])
@pytest.mark.parametrize("options", WAYS, ids=str)
def test_processors_that_make_no_numbers(processor, options):
    with pytest.raises(ValueError, match="`logits_processors` made logits NaN"):
        kt.generate(cycle(), [[0, 1]], 4, logits_processors=processor, **options)


class Unbuilt(keras.Model):
    """Makes its embedding, which masks 0, when it is first called."""

    def build(self, shape):
        self.embedding = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16)
        self.block = kt.layers.DecoderBlock(2, 32)
        self.dense = keras.layers.Dense(VOCABULARY_SIZE)

    def call(self, ids):
        return self.dense(self.block(self.embedding(ids)))


def test_padding_at_the_first_call_of_a_model_that_was_never_built():
    model = Unbuilt()
    padded = kt.generate(model, np.array([[5, 6, 0, 0], [5, 6, 7, 8]]), 3)
    assert padded[0, 4:].tolist() == kt.generate(model, [[5, 6]], 3)[0, 2:].tolist()
    assert padded[0, :4].tolist() == [5, 6, 0, 0]


class Inner(keras.layers.Layer):
    """A user's layer that holds the embedding, in a list."""

    def __init__(self, **options):
        super().__init__()
        self.parts = [kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, **options)]

    def call(self, ids):
        return self.parts[0](ids)

    def compute_mask(self, ids, mask=None):
        return self.parts[0].compute_mask(ids)

    def compute_output_shape(self, shape):
        return (*shape, 16)


def test_an_embedding_inside_a_layer_of_the_users():
    """What it masks is padding, and how many positions it has is known."""
    ids = keras.Input((None,), dtype="int32")
    x = kt.layers.DecoderBlock(2, 32)(Inner(position="learned", max_sequence_length=12)(ids))
    model = keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE)(x))
    left = kt.generate(model, np.array([[0, 0, 5, 6], [5, 6, 7, 8]]), 3)
    assert left[0, 4:].tolist() == kt.generate(model, [[5, 6]], 3)[0, 2:].tolist()
    with pytest.raises(ValueError, match="has 12 learned positions"):
        kt.generate(model, [[5, 6]], 12)


def test_strings_that_go_on_in_a_target():
    """The marks that a tokenizer adds do not stand in the middle of it."""
    model, told = translator(), {"stop_token_id": [2], "bad_words_ids": [0, 1, 2]}
    texts = []
    for tokenizer in (Letters(), Marking()):
        prefix = kt.prefill(model, Letters().encode(["abc"]))
        texts.append(kt.generate(model, ["ab"], 4, prefix=prefix, tokenizer=tokenizer, **told))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("length_penalty", [-5.0, -2.0])
def test_a_length_penalty_below_zero(length_penalty):
    """Sums times a large number are scores as others."""
    model, prompts = stacked_gpt(), ragged((3,), seed=8)
    found = kt.generate(model, prompts, 40, num_beams=2, length_penalty=length_penalty, return_dict=True)
    assert found["lengths"] == [40] and np.isfinite(found["scores"]).all()
    short = kt.generate(model, prompts, 40, num_beams=2, length_penalty=0.0, return_dict=True)
    np.testing.assert_allclose(found["scores"], short["scores"] * 40.0**-length_penalty, rtol=1e-4)


def test_a_temperature_near_zero_is_greedy():
    model, prompts = stacked_gpt(), ragged((3, 5), seed=9)
    cold = kt.generate(model, prompts, 5, temperature=1.2e-38, seed=1)
    assert (cold == kt.generate(model, prompts, 5)).all()
    for name in ("temperature", "top_p", "typical_p"):
        with pytest.raises(ValueError, match=f"`{name}` must be"):
            kt.generate(model, prompts, 5, **{name: 1e-46})


class Unhashable:
    __hash__ = None

    def __call__(self, logits, text):
        return logits


BAD = {
    "no model": (lambda: None, [[1]], {}, "`model` must be"),
    "a name": (lambda: "model", [[1]], {}, "`model` must be"),
    "words in an array": (stacked_gpt, [[1]], {"bad_words_ids": np.array([[7, 8]])}, "`bad_words_ids` must be"),
    "a number of a target": (translator, [[1]], {"decoder_inputs": 5}, "`decoder_inputs` must be"),
    "no text": (stacked_gpt, None, {"tokenizer": Letters()}, "`inputs` must be a string"),
    "unhashable": (stacked_gpt, [[1]], {"logits_processors": Unhashable()}, "hash"),
    "no cache": (stacked_gpt, [[1]], {"cache": False, "cache_dtype": "int8"}, "`cache_dtype`.*cache=False"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be(name):
    model, inputs, options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        kt.generate(model(), inputs, 3, **options)


def test_a_model_of_several_outputs():
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, 4)(ids)
    model = keras.Model(ids, [keras.layers.Dense(9)(x), keras.layers.Dense(9)(x)])
    with pytest.raises(ValueError, match="Received: 2 outputs"):
        kt.generate(model, [[1]], 3)


def test_options_of_generate_alone():
    with pytest.raises(ValueError, match="`batch_size` is of `generate`"):
        kt.stream(stacked_gpt(), [[1]], 3, batch_size=2)


def test_a_mask_of_one_row_and_a_bound_method():
    model = stacked_gpt()
    expected = kt.generate(model, [[5, 6]], 3)[0, 2:].tolist()
    row = kt.generate(model, np.array([5, 6, 7]), 3, padding_mask=np.array([1, 1, 0]))
    assert row[0, 3:].tolist() == expected

    class Wrapped:
        def logits(self, ids):
            return model(ids)

    assert kt.generate(Wrapped().logits, [[5, 6]], 3)[0, 2:].tolist() == expected


class DropsTheMask(keras.layers.Layer):
    def call(self, x):
        return 1.0 * x


def two_masks(between):
    """Two blocks, of which the second sees other tokens than the first."""
    ids = keras.Input((None,), dtype="int32")
    x = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=0 if between == "dropped" else None)(ids)
    x = kt.layers.DecoderBlock(2, 16)(x)
    if between == "dropped":
        x = kt.layers.DecoderBlock(2, 16)(DropsTheMask()(x))
    else:
        x = kt.layers.DecoderBlock(2, 16)(x, padding_mask=ops.not_equal(ids, 7))
    return keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE)(x))


@pytest.mark.parametrize("between", ["dropped", "given"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"prompt_lookup_num_tokens": 2}], ids=str)
def test_masks_that_differ_by_layer(between, options):
    """An id that one layer's mask hides in the middle of a text is there for the others."""
    model, prompts = two_masks(between), [[5, 0, 6, 7, 8], [7, 9], [6, 7, 0, 0, 7, 7, 5]]
    written = kt.generate(model, prompts, 7, stop_token_id=[], cache=True, **options)
    assert (written == kt.generate(model, prompts, 7, stop_token_id=[], cache=False, **options)).all()
    if not options:
        cache = kt.prefill(model, prompts).kept.state["cache"]
        assert len(cache["hidden"]) == 1 and len(cache["layers"]) == 2  # the other one has no mask


def test_what_is_hidden_is_kept_for_layers_that_have_a_mask():
    cache = kt.prefill(stacked_gpt(pad_token_id=0, num_layers=2), [[5, 0, 6]]).kept.state["cache"]
    assert list(cache["hidden"]) == ["0", "1"]
    assert kt.prefill(stacked_gpt(num_layers=2), [[5, 0, 6]]).kept.state["cache"]["hidden"] == {}
