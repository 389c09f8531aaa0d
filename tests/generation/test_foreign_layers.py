"""What mixes positions and keeps no cache is found out, named, and decoded right all the same; or refused."""

import re
import warnings

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from tests.backend import predict
from tests.generation.models import VOCABULARY_SIZE, assert_greedy, ragged

PROMPTS = ragged((9, 2, 12))
NEW_TOKENS = 6


@keras.saving.register_keras_serializable("test_foreign_layers")
class RunningSum(keras.layers.Layer):
    def call(self, x):
        return x + 0.3 * ops.cumsum(x, axis=1)


class Positions(keras.layers.Layer):
    """A table of 20 positions, as users write it."""

    def build(self, shape):
        self.table = keras.layers.Embedding(20, shape[-1])

    def call(self, x):
        return x + self.table(ops.arange(ops.shape(x)[1]))


def running_sum(x):
    return ops.cumsum(x, axis=1)


def keras_attention(x, **options):
    return x + keras.layers.MultiHeadAttention(2, 8, name="mixer")(x, x, **options)


def pooled_by_hand(x):
    x = keras.layers.ZeroPadding1D((2, 0))(x)
    return keras.layers.AveragePooling1D(3, strides=1, name="mixer")(x)


def block(x, **options):
    return kt.layers.DecoderBlock(2, 32, **options)(x)


CAUSAL = {  # a function of vectors (B, T, D), and what the warning names
    "LSTM": (lambda x: keras.layers.LSTM(16, return_sequences=True, name="mixer")(x), "mixer .LSTM"),
    "convolution": (lambda x: keras.layers.Conv1D(16, 3, padding="causal", name="mixer")(x), "mixer .Conv1D"),
    "convolution that looks far back": (
        lambda x: keras.layers.Conv1D(16, 2, padding="causal", dilation_rate=10, name="mixer")(x),
        "mixer .Conv1D",
    ),
    "Keras' attention": (lambda x: keras_attention(x, use_causal_mask=True), "mixer .MultiHeadAttention"),
    "pooling": (pooled_by_hand, "mixer .AveragePooling1D"),
    "operations": (lambda x: ops.cumsum(x, axis=1) / ops.cumsum(ops.ones_like(x), axis=1), "Cumsum"),
    "layer of the user": (lambda x: RunningSum(name="mixer")(x), "mixer .RunningSum"),
    "activation": (lambda x: keras.layers.Activation(running_sum, name="mixer")(x), "mixer .Activation"),
    "norm of a block": (lambda x: block(x, norm=RunningSum()), "attention_norm .RunningSum"),
    "positions of the user": (lambda x: Positions(name="mixer")(x), "mixer .Positions"),
}

# What goes on behind the first token is the same for all: of these it is tested, of the others in one token only.
IN_FULL = ("convolution that looks far back", "Keras' attention", "positions of the user")

BOTH_WAYS = {
    "Keras' attention": keras_attention,
    "convolution": lambda x: keras.layers.Conv1D(16, 3, padding="same")(x),
    "recurrence": lambda x: keras.layers.Bidirectional(keras.layers.GRU(8, return_sequences=True))(x),
    "pooling": lambda x: x + ops.mean(x, axis=1, keepdims=True),
    "softmax over time": lambda x: keras.layers.Softmax(axis=1)(x),
    "norm over time": lambda x: keras.layers.UnitNormalization(axis=1)(x),
    "norm of a block": lambda x: block(x, norm=keras.layers.GroupNormalization(1)),
    "our own block": lambda x: kt.layers.EncoderBlock(2, 32)(x),
}


def stack(mix, length=None, **table):
    """A model with `mix` in front of a block of ours."""
    ids = keras.Input((length,), dtype="int32")
    x = kt.layers.PositionalEmbedding(VOCABULARY_SIZE, 16, pad_token_id=None, **table)(ids)
    return keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE)(block(mix(x))))


