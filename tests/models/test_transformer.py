"""`kt.models.transformer` against a NumPy forward: the same weights give the same logits on every backend."""

import functools
import gc

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import reference
from tests.backend import numpy, predict, vectors, weight_gradients
from tests.hurry import train_in_a_hurry
from tests.models.copying import CHANCE, loss_of_copying
from tests.models.encoder_decoders import in_halves

SOURCE = np.array([[5, 6, 7, 8, 0, 0], [0, 0, 0, 3, 4, 9]])
TARGET = np.array([[3, 4, 5, 6, 7, 0, 0], [0, 2, 3, 4, 5, 6, 8]])
REAL = TARGET != 0


def small(**options):
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24}
    vocabularies = {"source_vocabulary_size": 20, "target_vocabulary_size": 20}
    return kt.models.transformer(**{**vocabularies, **sizes, **options})


def call(model, source=SOURCE, target=TARGET):
    return predict(model, [source, target])


@functools.cache
def shared():
    """A model that tests leave as they found it."""
    model = small()
    reference.randomize(model)
    return model


CASES = {
    "as published": ({"share_embeddings": "all", "num_layers": 2}, {}),
    "norm first": ({"share_embeddings": "all", "norm_placement": "pre", "num_layers": (2, 1)}, {"placement": "pre"}),
    "two vocabularies": ({"source_vocabulary_size": 30, "norm_placement": "output"}, {"placement": "output"}),
    "three tables": (
        {"share_embeddings": None, "norm_placement": "sandwich", "norm": "rms", "activation": "gelu"},
        {"placement": "sandwich", "activation": reference.gelu},
    ),
    "learned positions": (
        {"position": "learned", "max_sequence_length": 7, "key_dim": 5, "num_heads": 3, "use_bias": False},
        {},
    ),
    "another pad id": ({"pad_token_id": 6}, {"pad_token_id": 6}),
}


@pytest.mark.parametrize("options, expected", CASES.values(), ids=CASES)
def test_logits_equal_numpy(options, expected):
    model = small(**options)
    weights = reference.randomize(model)
    logits = call(model)
    real = TARGET != expected.get("pad_token_id", 0)
    assert logits.dtype == "float32" and logits.shape == (2, 7, 20)
    np.testing.assert_allclose(
        logits[real], reference.transformer(weights, SOURCE, TARGET, **expected)[real], atol=1e-5
    )


def test_base_size_has_the_papers_number_of_parameters():
    with keras.StatelessScope(initialize_variables=False):  # counted without being allocated
        assert kt.models.transformer(37_000, 37_000, share_embeddings="all").count_params() == 63_082_496


ATTENTION = [f"{name}/{kind}" for name in ("query", "key", "value", "attention_output") for kind in ("kernel", "bias")]
FEED_FORWARD = [f"{name}/{kind}" for name in ("intermediate", "output") for kind in ("kernel", "bias")]


def block_paths(name, *sublayers):
    inside = {"feed_forward": FEED_FORWARD}
    for sublayer in sublayers:
        yield from (f"{name}/{sublayer}/{path}" for path in inside.get(sublayer, ATTENTION))
        yield from (f"{name}/{sublayer}_norm/{weight}" for weight in ("gamma", "beta"))


def test_variable_paths_are_pinned():
    """They are public: checkpoints and layout maps name them."""
    blocks = [
        *block_paths("encoder_block_0", "self_attention", "feed_forward"),
        *block_paths("decoder_block_0", "self_attention", "cross_attention", "feed_forward"),
    ]
    for options, others in (
        ({"share_embeddings": "all"}, ["embedding/token_embedding/embeddings"]),
        (
            {"share_embeddings": "target", "norm_placement": "pre"},
            [
                *(f"{side}_embedding/token_embedding/embeddings" for side in ("source", "target")),
                *(f"{side}_norm/{weight}" for side in ("encoder", "decoder") for weight in ("gamma", "beta")),
            ],
        ),
        (
            {"share_embeddings": None, "position": "learned", "max_sequence_length": 7},
            [
                *(f"{side}_embedding/token_embedding/embeddings" for side in ("source", "target")),
                *(f"{side}_embedding/position_embeddings" for side in ("source", "target")),
                "logits/kernel",
            ],
        ),
    ):
        assert sorted(w.path for w in small(**options).weights) == sorted(blocks + others)
    sandwich = {w.path for w in small(norm_placement="sandwich", norm="rms").weights}
    assert {f"decoder_block_0/cross_attention_{norm}/scale" for norm in ("norm", "output_norm")} <= sandwich
    for model in (small(num_layers=2), small(num_layers=2, norm_placement="sandwich")):
        paths = [v.path for v in model.variables]
        assert len(set(paths)) == len(paths)


