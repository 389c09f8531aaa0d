"""A model and its tokenizer, written side by side, whole or not at all, and read back together."""

import zipfile

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data.text_model import load_text_model, save_text_model

TEXTS = ["guten Morgen", "guten Abend", "gute Nacht"]


@pytest.fixture
def pair():
    tokenizer = kt.data.train_tokenizer(TEXTS, level="character", min_frequency=1, vocabulary_size=50)
    size = tokenizer.vocabulary_size
    return kt.models.transformer(size, size, 1, 2, 8, 16, start_token_id=1, stop_token_id=2), tokenizer


def test_round_trip_and_nothing_else_is_left(pair, tmp_path):
    model, tokenizer = pair
    save_text_model(model, tokenizer, tmp_path / "small.keras")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.keras", "small.tokenizer.json"]
    loaded, loaded_tokenizer = load_text_model(str(tmp_path / "small.keras"))
    assert loaded_tokenizer.encode(TEXTS) == tokenizer.encode(TEXTS)
    ids = np.asarray(tokenizer.encode(TEXTS[:1]), "int32")
    inputs = {"encoder_token_ids": ids, "decoder_token_ids": ids}
    np.testing.assert_allclose(loaded.predict(inputs, verbose=0), model.predict(inputs, verbose=0), atol=1e-6)


def test_what_cannot_be_written_leaves_the_old_files(pair, tmp_path, monkeypatch):
    model, tokenizer = pair
    path = tmp_path / "small.keras"
    save_text_model(model, tokenizer, path)
    before = path.read_bytes()

    def half_written(self, filepath):
        with open(filepath, "wb") as file:
            file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(keras.Model, "save", half_written)
    with pytest.raises(OSError, match="disk full"):
        save_text_model(model, tokenizer, path)
    assert path.read_bytes() == before
    assert sorted(found.name for found in tmp_path.iterdir()) == ["small.keras", "small.tokenizer.json"]


def test_refused_paths_and_pairs(pair, tmp_path):
    model, tokenizer = pair
    with pytest.raises(ValueError, match="must end in '.keras'.*small.h5"):
        save_text_model(model, tokenizer, tmp_path / "small.h5")
    other = kt.data.train_tokenizer(["abc"], level="character", min_frequency=1)
    with pytest.raises(ValueError, match=f"do not belong together.*{tokenizer.vocabulary_size} ids.*other 7"):
        save_text_model(model, other, tmp_path / "small.keras")
    assert not list(tmp_path.iterdir())


def test_a_model_with_another_head_need_not_end_in_as_many_numbers_as_ids(pair, tmp_path):
    tokenizer = pair[1]
    sizes = {"num_layers": 1, "hidden_dim": 8, "num_heads": 2, "intermediate_dim": 16}
    bert = kt.models.bert(None, tokenizer.vocabulary_size, 9, **sizes)
    other = kt.data.train_tokenizer(["abc"], level="character", min_frequency=1)
    for head, classes in (("sequence_classification", 3), ("question_answering", None), ("sentence_embedding", None)):
        model = kt.models.with_head(bert, head, num_classes=classes)
        save_text_model(model, tokenizer, tmp_path / "small.keras")
        with pytest.raises(ValueError, match=f"do not belong together.*{tokenizer.vocabulary_size} ids.*other 7"):
            save_text_model(model, other, tmp_path / "small.keras")
    loaded, _ = load_text_model(tmp_path / "small.keras")
    assert loaded.output_shape == (None, 8)
    with pytest.raises(ValueError, match="do not belong together"):
        save_text_model(kt.models.with_head(bert, "masked_lm"), other, tmp_path / "small.keras")


def test_files_that_cannot_be_read(pair, tmp_path):
    path = tmp_path / "small.keras"
    with pytest.raises(ValueError, match="Cannot read a model from .*small.keras"):
        load_text_model(path)
    save_text_model(*pair, path)
    other = kt.data.train_tokenizer(["abc"], level="character", min_frequency=1)
    other.save(tmp_path / "small.tokenizer.json")
    with pytest.raises(ValueError, match="do not belong together"):
        load_text_model(path)
    (tmp_path / "small.tokenizer.json").unlink()
    with pytest.raises(ValueError, match="small.tokenizer.json"):
        load_text_model(path)


@pytest.mark.parametrize("damage", ["empty", "no archive", "cut off", "an archive of something else", "no weights"])
def test_damaged_models(damage, pair, tmp_path):
    path = tmp_path / "small.keras"
    save_text_model(*pair, path)
    if damage in ("an archive of something else", "no weights"):
        with zipfile.ZipFile(path) as archive:
            kept = {name: archive.read(name) for name in ("config.json", "metadata.json") if damage == "no weights"}
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in {"readme.txt": b"hello", **kept}.items():
                archive.writestr(name, content)
    else:
        whole = path.read_bytes()
        path.write_bytes({"empty": b"", "no archive": b"hello", "cut off": whole[: len(whole) // 2]}[damage])
    with pytest.raises(ValueError, match="Cannot read a model from .*small.keras"):
        load_text_model(path)
