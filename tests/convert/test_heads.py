"""Folders of `transformers`' models with heads for tasks: the same outputs, and back bit for bit."""

import json

import keras
import numpy as np
import pytest
import tokenizers
import transformers

import keras_transformer as kt
from keras_transformer.convert import load_pretrained, save_pretrained
from tests.backend import numpy
from tests.convert.test_pretrained import state, theirs_in
from tests.convert.zoo import BERT, GPT_2, KINDS, T5, outputs, theirs


def assert_same(model, right):
    """The outputs of ours and theirs on real tokens."""
    for found, expected in outputs(model, right):
        assert np.abs(expected).max() > 0.01
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("name", KINDS)
def test_in_and_out_again(name, tmp_path):
    model = theirs(name)
    model.save_pretrained(tmp_path / "theirs")
    loaded = load_pretrained(tmp_path / "theirs")
    assert_same(loaded, model)
    loaded.save(tmp_path / "model.keras")
    save_pretrained(keras.models.load_model(tmp_path / "model.keras"), tmp_path / "ours")
    again = theirs_in(tmp_path / "ours", type(model))
    before, after = state(model), state(again)
    assert before.keys() == after.keys() and all((after[key] == x).all() for key, x in before.items())
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == [name]
    assert again.config.num_labels == model.config.num_labels


@pytest.mark.parametrize("name", ["BertForMaskedLM", "RobertaForMaskedLM", "GPT2ForTokenClassification"])
def test_another_head_or_none_on_the_same_states(name, tmp_path):
    theirs(name).save_pretrained(tmp_path / "theirs")
    whole = load_pretrained(tmp_path / "theirs")
    bare = load_pretrained(tmp_path / "theirs", head=False)
    assert not kt.layers.read_head(bare)
    other = load_pretrained(tmp_path / "theirs", head="sequence_classification")
    assert kt.layers.read_head(other)["head"] == "sequence_classification" and len(other.output_shape) == 2
    block = next(layer.name for layer in whole.layers if "block" in layer.name)
    for model in (bare, other):
        for mine, right in zip(model.get_layer(block).weights, whole.get_layer(block).weights, strict=True):
            np.testing.assert_array_equal(numpy(mine.value), numpy(right.value))
    save_pretrained(other, tmp_path / "ours")
    kind = getattr(transformers, name.partition("For")[0] + "ForSequenceClassification")
    assert_same(other, theirs_in(tmp_path / "ours", kind))


def test_a_number_instead_of_classes(tmp_path):
    model = theirs("BertForSequenceClassification", num_labels=1)
    model.save_pretrained(tmp_path / "theirs")
    loaded = load_pretrained(tmp_path / "theirs")
    assert kt.layers.read_head(loaded)["head"] == "regression"
    assert_same(loaded, model)
    save_pretrained(loaded, tmp_path / "ours")
    assert theirs_in(tmp_path / "ours", type(model)).config.problem_type == "regression"


def test_a_head_that_is_put_on_afterwards_is_written(tmp_path):
    theirs("BertForMaskedLM").save_pretrained(tmp_path / "theirs")
    model = kt.models.with_head(load_pretrained(tmp_path / "theirs"), "token_classification", num_classes=5)
    save_pretrained(model, tmp_path / "ours")
    again = theirs_in(tmp_path / "ours", transformers.BertForTokenClassification)
    assert again.config.num_labels == 5
    assert_same(model, again)
    sizes = {"num_layers": 1, "hidden_dim": 8, "num_heads": 2, "intermediate_dim": 8}
    gpt = kt.models.gpt(None, vocabulary_size=19, max_sequence_length=8, **sizes)
    with pytest.raises(ValueError, match="no model of the type 'gpt2' with a head 'sentence_embedding'"):
        save_pretrained(kt.models.with_head(gpt, "sentence_embedding"), tmp_path / "other")


