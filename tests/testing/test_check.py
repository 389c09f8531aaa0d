"""The self-check passes what is right and names what is wrong."""

import re

import keras
import numpy as np
import pytest

import keras_transformer as kt


def random_ids(seed=0):
    """Of the shape that `check` itself makes: on JAX everything of another shape is compiled anew, one by one."""
    return np.random.default_rng(seed).integers(1, 30, (3, 7))


def embed():
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    return ids, kt.layers.PositionalEmbedding(30, 16)(ids)


@pytest.mark.parametrize("options", [{}, {"norm_placement": "pre", "share_embeddings": None, "pad_token_id": None}])
def test_the_transformer_passes(options):
    report = kt.testing.check(kt.models.transformer(30, 40, 1, 2, 16, 32, dropout=0.2, **options))
    tried = {name for name, value in report.items() if isinstance(value, float)}
    assert tried >= {"batch", "future", "compiled", "saved", "cache"}
    assert ("padding" in tried) == ("pad_token_id" not in options)


def test_an_encoder_passes_and_is_called_one():
    ids, x = embed()
    report = kt.testing.check(keras.Model(ids, kt.layers.EncoderBlock(2, 32)(x)))
    assert report["future"] == report["cache"] == "the model looks both ways"
    with pytest.raises(ValueError, match="`future`"):
        kt.testing.check(keras.Model(ids, kt.layers.EncoderBlock(2, 32)(x)), causal=True)


@pytest.mark.parametrize("spoil", [lambda x: x * 2.0, lambda x: x + x])
def test_the_spot_where_the_mask_is_lost_is_named(spoil):
    ids, x = embed()
    lost = spoil(x)
    model = keras.Model(ids, kt.layers.EncoderBlock(2, 32)(lost))
    with pytest.raises(ValueError, match="`padding`.*mask ends at '(multiply|add)"):
        kt.testing.check(model)


def test_keras_add_keeps_the_mask():
    ids, x = embed()
    x = keras.layers.Add()([x, kt.layers.EncoderBlock(2, 32)(x)])
    kt.testing.check(keras.Model(ids, kt.layers.EncoderBlock(2, 32)(x)))


def test_a_layer_that_mixes_positions_breaks_the_cache():
    ids, x = embed()
    x = keras.layers.GRU(16, return_sequences=True)(kt.layers.DecoderBlock(2, 32)(x))
    with pytest.raises(ValueError, match=r"`cache`.*\(GRU\)"):
        kt.testing.check(keras.Model(ids, x))


def language_model(mix, length=None):
    """Logits from `mix` over embedded ids."""
    ids = keras.Input((length,), dtype="int32")
    x = kt.layers.PositionalEmbedding(30, 16, pad_token_id=None)(ids)
    return keras.Model(ids, keras.layers.Dense(30)(mix(x)))


def attend_nearby(x):
    """Self-attention with a bias for each distance, which is made for one length of text."""
    return kt.layers.MultiHeadAttention(2, 8)(x, use_causal_mask=True, position_bias=np.ones((1, 2, 1, 1), "float32"))


@keras.saving.register_keras_serializable(package="tests")
class Window(keras.layers.Layer):
    """Stands for a layer that mixes positions and has a smallest length."""

    def call(self, x):
        if x.shape[1] == 1:
            raise RuntimeError("window too small")
        return x


@pytest.mark.parametrize(
    "mix, reason",
    [
        (lambda x: keras.layers.Dense(8)(x), "none of its layers keeps a cache"),
        (lambda x: keras.layers.LSTM(8, return_sequences=True)(x), "none of its layers keeps a cache"),
        (attend_nearby, "position_bias"),
        (lambda x: Window()(kt.layers.DecoderBlock(2, 32)(x)), "a single token .RuntimeError: .*Window"),
    ],
    ids=["dense", "lstm", "position_bias", "foreign"],
)
def test_what_cannot_be_cached_is_told_and_is_no_fault(mix, reason):
    model = language_model(mix)
    report = kt.testing.check(model, causal=True)
    assert report["future"] <= 1e-4
    assert re.search(reason, report["cache"])


def test_a_fixed_length_is_told():
    report = kt.testing.check(language_model(kt.layers.DecoderBlock(2, 32), length=10), causal=True)
    assert report["future"] <= 1e-4
    assert report["cache"] == "the input has the fixed length 10"