def said(model, new_tokens=NEW_TOKENS, **options):
    """The texts, and the warnings of decoding."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        texts = kt.generate(model, PROMPTS, new_tokens, **options)
    return texts, [str(x.message) for x in caught if "in full" in str(x.message)]


@pytest.mark.parametrize("kind", CAUSAL)
def test_right_and_said_once(kind):
    mix, name = CAUSAL[kind]
    model = stack(mix)
    new_tokens = NEW_TOKENS if kind in IN_FULL else 1
    texts, messages = said(model, new_tokens)
    assert_greedy(model, PROMPTS, texts, new_tokens)
    assert len(messages) == 1
    assert re.search(f"(logits differ by .* of the largest|step of one token fails).*{name}", messages[0])
    again, messages = said(model, new_tokens)
    assert (again == texts).all() and not messages


@pytest.mark.parametrize("kind", ["convolution", "operations"])
def test_with_and_without_a_cache(kind):
    """It is refused with the same reason, or nothing is said."""
    mix, name = CAUSAL[kind]
    model = stack(mix)
    with pytest.raises(ValueError, match=f"cannot be decoded through a cache: .*logits differ by .*{name}"):
        kt.generate(model, PROMPTS, NEW_TOKENS, cache=True)
    texts, messages = said(model, cache=False)
    assert_greedy(model, PROMPTS, texts, NEW_TOKENS)
    assert not messages


@pytest.mark.parametrize("kind", BOTH_WAYS)
def test_what_looks_both_ways_is_refused(kind):
    model = stack(BOTH_WAYS[kind])
    with pytest.raises(ValueError, match="both ways.*causal"):
        kt.generate(model, PROMPTS, NEW_TOKENS)
    if kind == "our own block":
        with pytest.raises(ValueError, match="both ways.*causal"):
            kt.generate(model, PROMPTS, NEW_TOKENS, cache=False)


def test_a_fixed_length_that_looks_both_ways_is_refused():
    with pytest.raises(ValueError, match="both ways.*causal"):
        kt.generate(stack(BOTH_WAYS["our own block"], length=20), PROMPTS, NEW_TOKENS)


def test_a_fixed_length_says_what_to_declare():
    model = stack(lambda x: x, length=18)
    texts, messages = said(model)
    assert_greedy(stack_again(model), PROMPTS, texts, NEW_TOKENS)
    assert "fixed length 18" in messages[0] and "keras.Input((None,))" in messages[0]
    for arguments in (([[5] * 19], 1), (PROMPTS, 8)):
        with pytest.raises(ValueError, match="18 places"):
            kt.generate(model, *arguments)


def stack_again(model):
    """The same layers behind an input of any length."""
    ids = keras.Input((None,), dtype="int32")
    x = ids
    for layer in model.layers[1:]:
        x = layer(x)
    return keras.Model(ids, x)


@pytest.mark.parametrize("places, warned", [(4, 1), (20, 0)])
def test_a_short_table_of_learned_positions(places, warned):
    """What is tried on a model before fits into its table."""
    prompts = [[5, 6], [7]]
    model = stack(RunningSum() if warned else Scale(), position="learned", max_sequence_length=places)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        texts = kt.generate(model, prompts, 3)
    assert len([x for x in caught if "in full" in str(x.message)]) == warned
    assert_greedy(model, prompts, texts, 3)


class Scale(keras.layers.Layer):
    def call(self, x):
        return x * 2.0


def test_an_encoder_decoder_with_short_tables_and_a_layer_of_the_user():
    """Through the cache, where that layer treats each position alone, and in full where it does not."""
    model = kt.models.transformer(
        VOCABULARY_SIZE, VOCABULARY_SIZE, 1, 2, 16, 32, start_token_id=1, position="learned", max_sequence_length=5
    )
    for layer, warned in ((Scale(), 0), (RunningSum(), 1)):
        longer = keras.Model(model.inputs, layer(model.output))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            texts = kt.generate(longer, [[5, 6, 7], [8]], 4, start_token_id=1)
        assert len([x for x in caught if "in full" in str(x.message)]) == warned
        targets = np.pad(texts[:, :-1], [(0, 0), (1, 0)], constant_values=1)
        assert (texts == predict(longer, [np.asarray([[5, 6, 7], [8, 0, 0]]), targets]).argmax(-1)).all()


class Mates(keras.layers.Layer):
    def call(self, x):
        return x + ops.max(x, axis=0, keepdims=True)


class Share(keras.layers.Layer):
    """Causal, but each token is divided by the number of all."""

    def call(self, x):
        return ops.cumsum(x, axis=1) / ops.cast(ops.shape(x)[1], x.dtype)


@pytest.mark.parametrize("layer, reason", [(Mates, "other rows of the batch"), (Share, "room behind a text")])
@pytest.mark.parametrize("cache", ["auto", False])
@pytest.mark.filterwarnings("ignore:generate")
def test_layers_whose_texts_would_depend_on_how_they_are_computed(layer, reason, cache):
    with pytest.raises(ValueError, match=rf"{reason}.*\({layer.__name__}\)"):
        kt.generate(stack(layer()), [[5, 6], [7]], 4, cache=cache)


def test_more_tokens_than_learned_positions():
    model = stack(lambda x: x, position="learned", max_sequence_length=12)
    with pytest.raises(ValueError, match=r"`inputs\[1\]` has 13 tokens, but the model has 12 learned positions"):
        kt.generate(model, [[5], [5] * 13], 1)
    with pytest.raises(ValueError, match="10 tokens and `max_new_tokens` is 4, but the model has 12 learned positions"):
        kt.generate(model, [[5] * 10], 4)
    assert kt.generate(model, [[5] * 10], 3).shape == (1, 13)  # the last one is not read any more


def test_more_tokens_than_positions_of_the_user():
    """Nobody sees such a table; the model tells when it is tried."""
    model = stack(Positions())
    assert kt.generate(model, [[5] * 18], 3).shape == (1, 21)
    with pytest.raises(ValueError, match="18 tokens and `max_new_tokens` is 4, but the model has 20 positions"):
        kt.generate(model, [[5] * 18], 4)


def test_an_unknown_strategy_lists_those_that_exist():
    with pytest.raises(ValueError, match="'greedy', 'sample', 'beam'.*'magic'"):
        kt.generate(stack(lambda x: x), PROMPTS, 4, sampler="magic")
    with pytest.raises(ValueError, match="'heat'.*temperature"):
        kt.generate(stack(lambda x: x), PROMPTS, 4, heat=2.0)
