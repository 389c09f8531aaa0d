"""`PositionalEmbedding` against NumPy: positions, masks, tied logits, ids and lengths outside the tables."""

import json

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.generation import anatomy
from tests import reference
from tests.backend import numpy, run, vectors, weight_gradients
from tests.layers.configs import assert_config_holds

IDS = np.array([[5, 6, 7, 0, 0], [0, 0, 5, 6, 7], [5, 0, 6, 7, 8]])
TABLES = {"sinusoidal": {}, "learned": {"max_sequence_length": 6, "position": "learned"}}


def randomized(*arguments, **options):
    """A built layer and its random weights."""
    layer = kt.layers.PositionalEmbedding(*arguments, **options)
    layer.build((None, None) if arguments[0] else (None, None, arguments[1]))
    return layer, reference.randomize(layer).get(layer.name)


def mask_of(tensor):
    return None if getattr(tensor, "_keras_mask", None) is None else numpy(tensor._keras_mask)


def test_sinusoidal_table_values():
    """B37: element i of position p is the sine (even) or cosine (odd) of p / 10000 ** (2 * (i // 2) / d)."""
    table = numpy(kt.ops.sinusoidal_positions(np.arange(2), 5))
    np.testing.assert_allclose(table[0], [0, 1, 0, 1, 0], atol=1e-7)
    np.testing.assert_allclose(table[1], [0.841471, 0.540302, 0.025116, 0.999685, 0.000631], atol=1e-6)
    for dim in (1, 2, 5, 6, 64):
        table = numpy(kt.ops.sinusoidal_positions(np.arange(30), dim))
        assert table.shape == (30, dim) and table.dtype == "float32"
        np.testing.assert_allclose(table, reference.sinusoids(np.arange(30), dim), atol=1e-5)
    other_base = numpy(kt.ops.sinusoidal_positions(np.array([3]), 4, max_wavelength=100.0))
    np.testing.assert_allclose(other_base[0], [np.sin(3), np.cos(3), np.sin(0.3), np.cos(0.3)], atol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16", "mixed_float16"])
def test_angles_are_float32_under_every_policy(policy):
    layer = kt.layers.PositionalEmbedding(None, 32, dtype=policy)
    output = numpy(keras.ops.cast(layer(np.zeros((1, 2048, 32))), "float32"))[0]
    np.testing.assert_allclose(output, reference.sinusoids(np.arange(2048), 32), atol=5e-3)
    assert len(np.unique(numpy(kt.ops.sinusoidal_positions(np.arange(2048), 32)), axis=0)) == 2048


@pytest.mark.parametrize("options", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("hidden_dim", [7, 8])
def test_tokens_equal_numpy_and_positions_count_from_the_first_token(options, hidden_dim):
    layer, weights = randomized(9, hidden_dim, **options)
    output = run(layer, IDS)
    np.testing.assert_allclose(output, reference.embed(IDS, IDS != 0, weights), atol=1e-5)
    np.testing.assert_allclose(output[0, :3], output[1, 2:], atol=1e-6)  # right and left padding
    np.testing.assert_allclose(output[2, 2:], run(layer, np.array([[1, 2, 6, 7, 8]]))[0, 2:], atol=1e-6)  # a hole
    unmasked, weights = randomized(9, hidden_dim, pad_token_id=None, **options)
    np.testing.assert_allclose(run(unmasked, IDS), reference.embed(IDS, IDS > -1, weights), atol=1e-5)


@pytest.mark.parametrize("options", TABLES.values(), ids=TABLES)
def test_vectors_get_positions_and_no_scale(options):
    layer, weights = randomized(None, 8, **options)
    table = weights["position_embeddings"] if weights else reference.sinusoids(np.arange(6), 8)
    x = vectors(2, 5, 8)
    np.testing.assert_allclose(run(layer, x), x + table[:5], atol=1e-5)
    np.testing.assert_allclose(run(lambda x: layer(x, start_index=1), x), x + table[1:6], atol=1e-5)
    masked = keras.layers.Masking()
    x[0, 0] = x[1, 4] = 0
    output = layer(masked(x))
    assert mask_of(output).tolist() == [[False, True, True, True, True], [True, True, True, True, False]]
    np.testing.assert_allclose(numpy(output)[0, 1:], x[0, 1:] + table[:4], atol=1e-5)


def test_positions_and_start_index():
    layer, weights = randomized(9, 8)
    tokens = weights["token_embedding"]["embeddings"][IDS] * np.sqrt(8)
    positions = np.array([[4, 3, 2, 1, 0], [7, 7, 7, 100, 5], [-1, 0, 1, 2, 3]])
    expected = tokens + reference.sinusoids(np.maximum(positions, 0), 8)
    np.testing.assert_allclose(run(lambda ids: layer(ids, positions=positions), IDS), expected, atol=1e-4)
    later = run(lambda ids: layer(ids, start_index=3), IDS)
    np.testing.assert_allclose(later[0, :3], (tokens + reference.sinusoids(np.arange(3, 8), 8))[0, :3], atol=1e-5)
    np.testing.assert_allclose(later[0, :3], later[1, 2:], atol=1e-6)


def test_scale():
    tokens = randomized(9, 16, position=None)[0]
    table = numpy(tokens.embeddings)
    for options, factor in (
        ({"position": None}, 1),
        ({"position": None, "scale": 3}, 3),
        ({"position": "learned", "max_sequence_length": 5, "position_initializer": "zeros"}, 1),
        ({}, 4),
        ({"scale": 1.0}, 1),
    ):
        layer = kt.layers.PositionalEmbedding(9, 16, pad_token_id=None, **options)
        layer.build((None, None))
        layer.embeddings.assign(table)
        encoded = 0 if "position" in options else reference.sinusoids(np.arange(5), 16)
        np.testing.assert_allclose(numpy(layer(IDS)), factor * table[IDS] + encoded, atol=1e-5)
    scaled = kt.layers.PositionalEmbedding(None, 16, position=None, scale=2.0)
    np.testing.assert_allclose(numpy(scaled(vectors(1, 3, 16))), 2 * vectors(1, 3, 16), atol=1e-6)


def test_mask():
    assert mask_of(kt.layers.PositionalEmbedding(9, 4)(IDS)).tolist() == (IDS != 0).tolist()
    assert mask_of(kt.layers.PositionalEmbedding(9, 4, pad_token_id=5)(IDS)).tolist() == (IDS != 5).tolist()
    assert mask_of(kt.layers.PositionalEmbedding(9, 4, pad_token_id=None)(IDS)) is None
    assert mask_of(kt.layers.PositionalEmbedding(9, 4)(IDS, positions=np.arange(5)[None])) is not None
    given = np.array([[True] * 4 + [False]] * 3)
    layer, weights = randomized(9, 4)
    np.testing.assert_allclose(
        numpy(layer(IDS, mask=given)), reference.embed(IDS, (IDS != 0) & given, weights), atol=1e-5
    )


def test_reverse_gives_tied_float32_logits_and_keeps_the_mask():
    for policy in ("float32", "mixed_bfloat16"):
        layer, weights = randomized(9, 4, dtype=policy, dropout=0.5)
        x = layer(IDS)
        logits = layer(x, reverse=True)
        assert keras.backend.standardize_dtype(logits.dtype) == "float32" and logits.shape == (3, 5, 9)
        assert mask_of(logits).tolist() == (IDS != 0).tolist()
        exact = numpy(keras.ops.cast(x, "float32")) @ weights["token_embedding"]["embeddings"].T
        np.testing.assert_allclose(numpy(logits), exact, atol=1e-4 if policy == "float32" else 0.05)
    symbolic = layer(keras.Input((None, 4)), reverse=True)
    assert symbolic.shape == (None, None, 9) and symbolic.dtype == "float32"
    assert [w.path.split("/", 1)[1] for w in layer.weights] == ["token_embedding/embeddings"]


def test_tied_table_gets_both_gradients():
    layer, weights = randomized(6, 4, position=None, pad_token_id=None)
    ids, table = np.array([[1, 2, 2]]), weights["token_embedding"]["embeddings"]
    (found,) = weight_gradients(layer, lambda: keras.ops.sum(layer(layer(ids), reverse=True))).values()
    counts = np.array([[0], [1], [2], [0], [0], [0]])
    np.testing.assert_allclose(found, counts * table.sum(0) + table[[1, 2, 2]].sum(0), atol=1e-4)


def test_pretrained_vectors_may_be_assigned():
    layer = kt.layers.PositionalEmbedding(9, 4, position=None)
    layer.build((None, None))
    pretrained = vectors(9, 4)
    layer.embeddings.assign(pretrained)
    np.testing.assert_allclose(numpy(layer(IDS)), pretrained[IDS], atol=1e-6)
    with pytest.raises(AttributeError):
        _ = kt.layers.PositionalEmbedding(None, 4).embeddings


def test_dropout():
    layer = kt.layers.PositionalEmbedding(None, 50, position=None, dropout=0.2, seed=1)
    x = np.ones((1, 40, 50), "float32")
    np.testing.assert_array_equal(numpy(layer(x)), x)
    dropped = numpy(layer(x, training=True)) == 0
    assert abs(dropped.mean() - 0.2) < 3 * np.sqrt(0.2 * 0.8 / 2000)
    assert (numpy(layer(x, training=True)) == 0).tolist() != dropped.tolist()


@pytest.mark.parametrize("vectors_given", [False, True])
def test_learned_positions_refuse_more_than_the_table(vectors_given):
    """B18."""

    def layer(**options):
        options = {"position": "learned", "max_sequence_length": 16, **options}
        return kt.layers.PositionalEmbedding(None if vectors_given else 20, 8, **options)

    def inputs(length):
        return np.ones((1, length, 8), "float32") if vectors_given else np.ones((1, length), "int32")

    for length in (1, 16):
        assert layer()(inputs(length)).shape == (1, length, 8)
    for call in (
        lambda: layer()(inputs(17)),
        lambda: layer()(inputs(8), start_index=9),
        lambda: layer()(inputs(2), positions=np.array([[3, 16]])),
        lambda: layer()(keras.Input((17, 8)) if vectors_given else keras.Input((17,), dtype="int32")),
    ):
        with pytest.raises(ValueError, match=r"17.*16"):
            call()
    symbolic = keras.Input((None, 8)) if vectors_given else keras.Input((None,), dtype="int32")
    model = keras.Model(symbolic, layer()(symbolic))
    with pytest.raises(ValueError, match=r"17.*16"):
        model.predict(inputs(17), verbose=0)
    short, long = (run(layer(position="sinusoidal"), inputs(length)) for length in (16, 17))
    assert long.shape == (1, 17, 8)
    if vectors_given:
        np.testing.assert_allclose(short, long[:, :16], atol=1e-6)


def test_learned_positions_past_the_table_in_a_graph_of_unknown_length_are_never_finite():
    symbolic = keras.Input((None,), dtype="int32")
    layer = kt.layers.PositionalEmbedding(20, 8, 16, position="learned")
    model = keras.Model(symbolic, layer(symbolic))
    for length in (5, 6):  # after the second length TensorFlow's graph has none
        assert np.isfinite(model.predict(np.ones((1, length), "int32"), verbose=0)).all()
    try:
        output = model.predict(np.ones((1, 17), "int32"), verbose=0)
    except Exception as error:
        assert "16" in str(error)
    else:
        assert np.isnan(output[0, 16]).all()


def test_position_offset():
    """BART and RoBERTa: position p is row p + 2 of a table of max_sequence_length + 2 rows."""
    layer, weights = randomized(10, 4, 6, position="learned", position_offset=2)
    table = weights["position_embeddings"]
    assert table.shape == (8, 4)
    for ids in (IDS, np.array([[5, 6, 7, 8, 9, 1]])):
        expected = weights["token_embedding"]["embeddings"][ids] + table[reference.token_positions(ids != 0) + 2]
        np.testing.assert_allclose(numpy(layer(ids)), expected, atol=1e-5)
    given = numpy(layer(IDS[:, :1], positions=np.array([[5], [0], [3]])))
    expected = weights["token_embedding"]["embeddings"][IDS[:, :1]] + table[[[7], [2], [5]]]
    np.testing.assert_allclose(given, expected, atol=1e-5)
    for refused in (lambda: layer(np.ones((1, 7))), lambda: layer(IDS[:, :1], positions=np.array([[6], [0], [0]]))):
        with pytest.raises(ValueError, match="max_sequence_length=6"):
            refused()
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, layer(kt.layers.DecoderBlock(2, 6)(layer(ids)), reverse=True))
    assert anatomy.max_sequence_length(model) == 6
    with pytest.raises(ValueError, match="6"):
        kt.generate(model, [[3, 4]], max_new_tokens=6)


def test_ids_outside_the_vocabulary():
    """B41: eager calls raise, compiled code gives NaN rows, never another token's row."""
    layer = kt.layers.PositionalEmbedding(10, 4, pad_token_id=None)
    for token in (10, -1, 2**20):
        with pytest.raises(ValueError, match=rf"{token}.*10"):
            layer(np.array([[1, token]]))
    symbolic = keras.Input((None,), dtype="int32")
    model = keras.Model(symbolic, layer(symbolic))
    for token in (10, -1):
        ids = np.array([[1, token, 2]])
        with pytest.raises(ValueError, match=rf"{token}.*10"):
            model(ids)
        if keras.backend.backend() == "torch":  # predict runs eagerly there
            with pytest.raises(ValueError, match=rf"{token}.*10"):
                model.predict(ids, verbose=0)
        else:
            output = model.predict(ids, verbose=0)
            assert np.isnan(output[0, 1]).all() and np.isfinite(output[0, [0, 2]]).all()


def test_ids_of_every_integer_kind_and_whole_floats():
    layer = kt.layers.PositionalEmbedding(300, 4)
    expected = numpy(layer(np.array([[1, 2, 0]])))
    for dtype in ("int8", "uint8", "int32", "int64", "float32", "float64"):
        np.testing.assert_array_equal(numpy(layer(np.array([[1, 2, 0]], dtype))), expected)
    mixed = kt.layers.PositionalEmbedding(300, 4, position=None, dtype="mixed_bfloat16")
    table = numpy(keras.ops.cast(mixed(np.arange(300)[None]), "float32"))
    np.testing.assert_array_equal(table[0, 257], numpy(keras.ops.cast(mixed(np.array([[257]])), "float32"))[0, 0])


REFUSED_CALLS = {
    "rank 1": (lambda: (10, np.array([1, 2])), ["(2,)", "(batch, length)"]),
    "rank 3": (lambda: (10, np.zeros((1, 2, 3), "int32")), ["(1, 2, 3)"]),
    "fraction": (lambda: (10, np.array([[1.5, 2.0]])), ["1.5"]),
    "float16": (lambda: (10, np.array([[1, 2]], "float16")), ["float16"]),
    "bool": (lambda: (10, np.array([[True]])), ["bool"]),
    "no tokens": (lambda: (10, np.zeros((2, 0), "int32")), ["(2, 0)"]),
    "width": (lambda: (None, np.zeros((1, 2, 3))), ["hidden_dim=4", "(1, 2, 3)"]),
    "vectors rank": (lambda: (None, np.zeros((1, 2))), ["(1, 2)"]),
}


@pytest.mark.parametrize("case, words", REFUSED_CALLS.values(), ids=REFUSED_CALLS)
def test_refused_inputs(case, words):
    vocabulary_size, inputs = case()
    with pytest.raises(ValueError) as error:
        kt.layers.PositionalEmbedding(vocabulary_size, 4)(inputs)
    assert all(word in str(error.value) for word in words), error.value


def test_refused_call_arguments():
    layer = kt.layers.PositionalEmbedding(10, 4)
    with pytest.raises(ValueError, match="start_index=-1"):
        layer(IDS[:, :3] % 9, start_index=-1)
    with pytest.raises(ValueError, match=r"positions.*\(3, 5\).*\(1, 4\)"):
        layer(IDS, positions=np.arange(4)[None])
    with pytest.raises(ValueError, match="vocabulary_size is None"):
        kt.layers.PositionalEmbedding(None, 4)(np.zeros((1, 2, 4)), reverse=True)
    assert layer(np.zeros((0, 5), "int32")).shape == (0, 5, 4)


REFUSED = {
    "vocabulary_size": ({"vocabulary_size": 0}, ["vocabulary_size", "0"]),
    "hidden_dim": ({"hidden_dim": None}, ["hidden_dim", "None"]),
    "hidden_dim negative": ({"hidden_dim": -4}, ["hidden_dim", "-4"]),
    "max_sequence_length": ({"max_sequence_length": 0}, ["max_sequence_length", "0"]),
    "learned without length": ({"position": "learned"}, ["max_sequence_length", "learned"]),
    "offset negative": ({"position_offset": -1}, ["position_offset", "-1"]),
    "offset without table": ({"position_offset": 2}, ["position_offset=2", "sinusoidal", "learned"]),
    "position": ({"position": "rotary"}, ["position", "rotary", "sinusoidal"]),
    "scale": ({"scale": "large"}, ["scale", "large"]),
    "dropout": ({"dropout": 1.5}, ["dropout", "1.5"]),
    "pad too large": ({"pad_token_id": 10}, ["pad_token_id=10", "vocabulary size 10"]),
    "pad negative": ({"pad_token_id": -1}, ["pad_token_id=-1", "vocabulary size 10"]),
    "pad fraction": ({"pad_token_id": 1.5}, ["pad_token_id=1.5"]),
}


@pytest.mark.parametrize("options, words", REFUSED.values(), ids=REFUSED)
def test_refused_arguments(options, words):
    with pytest.raises(ValueError) as error:
        kt.layers.PositionalEmbedding(**{"vocabulary_size": 10, "hidden_dim": 4, **options})
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("dim", [8, 7])
def test_all_sines_come_first(dim):
    """As in Marian; an odd dim has one more of them."""
    layer = kt.layers.PositionalEmbedding(None, dim, sinusoid_layout="half")
    found = numpy(layer(np.zeros((1, 5, dim), "float32")))[0]
    sines = (dim + 1) // 2
    angles = np.arange(5)[:, None] / 10000 ** (2 * np.arange(sines) / dim)
    expected = np.concatenate([np.sin(angles), np.cos(angles)[:, : dim // 2]], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match="sinusoid_layout.*'third'"):
        kt.layers.PositionalEmbedding(None, dim, sinusoid_layout="third")


def test_config_keeps_every_argument():
    options = {
        "vocabulary_size": 10,
        "hidden_dim": 4,
        "max_sequence_length": 7,
        "position": "learned",
        "scale": 2.5,
        "dropout": 0.25,
        "pad_token_id": 3,
        "embeddings_initializer": keras.initializers.RandomNormal(stddev=0.5),
        "position_initializer": keras.initializers.Ones(),
        "embeddings_regularizer": keras.regularizers.L2(0.5),
        "embeddings_constraint": keras.constraints.NonNeg(),
        "position_offset": 2,
        "sinusoid_layout": "half",
        "seed": 5,
        "name": "tokens",
        "dtype": "mixed_bfloat16",
    }
    assert_config_holds(kt.layers.PositionalEmbedding, options)
    layer = kt.layers.PositionalEmbedding(**options)
    layer.build((None, None))
    assert (numpy(layer.position_embeddings) == 1).all() and len(layer.losses) == 1
    assert isinstance(layer.embeddings.constraint, keras.constraints.NonNeg)


def test_sizes_may_be_numpy_integers():
    numbers = {"vocabulary_size": 10, "hidden_dim": 4, "max_sequence_length": 7, "pad_token_id": 3, "seed": 5}
    layers = [
        kt.layers.PositionalEmbedding(**values, position="learned", name="tokens")
        for values in (numbers, {name: np.int64(value) for name, value in numbers.items()})
    ]
    assert len({json.dumps(layer.get_config()) for layer in layers}) == 1
    assert layers[1](IDS).shape == (3, 5, 4)


@pytest.mark.parametrize("options", TABLES.values(), ids=TABLES)
def test_start_index_is_added_inside_a_decoding_scope(options):
    """Prompts padded on the left, then one more token: as the whole text with `start_index`."""
    layer, _ = randomized(9, 8, **options)
    ids = np.array([[5, 6, 7, 8], [0, 5, 6, 7]])
    positions = np.array([[0, 1, 2, 3], [-1, 0, 1, 2]])

    def in_pieces(ids):
        outputs, cache = [], None
        for piece in (slice(0, 3), slice(3, 4)):
            with kt.ops.DecodingScope(cache, positions[:, piece], *((4,) if cache is None else ())) as scope:
                outputs.append(layer(ids[:, piece], start_index=2))
            cache = scope.cache
        return keras.ops.concatenate(outputs, axis=1), layer(ids, start_index=2), layer(ids)

    outputs, expected, from_zero = run(in_pieces, ids)
    np.testing.assert_allclose(outputs[ids != 0], expected[ids != 0], atol=1e-5)
    assert abs(expected - from_zero)[ids != 0].max() > 0.1


def test_learned_positions_past_the_table_in_compiled_code_with_a_mask():
    """B18: the start and the length are known before the graph runs, whatever the mask hides."""
    layer = kt.layers.PositionalEmbedding(9, 8, 8, position="learned")
    ids = np.array([[5, 6, 7, 8, 1, 0]])

    class Later(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = layer

        def call(self, ids):
            return self.embedding(ids, start_index=4)

    with pytest.raises(ValueError, match=r"10.*8"):
        Later().predict(ids, verbose=0)
    assert Later().predict(ids[:, :4], verbose=0).shape == (1, 4, 8)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64"])
def test_ids_of_any_integer_type(dtype):
    layer, _ = randomized(1000, 8)
    ids = np.asarray([[5, 100, 7]])
    np.testing.assert_array_equal(run(layer, ids.astype(dtype)), run(layer, ids))


def test_ids_that_wrap_in_int32_are_not_another_token():
    layer = kt.layers.PositionalEmbedding(30, 8)
    ids = np.asarray([[5, 2**32 + 5]])
    if numpy(keras.ops.convert_to_tensor(ids)).max() == 5:  # JAX cuts them to int32 before any layer sees them
        return
    with pytest.raises(ValueError, match=str(2**32 + 5)):
        layer(ids)
    inputs = keras.Input((None,), dtype="int64")
    model = keras.Model(inputs, layer(inputs))
    if keras.backend.backend() == "tensorflow":  # compiled, nothing can be raised
        assert np.isnan(model.predict(ids, verbose=0)[0]).all(axis=-1).tolist() == [False, True]


def test_a_start_before_the_table_is_another_token_nowhere():
    """As a number of NumPy or of the backend, refused when its value is known, NaN when it is not."""
    layer, x = kt.layers.PositionalEmbedding(None, 4, 8, position="learned"), np.ones((1, 4, 4), "float32")
    layer.build(x.shape)
    for start in (-2, np.int64(-2), keras.ops.convert_to_tensor(-2)):
        with pytest.raises(ValueError, match="`start_index` must not be negative"):
            layer(x, start_index=start)
    table = numpy(layer.position_embeddings)
    for mask in (None, np.ones((1, 4), "bool")):
        for start in (2, np.int64(2), keras.ops.convert_to_tensor(2)):
            found = numpy(layer(x, start_index=start, mask=mask))
            np.testing.assert_allclose(found[0], 1 + table[2:6], atol=1e-6)
    if keras.backend.backend() == "torch":  # there every value is known
        return
    for mask in (None, np.ones((1, 4), "bool")):
        found = traced(lambda x, start, mask=mask: layer(x, start_index=start, mask=mask))(x, np.int32(-2))
        assert np.isnan(found[0, :2]).all()
        np.testing.assert_allclose(found[0, 2:], 1 + table[:2], atol=1e-6)
        found = traced(lambda x, start, mask=mask: layer(x, start_index=start, mask=mask))(x, np.int32(3))
        np.testing.assert_allclose(found[0], 1 + table[3:7], atol=1e-6)


def traced(function):
    """As a part of a graph, in which no number is known."""
    if keras.backend.backend() == "jax":
        return lambda *inputs: run(function, *inputs)
    import tensorflow as tf

    return lambda *inputs: numpy(tf.function(function, autograph=False)(*map(tf.convert_to_tensor, inputs)))


def test_what_is_not_as_long_as_the_text_counts_for_itself():
    """In a decoding scope: the features of an image beside a text of one token."""
    layer, features = kt.layers.PositionalEmbedding(None, 4), vectors(1, 5, 4)
    with kt.ops.DecodingScope(None, np.array([[7]])):
        found = numpy(layer(keras.ops.convert_to_tensor(features)))
    np.testing.assert_allclose(found, numpy(layer(features)), atol=1e-6)


def test_positions_are_of_one_row_or_of_each():
    layer = kt.layers.PositionalEmbedding(9, 8)
    ids = np.array([[1, 2], [3, 4]])
    one, each = (numpy(layer(ids, positions=np.array(x))) for x in ([[3, 5]], [[3, 5], [3, 5]]))
    np.testing.assert_array_equal(one, each)
    with pytest.raises(ValueError, match="`positions` must have the shape of the tokens, \\(2, 2\\)"):
        layer(ids, positions=np.zeros((3, 2), "int32"))