def test_what_cannot_be_a_head(tmp_path):
    theirs("BertForMaskedLM").save_pretrained(tmp_path)
    for head in ("language_model", "nonsense", True, 3):
        with pytest.raises(ValueError, match="`head` of a checkpoint of the type 'bert' must be one of"):
            load_pretrained(tmp_path, head=head)
    config = json.loads((tmp_path / "config.json").read_text())
    for entries in ({"num_labels": 10**12}, {"id2label": 5}, {"num_labels": "many"}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **entries}))
        with pytest.raises(ValueError):
            load_pretrained(tmp_path, head="sequence_classification")
    for names in (None, [], "BertModel", [3], ["Nothing"]):
        (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": names}))
        assert not kt.layers.read_head(load_pretrained(tmp_path))


def test_described_without_reading_a_weight(tmp_path):
    theirs("BertForTokenClassification").save_pretrained(tmp_path)
    text = kt.convert.describe(tmp_path)
    builder, head, *tensors = text.splitlines()
    assert builder.startswith("keras_transformer.models.bert(None, vocabulary_size=19, max_sequence_length=12")
    assert head == "keras_transformer.models.with_head(model, head='token_classification', num_classes=3)"
    model = load_pretrained(tmp_path)
    places = [line.partition("-> ")[2] for line in tensors]
    assert sorted(places) == sorted(x.path for x in model.variables if "seed_generator" not in x.path)
    without = kt.convert.describe(tmp_path, head=False).splitlines()
    assert len(without) == len(tensors) + 1 and sum("not needed" in line for line in without) == 2


def test_a_tokenizer_neither_pads_nor_cuts(tmp_path):
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "the": 1, "sea": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_padding(length=6)
    made.enable_truncation(2)
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = kt.convert.load_tokenizer(tmp_path)
    assert [x.ids for x in tokenizer.encode_batch(["the sea the sea", "sea"])] == [[1, 2, 1, 2], [2]]
    model = kt.models.gpt(None, 3, 16, num_layers=1, hidden_dim=8, num_heads=2, intermediate_dim=8)
    assert isinstance(kt.generate(model, "the sea", 3, tokenizer=tokenizer, stop_token_id=[])[0], str)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="tokenizer.json is no tokenizer"):
        kt.convert.load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="no file 'tokenizer.json'.*keras_hub"):
        kt.convert.load_tokenizer(tmp_path)


def test_settings_of_generation_come_and_go(tmp_path):
    """A file beside the config may name several ids that end a text."""
    config = transformers.GPT2Config(**GPT_2, bos_token_id=1, eos_token_id=2)
    model = transformers.GPT2LMHeadModel(config)
    model.generation_config.eos_token_id = [2, 5]
    model.generation_config.temperature = 0.7
    model.generation_config.do_sample = True
    model.save_pretrained(tmp_path / "theirs")
    loaded = load_pretrained(tmp_path / "theirs")
    assert kt.layers.read_card(loaded)["stop_token_id"] == [2, 5]
    loaded.save(tmp_path / "model.keras")
    save_pretrained(keras.models.load_model(tmp_path / "model.keras"), tmp_path / "ours")
    before, after = (
        [json.loads((tmp_path / side / name).read_text()) for name in ("config.json", "generation_config.json")]
        for side in ("theirs", "ours")
    )
    assert before == after
    (tmp_path / "theirs" / "generation_config.json").write_text("[]")
    with pytest.raises(ValueError, match="generation_config.json must hold a JSON object"):
        load_pretrained(tmp_path / "theirs")


def test_a_t5_that_says_it_is_not_tied_and_is(tmp_path):
    """Theirs ties the table whatever its config says, and leaves the scale off then."""
    config = transformers.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    model = transformers.T5ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path / "theirs")
    loaded = load_pretrained(tmp_path / "theirs")
    assert_same(loaded, model)
    save_pretrained(loaded, tmp_path / "ours")
    again = theirs_in(tmp_path / "ours", type(model))
    assert again.config.scale_decoder_outputs is False
    assert_same(loaded, again)


def test_a_tensor_of_a_head_is_not_passed_over_unasked(tmp_path):
    """The config does not say that there is a head; only who leaves it off says that it is not needed."""
    theirs("GPT2ForTokenClassification").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(ValueError, match="no place for these tensors.*classifier.bias"):
        load_pretrained(tmp_path)
    assert load_pretrained(tmp_path, head=False).output_shape == (None, None, 19)


def test_a_head_that_is_not_read_is_refused_unless_it_is_left_off(tmp_path):
    """Its tensors have the names of another head's; what is written then has none of them."""
    sizes = {key: x for key, x in BERT.items() if key != "max_position_embeddings"}
    transformers.BertForMultipleChoice(transformers.BertConfig(**sizes)).save_pretrained(tmp_path / "theirs")
    for read in (load_pretrained, kt.convert.describe):
        with pytest.raises(ValueError, match="holds a BertForMultipleChoice.*'bert' are read: ForMaskedLM, .*False"):
            read(tmp_path / "theirs")
    save_pretrained(load_pretrained(tmp_path / "theirs", head=False), tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == ["BertModel"]
    theirs_in(tmp_path / "ours", transformers.BertModel)


def test_described_as_it_is_built(tmp_path):
    """With what the tensors say: there is no pooler."""
    theirs("RobertaForTokenClassification").save_pretrained(tmp_path)
    assert "pooler=False" in kt.convert.describe(tmp_path).splitlines()[0]


def test_classes_instead_of_a_number(tmp_path):
    theirs("BertForSequenceClassification", num_labels=1).save_pretrained(tmp_path / "theirs")
    model = load_pretrained(tmp_path / "theirs")
    save_pretrained(model, tmp_path / "number")
    model = load_pretrained(tmp_path / "number")
    model = kt.models.with_head(model, "sequence_classification", num_classes=4)
    save_pretrained(model, tmp_path / "classes")
    assert kt.layers.read_head(load_pretrained(tmp_path / "classes"))["head"] == "sequence_classification"
