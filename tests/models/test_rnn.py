"""`kt.models.rnn` against a NumPy loop over tokens: the same weights give the same logits on every backend."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import reference, reference_recurrent
from tests.backend import predict, vectors, weight_gradients
from tests.hurry import outputs_in_training, train_in_a_hurry
from tests.models.copying import CHANCE, loss_of_copying
from tests.models.encoder_decoders import in_halves

SOURCE = np.array([[5, 6, 7, 8, 0, 0], [0, 0, 0, 3, 4, 9], [0] * 6])
TARGET = np.array([[3, 4, 5, 6, 7, 0, 0], [0, 2, 3, 4, 5, 6, 8], [1, 2, 3, 0, 4, 5, 0]])
REAL = TARGET != 0


def small(**options):
    vocabularies = {"source_vocabulary_size": 20, "target_vocabulary_size": 20}
    return kt.models.rnn(**{**vocabularies, "hidden_dim": 6, **options})


CASES = {
    "as it comes": {},
    "lstm, two and one layers, luong, other sizes": {
        "cell": "lstm",
        "num_layers": (2, 1),
        "attention": "luong",
        "embedding_dim": 8,
        "share_embeddings": None,
        "source_vocabulary_size": 30,
    },
    "simple, one and two layers, one direction": {"cell": "simple", "num_layers": (1, 2), "bidirectional": False},
    "without attention": {"cell": "lstm", "attention": None, "share_embeddings": "all"},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_logits_equal_numpy(options):
    """Sources and targets with padding on both sides and inside, and a source of nothing else."""
    model = small(**options)
    weights = reference.randomize(model)
    logits = predict(model, [SOURCE, TARGET])
    attention = {"attention_kind": options.get("attention", "bahdanau")}
    kind = {name: options[name] for name in ("cell", "bidirectional") if name in options}
    expected = reference_recurrent.rnn(weights, SOURCE, TARGET, **attention, **kind)
    assert logits.dtype == "float32" and logits.shape == (3, 7, 20)
    np.testing.assert_allclose(logits[REAL], expected[REAL], atol=1e-5)


def test_variable_paths_are_pinned():
    """They are public: checkpoints and layout maps name them."""
    cell = [f"cell/{name}" for name in ("kernel", "recurrent_kernel", "bias")]
    assert sorted(w.path for w in small().weights) == sorted(
        [
            *(f"{side}_embedding/token_embedding/embeddings" for side in ("source", "target")),
            *(f"encoder_rnn_0/{way}/{path}" for way in ("forward", "backward") for path in cell),
            *(f"decoder_rnn_0/forward/{path}" for path in cell),
            *(f"{name}/{part}" for name in ("decoder_start_0_0", "hidden_of_state") for part in ("kernel", "bias")),
            *(f"cross_attention/{path}" for path in ("query/kernel", "key/kernel", "score_kernel")),
            "hidden_of_context/kernel",
        ]
    )


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_one_step_reaches_every_weight(options):
    model = small(**options)
    reference.randomize(model)
    factors = keras.ops.convert_to_tensor(vectors(3, 7, 20))
    gradients = weight_gradients(model, lambda: keras.ops.mean(factors * model([SOURCE, TARGET])))
    assert len(gradients) == len(model.weights) - 1 * sum("seed" in w.path for w in model.weights)
    assert all(np.isfinite(g).all() for g in gradients.values())
    assert [path for path, g in gradients.items() if abs(g).max() < 1e-6] == []


@pytest.mark.parametrize("attention", ["luong", None])
def test_its_halves_are_the_whole_also_from_a_file(attention, tmp_path):
    model = small(attention=attention, cell="lstm", start_token_id=1, stop_token_id=2)
    reference.randomize(model)
    expected = predict(model, [SOURCE, TARGET])
    model.save(tmp_path / "model.keras")
    for whole in (model, keras.models.load_model(tmp_path / "model.keras")):
        halves = [half(whole) for half in (kt.models.encoder_from_ids, kt.models.decoder_from_ids)]
        assert {id(w) for half in halves for w in half.weights} == {id(w) for w in whole.weights}
    states, logits = in_halves(whole, SOURCE, TARGET)
    assert states.shape == (3, 6, 12)
    np.testing.assert_allclose(logits[REAL], expected[REAL], atol=1e-5)
    card = kt.layers.read_card(whole)
    assert (card["family"], card["cell"], card["attention"], card["stop_token_id"]) == ("rnn", "lstm", attention, 2)


def test_it_learns_to_copy(monkeypatch):
    train_in_a_hurry(monkeypatch)
    model = small(hidden_dim=32, share_embeddings="all", source_vocabulary_size=8, target_vocabulary_size=8, dropout=0)
    assert loss_of_copying(model, learning_rate=0.03, epochs=5) < 0.75 * CHANCE


def test_seeded_dropouts_and_names():
    model = small(num_layers=2, dropout=0.5, seed=1)
    layers = [layer for name in ("encoder", "decoder") for layer in model.get_layer(name).layers]
    seeds = [layer.seed for layer in layers if hasattr(layer, "seed")]
    assert len(seeds) == len(set(seeds)) == 5
    assert [layer.name for layer in model.layers if isinstance(layer, keras.Model)] == ["encoder", "decoder"]
    one, other = outputs_in_training(model, [SOURCE, TARGET], calls=2)
    assert one.shape == (3, 7, 20) and np.abs(one - other).max() > 1e-3


REFUSED = {
    "cell": ({"cell": "elman"}, ["cell='elman'"]),
    "attention": ({"attention": "dot"}, ["attention='dot'"]),
    "sharing": ({"share_embeddings": "source"}, ["share_embeddings", "source"]),
    "vocabularies": ({"share_embeddings": "all", "source_vocabulary_size": 30}, ["source_vocabulary_size=30"]),
    "layers": ({"num_layers": (1, 0)}, ["num_layers", "0"]),
    "hidden_dim": ({"hidden_dim": 0}, ["hidden_dim=0"]),
    "embedding_dim": ({"embedding_dim": -1}, ["embedding_dim=-1"]),
    "dropout": ({"dropout": 1}, ["dropout=1"]),
    "start": ({"start_token_id": 20}, ["start_token_id=20"]),
}


@pytest.mark.parametrize("options, words", REFUSED.values(), ids=REFUSED)
def test_refused_arguments(options, words):
    with pytest.raises(ValueError) as error:
        small(**options)
    assert all(word in str(error.value) for word in words), error.value
