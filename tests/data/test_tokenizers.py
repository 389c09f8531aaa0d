import os
import sys

import keras
import numpy as np
import pytest
import tokenizers

from keras_transformer.data import Tokenizer, train_tokenizer

TEXTS = [
    "The old man opens the document and saves it.",
    "Der alte Mann öffnet das Dokument und speichert es.",
    "The document costs 1,234.50 euros in 2024.",
    "Das Dokument kostet 1.234,50 Euro im Jahr 2024.",
] * 4

AWKWARD = [
    "",
    " ",
    "a",
    " a",
    "  a  b ",
    "\n\ttab\r\n",
    "Don't! (really?) – “yes”…",
    "<stop> <pad><start> <unknown>",
    "日本語のテキスト",
    "e\u0301 is not \u00e9",
    "हिन्दी में",
    "👩‍👩‍👧 🇩🇪",
    "▁Ġ\u00a0\x00",
    "zero\u200bwidth",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, vocabulary_size=340)


@pytest.fixture(scope="module")
def characters():
    return train_tokenizer(TEXTS, level="character")


def test_subwords_lose_nothing(tokenizer):
    token_ids = tokenizer.encode(TEXTS + AWKWARD)
    assert tokenizer.decode(token_ids) == TEXTS + AWKWARD
    assert tokenizer.decode(tokenizer.encode(TEXTS + AWKWARD, add_special_tokens=True)) == TEXTS + AWKWARD
    assert token_ids[len(TEXTS)] == []  # the empty text
    assert min(map(min, filter(None, token_ids))) > 3  # text never becomes a special token, nor unknown
    assert max(map(max, filter(None, token_ids))) < tokenizer.vocabulary_size == 340


def test_characters_lose_nothing_they_know(characters):
    assert characters.decode(characters.encode(TEXTS)) == TEXTS
    assert all(len(ids) == len(text) for ids, text in zip(characters.encode(TEXTS), TEXTS))
    assert characters.vocabulary_size == 4 + len(set("".join(TEXTS)))
    assert characters.decode(characters.encode(["a日n", ""])) == ["a<unknown>n", ""]
    assert characters.encode(["日"]) == [[characters.unknown_token_id]]


def test_characters_are_the_most_frequent_ones():
    tokenizer = train_tokenizer(["aaabbc", "b\n\n"], vocabulary_size=6, level="character", min_frequency=1)
    assert tokenizer.encode(["abc"]) == [[4, 5, 3]]
    assert train_tokenizer(["aab\n\n"], level="character").encode(["\nab"]) == [[4, 5, 3]]


def test_subwords_are_learned_and_digits_stand_alone(tokenizer):
    assert tokenizer.pieces(tokenizer.encode("The document")[0]) == ["The", "document"]
    assert tokenizer.encode("document")[0] == tokenizer.encode("The document")[0][1:]
    assert len(tokenizer.encode("2024")[0]) == 4
    assert tokenizer.pieces([0, 1, 2, 3]) == ["<pad>", "<start>", "<stop>", "<unknown>"]


def test_special_tokens(tokenizer):
    assert (tokenizer.pad_token_id, tokenizer.start_token_id, tokenizer.stop_token_id) == (0, 1, 2)
    plain, framed = tokenizer.encode(["euro"])[0], tokenizer.encode(["euro"], add_special_tokens=True)[0]
    assert framed == [1, *plain, 2]
    assert tokenizer.decode([framed + [0, 0]]) == ["euro"]
    assert tokenizer.decode([framed], skip_special_tokens=False) == ["<start> euro<stop>"]


def test_one_text_or_sequence_is_a_batch_of_one(tokenizer):
    assert tokenizer.encode("Mann") == tokenizer.encode(["Mann"])
    ids = tokenizer.encode("Mann")[0]
    for form in (ids, np.array(ids), [ids], np.array([ids + [0]], "int32"), [np.array(ids)]):
        assert tokenizer.decode(form) == ["Mann"]
    assert tokenizer.encode([]) == tokenizer.decode([]) == [] and tokenizer.decode([[]]) == [""]


@pytest.mark.parametrize("level", ["subword", "character"])
def test_training_is_deterministic(level, tmp_path):
    # The library's hash maps are seeded anew for each training, so that an order that leaks from them would show.
    for name in ("one", "other"):
        train_tokenizer(iter(TEXTS), vocabulary_size=340, level=level).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