def test_a_shared_table_is_one_variable():
    tables = [w for w in small(share_embeddings="all").weights if tuple(w.shape) == (20, 16)]
    assert len(tables) == 1
    counts = {share: small(share_embeddings=share).count_params() for share in ("all", "target", None)}
    assert counts["all"] == counts["target"] - 20 * 16 == counts[None] - 2 * 20 * 16


@pytest.mark.parametrize(
    "options",
    [
        {"norm_placement": "pre", "share_embeddings": None, "position": "learned", "max_sequence_length": 7},
        {"norm_placement": "post", "share_embeddings": "all"},
    ],
    ids=str,
)
def test_every_weight_has_a_gradient(options):
    """B14: none is left out; a constant added to all keys changes no probability, so key biases may have none."""
    model = small(**options)
    reference.randomize(model)
    factors = keras.ops.convert_to_tensor(vectors(2, 7, 20))
    gradients = weight_gradients(model, lambda: keras.ops.mean(factors * model([SOURCE, TARGET])))
    assert len(gradients) == len(model.weights) and all(np.isfinite(g).all() for g in gradients.values())
    missing = [path for path, g in gradients.items() if abs(g).max() < 1e-4 and not path.endswith("key/bias")]
    assert missing == []
    if options["share_embeddings"] == "all":  # one gradient for the rows of the head, the source and the target
        (table,) = [g for g in gradients.values() if g.shape == (20, 16)]
        assert (abs(table).max(-1) > 0).all()


def test_cross_attention_masks():
    """B04: the source's padding is never seen, its last token by every target position, the lengths are free."""
    source, target = SOURCE[:1, :4], TARGET[1:, 1:]
    expected = call(shared(), source, target)
    changed = source.copy()
    changed[0, -1] = 9
    padded = [np.pad(x, ((0, 0), where)) for x, where in ((source, (0, 3)), (source, (3, 0)), (changed, (0, 3)))]
    targets = np.repeat(np.pad(target, ((0, 0), (0, 4))), 3, axis=0)
    right, left, changed = call(shared(), np.concatenate(padded), targets)[:, :6]
    np.testing.assert_allclose(right, expected[0], atol=1e-5)
    np.testing.assert_allclose(left, expected[0], atol=1e-5)
    assert (abs(changed - expected[0]).max(-1) > 1e-4).all()


def test_encoder_and_decoder_from_ids_are_the_whole_in_two_halves(tmp_path):
    model = small(share_embeddings="all", norm_placement="pre", stop_token_id=3)
    reference.randomize(model)
    expected = call(model)
    model.save(tmp_path / "model.keras")
    for whole in (model, keras.models.load_model(tmp_path / "model.keras")):
        halves = [half(whole) for half in (kt.models.encoder_from_ids, kt.models.decoder_from_ids)]
        assert {id(w) for half in halves for w in half.weights} == {id(w) for w in whole.weights}
        assert kt.layers.read_card(whole)["stop_token_id"] == 3
        assert whole.get_layer("encoder").get_layer("encoder_block_0").num_heads == 2
    states, logits = in_halves(whole, SOURCE, TARGET)
    assert states.shape == (2, 6, 16)
    np.testing.assert_allclose(logits[REAL], expected[REAL], atol=1e-5)
    with pytest.raises(ValueError, match="encoder_token_ids"):
        kt.models.encoder_from_ids(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))


def test_inputs_by_name_and_by_order():
    model = shared()
    expected = call(model)
    by_name = predict(model, {"decoder_token_ids": TARGET, "encoder_token_ids": SOURCE})
    np.testing.assert_allclose(by_name, expected, atol=1e-5)
    np.testing.assert_allclose(model.predict([SOURCE, TARGET], verbose=0)[REAL], expected[REAL], atol=1e-5)
    symbolic = model([keras.Input((6,), dtype="int32"), keras.Input((None,), dtype="int32")])
    assert symbolic.shape == (None, None, 20)


