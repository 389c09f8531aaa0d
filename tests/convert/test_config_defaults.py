"""What a config leaves out is what `transformers` has by default, entry by entry; and what is refused."""

import inspect
import json

import pytest
import transformers

import keras_transformer as kt
from keras_transformer.convert import load_pretrained
from keras_transformer.convert.config import builder_arguments
from keras_transformer.convert.pretrained import family_of
from keras_transformer.models.sizes import sizes_of
from tests.convert import zoo


def told(config):
    """All that the builder is told of a config, what it has by default included; None where sizes are missing."""
    family, builder = family_of(config)
    given = builder_arguments(config, family.FIELDS)
    by_default = {name: x.default for name, x in inspect.signature(builder).parameters.items()}
    try:
        return {**by_default, **sizes_of(builder.__name__, None, **given)}
    except ValueError:
        return None


# Where the builder has another one by default, the shapes of tensors say that it is not theirs.
SHAPES = ("vocabulary_size", "max_sequence_length")
# None: as many as of another one.
AS = {"num_key_value_heads": "num_heads", "num_decoder_layers": "num_layers", "num_decoder_heads": "num_heads"}
AS |= {"decoder_intermediate_dim": "intermediate_dim"}


def plain(arguments, name):
    """The argument, spelled out."""
    value = arguments.get(name)
    if value is None and name in AS:
        return arguments[AS[name]]
    if name == "key_dim":
        return value or arguments["hidden_dim"] // arguments["num_heads"]
    if name == "rotary_scaling" and value and value["rope_type"] == "default":
        return None
    if name == "layer_types":
        return [value[i % len(value)] for i in range(arguments["num_layers"])]
    return None if value in ((), False) else value


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_every_entry_may_be_left_out(name):
    """Unless it is a size that no builder has by default, without which it refuses."""
    full = json.loads(getattr(transformers, name).config_class(architectures=[name]).to_json_string(use_diff=False))
    expected, num_missing, wrong = told(full), 0, []
    for key in full.keys() - {"model_type"}:
        found = told({entry: value for entry, value in full.items() if entry != key})
        num_missing += found is None
        for argument in expected.keys() - {*SHAPES} if found else ():
            ours, theirs = (plain(x, argument) for x in (found, expected))
            if ours != theirs:
                wrong.append(f"without {key}: {argument}={ours!r} instead of {theirs!r}")
    assert not wrong, "; ".join(wrong)
    assert 3 <= num_missing <= 10


def folder(tmp_path, name, **entries):
    zoo.theirs(name).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))
    return tmp_path


def test_a_head_that_the_folder_lacks(tmp_path):
    """It is new where it was asked for, and said; else the folder is not what its config says."""
    path = folder(tmp_path, "BertModel", architectures=["BertForTokenClassification"])
    with pytest.raises(ValueError, match="token_classification.*no weights"):
        load_pretrained(path)
    with pytest.warns(UserWarning, match="'token_classification'.*new"):
        model = load_pretrained(path, head="token_classification")
    assert model.output_shape == (None, None, 2)
    assert "sequence_output" in load_pretrained(path, head=False).output


def test_an_activation_that_the_head_of_roberta_has_not(tmp_path):
    path = folder(tmp_path, "RobertaForMaskedLM", hidden_act="relu")
    with pytest.raises(ValueError, match="`hidden_act`.*'gelu'.*'relu'"):
        load_pretrained(path)
    load_pretrained(path, head=False)


SIZES = {
    "BartForConditionalGeneration": ({"decoder_ffn_dim": 10**9}, "decoder_intermediate_dim"),
    "T5ForConditionalGeneration": ({"relative_attention_num_buckets": 10**10}, "relative_buckets"),
    "ViTForImageClassification": ({"image_size": 10**5}, "image_size"),
    "DeiTForImageClassification": ({"num_channels": 10**8}, "patch_size"),
    "GPT2LMHeadModel": ({"n_layer": 60, "n_head": 1, "n_inner": 1}, "60 layers"),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_no_tensor_has(name, tmp_path):
    entries, message = SIZES[name]
    with pytest.raises(ValueError, match=message):
        load_pretrained(folder(tmp_path, name, **entries))


def test_ids_given_beside_the_config_are_written(tmp_path):
    """Theirs looks for a text's last token by the id of padding, and ends texts by `generation_config.json`."""
    path = folder(tmp_path / "theirs", "GPT2LMHeadModel", pad_token_id=None)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 3}))
    model = load_pretrained(path, pad_token_id=0, stop_token_id=7)
    kt.convert.save_pretrained(model, tmp_path / "ours")
    config = transformers.GPT2Config.from_pretrained(tmp_path / "ours")
    generation = transformers.GenerationConfig.from_pretrained(tmp_path / "ours")
    assert config.pad_token_id == 0 and generation.eos_token_id == 7


def test_an_id_of_zero_ends_texts(tmp_path):
    path = folder(tmp_path, "GPT2LMHeadModel")
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    assert kt.layers.read_card(load_pretrained(path))["stop_token_id"] == 0


def test_a_config_without_architectures_gets_them_with_a_head(tmp_path):
    path = folder(tmp_path / "theirs", "BertModel", architectures=None)
    model = kt.models.with_head(load_pretrained(path), "token_classification", num_classes=4)
    kt.convert.save_pretrained(model, tmp_path / "ours")
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "ours")
    assert type(theirs).__name__ == "BertForTokenClassification" and theirs.config.num_labels == 4
    assert load_pretrained(tmp_path / "ours").output_shape == (None, None, 4)


def test_two_classes_of_a_built_bart(tmp_path):
    """Its config has three by default."""
    sizes = {"num_layers": 1, "hidden_dim": 8, "num_heads": 2, "intermediate_dim": 8, "max_sequence_length": 16}
    model = kt.models.bart(None, vocabulary_size=19, **sizes)
    model = kt.models.with_head(model, "sequence_classification", num_classes=2)
    kt.convert.save_pretrained(model, tmp_path / "ours")
    _, told = transformers.BartForSequenceClassification.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