@pytest.mark.parametrize("inputs", [None, random_ids()], ids=["random", "full"])
def test_a_short_table_of_positions_is_kept_to(inputs):
    ids = keras.Input((None,), dtype="int32")
    x = kt.layers.PositionalEmbedding(30, 16, max_sequence_length=7, position="learned")(ids)
    padding = kt.testing.check(keras.Model(ids, kt.layers.EncoderBlock(2, 32)(x)), inputs)["padding"]
    assert padding == "all learned positions are taken" if inputs is not None else padding <= 1e-4


def test_a_classifier_has_no_future_to_look_into():
    ids, x = embed()
    x = keras.layers.GlobalAveragePooling1D()(kt.layers.EncoderBlock(2, 32)(x))
    report = kt.testing.check(keras.Model(ids, keras.layers.Dense(2)(x)))
    assert report["padding"] <= 1e-4
    assert report["future"] == report["cache"] == "the model has no output for each token"


def test_the_difference_through_the_cache_is_measured():
    model = language_model(kt.layers.DecoderBlock(2, 32))
    assert 0 < kt.testing.check(model, random_ids())["cache"] <= 1e-4


def test_a_second_input_that_is_no_text_needs_inputs():
    model = kt.models.bert("tiny", vocabulary_size=9, with_segments=True)
    with pytest.raises(ValueError, match="`inputs` is needed"):
        kt.testing.check(model)


def test_a_model_that_shows_no_embedding_needs_inputs():
    inputs = keras.Input((None, 8))
    with pytest.raises(ValueError, match="`inputs` is needed"):
        kt.testing.check(keras.Model(inputs, kt.layers.EncoderBlock(2, 16)(inputs)))


def test_two_inputs_of_any_name_and_lists_of_arrays():
    tokens, kinds = (keras.Input((None,), dtype="int32") for _ in range(2))
    x = kt.layers.PositionalEmbedding(30, 16)(tokens) + keras.layers.Embedding(30, 16)(kinds)
    model = keras.Model([tokens, kinds], kt.layers.EncoderBlock(2, 32)(x))
    arrays = [random_ids(i) for i in range(2)]
    for inputs in (None, arrays):
        with pytest.raises(ValueError, match="`padding`"):  # `+` loses the mask
            kt.testing.check(model, inputs)
    x = keras.layers.Add()([kt.layers.PositionalEmbedding(30, 16)(tokens), keras.layers.Embedding(30, 16)(kinds)])
    report = kt.testing.check(keras.Model([tokens, kinds], kt.layers.DecoderBlock(2, 32)(x)), arrays)
    assert isinstance(report["future"], float) and "more than one input" in report["cache"]


def bidirectional():
    ids = keras.Input((None,), dtype="int32")
    x = kt.layers.EncoderBlock(2, 8)(kt.layers.PositionalEmbedding(9, 8)(ids))
    return keras.Model(ids, keras.layers.Dense(9)(x))


def test_rows_that_show_nothing_are_refused():
    model = bidirectional()
    with pytest.raises(ValueError, match="at least two rows. Received: 1"):
        kt.testing.check(model, inputs=np.array([[5, 6, 7]]))
    with pytest.raises(ValueError, match="must differ in their second half"):
        kt.testing.check(model, inputs=np.array([[5, 6, 7], [5, 6, 7]]), causal=True)
    with pytest.raises(ValueError, match="`future`"):
        kt.testing.check(model, inputs=np.array([[5, 6, 7], [5, 6, 8]]), causal=True)


def test_every_input_is_changed_to_see_the_future():
    """Segments that are all alike do not hide that the tokens look both ways."""
    model = kt.models.bert(None, 9, 8, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8, pooler=False)
    inputs = {"segment_ids": np.zeros((2, 4), "int32"), "token_ids": np.array([[5, 6, 7, 8], [5, 6, 8, 7]])}
    assert kt.testing.check(model, inputs=inputs)["future"] == "the model looks both ways"


def test_a_model_that_cannot_be_read_back_breaks_an_invariant():
    class Unregistered(keras.layers.Layer):
        def call(self, x):
            return x

    model = bidirectional()
    model = keras.Model(model.inputs, Unregistered()(model.output))
    with pytest.raises(ValueError, match="`saved` is broken .TypeError."):
        kt.testing.check(model)


def test_sixteen_bits_are_allowed_their_rounding():
    report = kt.testing.check(
        kt.models.gpt(
            *(None, 20, 16),
            **{"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32, "dtype": "mixed_bfloat16"},
        )
    )
    assert report["cache"] <= 2e-2