REFUSED = {
    "one vocabulary for two": (
        {"share_embeddings": "all", "source_vocabulary_size": 30},
        ["share_embeddings", "source_vocabulary_size=30", "target_vocabulary_size=20"],
    ),
    "sharing": ({"share_embeddings": "source"}, ["share_embeddings", "source", "target"]),
    "heads": ({"num_heads": 3}, ["hidden_dim=16", "num_heads=3"]),
    "layers": ({"num_layers": 0}, ["num_layers", "0"]),
    "three numbers of layers": ({"num_layers": (1, 2, 3)}, ["num_layers", "(1, 2, 3)"]),
    "vocabulary": ({"target_vocabulary_size": 0}, ["target_vocabulary_size", "0"]),
    "hidden_dim": ({"hidden_dim": None}, ["hidden_dim", "None"]),
    "dropout": ({"dropout": 1.0}, ["dropout", "1.0"]),
    "pad": ({"pad_token_id": 20}, ["pad_token_id=20", "vocabulary size 20"]),
    "placement": ({"norm_placement": "first"}, ["norm_placement", "first"]),
    "position": ({"position": "learned"}, ["max_sequence_length"]),
    "start": ({"start_token_id": 20}, ["start_token_id=20", "vocabulary size 20"]),
    "stop": ({"stop_token_id": -1}, ["stop_token_id=-1", "vocabulary size 20"]),
}


@pytest.mark.parametrize("options, words", REFUSED.values(), ids=REFUSED)
def test_refused_arguments(options, words):
    with pytest.raises(ValueError) as error:
        small(**options)
    assert all(word in str(error.value) for word in words), error.value


def test_a_seeded_initializer_gives_every_block_its_own_kernels():
    initializer = keras.initializers.RandomNormal(seed=1)
    model = small(num_layers=2, kernel_initializer=initializer)
    kernels = [numpy(weight) for weight in model.weights if weight.path.endswith("query/kernel")]
    assert len(kernels) == 6
    assert len({kernel.tobytes() for kernel in kernels}) == 6
    again = small(num_layers=2, kernel_initializer=initializer)
    assert numpy(again.weights[-1]).tobytes() == numpy(model.weights[-1]).tobytes()


def test_seeded_blocks_do_not_drop_the_same_places():
    model = small(num_layers=2, dropout=0.5, seed=1)
    first, second = (
        model.get_layer("encoder").get_layer(f"encoder_block_{i}").feed_forward_residual_dropout for i in range(2)
    )
    x = np.ones((1, 40, 16), "float32")
    dropped = [numpy(layer(x, training=True)) == 0 for layer in (first, second)]
    assert 0.3 < (dropped[0] == dropped[1]).mean() < 0.7


def test_it_learns_to_copy(monkeypatch):
    train_in_a_hurry(monkeypatch)
    model = small(share_embeddings="all", source_vocabulary_size=8, target_vocabulary_size=8, dropout=0.0)
    assert loss_of_copying(model, learning_rate=0.01, epochs=6) < 0.75 * CHANCE


def test_int8_quantisation_and_lora_survive_saving(tmp_path):
    model = small(share_embeddings=None)
    reference.randomize(model)
    exact = call(model)
    block = model.get_layer("encoder").get_layer("encoder_block_0")
    block.self_attention.query_dense.enable_lora(2)
    block.feed_forward.output_dense.enable_lora(2)
    model.get_layer("source_embedding").token_embedding.enable_lora(2)
    np.testing.assert_allclose(call(model), exact, atol=1e-5)  # an adapter begins as zero
    reference.randomize(block)
    adapted = call(model)
    model.save(tmp_path / "adapted.keras")
    merged = keras.models.load_model(tmp_path / "adapted.keras")
    np.testing.assert_allclose(call(merged), adapted, atol=1e-4)

    gc.freeze()  # Keras collects garbage once per kernel, which would take most of the time
    merged.quantize("int8")
    gc.unfreeze()
    quantised = call(merged)
    assert 1e-4 < abs(quantised - adapted)[REAL].max() < 0.2 * abs(adapted)[REAL].max()
    merged.save(tmp_path / "quantised.keras")
    loaded = keras.models.load_model(tmp_path / "quantised.keras")
    np.testing.assert_allclose(call(loaded)[REAL], quantised[REAL], atol=1e-4)
    assert loaded.get_layer("decoder").get_layer("decoder_block_0").cross_attention.key_dense.kernel.dtype == "int8"