@pytest.mark.parametrize("level", ["subword", "character"])
def test_save_and_load(level, tmp_path):
    path = tmp_path / "NAME.tokenizer.json"
    saved = train_tokenizer(TEXTS, vocabulary_size=300, level=level)
    saved.save(path)
    loaded = Tokenizer.load(path)
    assert loaded.vocabulary_size == saved.vocabulary_size
    assert loaded.encode(TEXTS + AWKWARD) == saved.encode(TEXTS + AWKWARD)
    assert loaded.decode(loaded.encode(TEXTS)) == TEXTS
    assert os.listdir(tmp_path) == [path.name]
    # anybody's reader of the format understands the file
    theirs = tokenizers.Tokenizer.from_file(str(path))
    assert [encoding.ids for encoding in theirs.encode_batch(TEXTS)] == saved.encode(TEXTS)
    assert theirs.decode_batch(saved.encode(TEXTS)) == TEXTS


def test_a_failed_save_leaves_the_old_file(tokenizer, tmp_path, monkeypatch):
    path = tmp_path / "old.json"
    path.write_text("old")

    def fail(*arguments):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        tokenizer.save(path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["old.json"]


def test_unreadable_files_are_named(tmp_path, tokenizer):
    damaged, other = tmp_path / "damaged.json", tmp_path / "other.json"
    tokenizer.save(damaged)
    damaged.write_bytes(damaged.read_bytes()[:-100])
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(other))
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\x00")
    for path in (damaged, other, binary, tmp_path / "missing.json", tmp_path):
        with pytest.raises(ValueError, match="Cannot read a tokenizer") as error:
            Tokenizer.load(path)
        assert str(path) in str(error.value)


@pytest.mark.parametrize("wrong", [340, -1])
def test_ids_outside_the_vocabulary_are_refused(tokenizer, wrong):
    with pytest.raises(ValueError, match=rf"\[0, 340\).* id {wrong}\."):
        tokenizer.decode([[5, wrong]])
    with pytest.raises(ValueError, match="integer"):
        tokenizer.decode([[5.0]])


@pytest.mark.parametrize("texts", [[None], ["a", 3], [b"bytes"], [("a", "b")], ["lone \ud800 surrogate"]])
def test_what_is_not_text_is_refused(tokenizer, texts):
    for function in (tokenizer.encode, train_tokenizer):
        with pytest.raises(ValueError, match=f"at {len(texts) - 1}"):
            function(texts)


@pytest.mark.parametrize(
    "texts, options, message",
    [
        ([], {}, "no text"),
        (["", ""], {}, "no text"),
        (["a"], {"vocabulary_size": 259}, "at least 260.*vocabulary_size=259"),
        (["a"], {"vocabulary_size": 4, "level": "character"}, "at least 5.*vocabulary_size=4"),
        (["a"], {"vocabulary_size": 1e4}, "vocabulary_size=10000.0"),
        (["a"], {"level": "word"}, "level='word'"),
    ],
)
def test_train_tokenizer_refuses(texts, options, message):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(texts, **options)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"keras-transformer-kit\[text\]"):
        train_tokenizer(["a"])


@pytest.mark.parametrize("level", ["subword", "character"])
def test_extra_tokens_are_ids_of_no_text(level, tmp_path):
    texts = ["good morning <extra_0>"] * 5
    tokenizer = train_tokenizer(texts, 300, level, extra_tokens=3)
    assert tokenizer.extra_token_ids == [4, 5, 6] and train_tokenizer(texts, 300, level).extra_token_ids == []
    token_ids = tokenizer.encode(texts)
    assert not {4, 5, 6} & set(token_ids[0]) and tokenizer.decode(token_ids) == texts
    tokenizer.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").extra_token_ids == [4, 5, 6]
    assert Tokenizer.load(tmp_path / "tokenizer.json").encode(texts) == token_ids
    with pytest.raises(ValueError, match="`extra_tokens` must be an integer of 0 or more"):
        train_tokenizer(texts, 300, level, extra_tokens=-1)
    with pytest.raises(ValueError, match="must be an int of at least"):
        train_tokenizer(texts, 4 + 256 * (level == "subword"), level, extra_tokens=1)


def test_ids_may_be_a_tensor_of_the_backend():
    tokenizer = train_tokenizer(["good morning"] * 5, vocabulary_size=280)
    ids = tokenizer.encode(["good"], add_special_tokens=True)
    assert tokenizer.decode(keras.ops.convert_to_tensor(ids)) == ["good"]
    with pytest.raises(ValueError, match="`min_frequency`.*min_frequency=2.5"):
        train_tokenizer(["good"], vocabulary_size=280, min_frequency=2.5)
