"""Models that a builder made, in the files of `transformers`: the config is found that says the same."""

import keras
import numpy as np
import pytest
import torch
import transformers

import keras_transformer as kt
from keras_transformer.convert import load_pretrained, save_pretrained
from tests import reference
from tests.backend import predict
from tests.convert.test_heads import assert_same
from tests.convert.test_pretrained import assert_same_classes, theirs_in

SIZES = {"vocabulary_size": 19, "num_layers": 2, "hidden_dim": 16, "num_heads": 2, "intermediate_dim": 20}
LLAMA = {**SIZES, "num_key_value_heads": 1}
VIT = {"num_classes": 3, "image_size": 8, "patch_size": 4, **{k: x for k, x in SIZES.items() if k[0] != "v"}}
GEMMA = {"norm_placement": "sandwich", "zero_centered": True, "embedding_scale": 4.0, "query_scale": 0.5}
GEMMA |= {"tie_embeddings": True, "activation": "gelu_tanh", "sliding_window": 3}
IDS = {"pad_token_id": 0, "start_token_id": 1, "stop_token_id": 2}
MODELS = {  # class of theirs, builder, options
    "BertModel": ("bert", {**SIZES, "max_sequence_length": 12, "norm_epsilon": 1e-3}),
    "DistilBertModel": (
        "bert",
        {**SIZES, "max_sequence_length": 12, "num_segments": 0, "pooler": False, "pooler_activation": "relu"},
    ),
    "GPT2LMHeadModel": ("gpt", {**SIZES, "max_sequence_length": 12, **IDS}),
    "OPTForCausalLM": ("gpt", {**SIZES, "max_sequence_length": 12, "position_offset": 2, "activation": "relu"}),
    "LlamaForCausalLM": ("llama", {**LLAMA, **IDS, "rotary_base": 50.0}),
    "MistralForCausalLM": ("llama", {**LLAMA, "sliding_window": 3}),
    "Qwen2ForCausalLM": ("llama", {**LLAMA, "use_bias": ("query", "key", "value"), "tie_embeddings": True}),
    "Qwen3ForCausalLM": ("llama", {**LLAMA, "qk_norm": True, "key_dim": 6}),
    "Qwen2ForCausalLM, windows": (
        "llama",
        {
            **LLAMA,
            "use_bias": ("query", "key", "value"),
            "sliding_window": 3,
            "layer_types": ("sliding_attention", "full_attention"),
        },
    ),
    "Phi3ForCausalLM": ("llama", {**LLAMA, "rotary_fraction": 0.5}),
    "MixtralForCausalLM": ("llama", {**LLAMA, "num_experts": 4}),
    "Gemma2ForCausalLM": (
        "llama",
        {**LLAMA, **GEMMA, "attention_soft_cap": 5.0, "layer_types": ("sliding_attention", "full_attention")},
    ),
    "T5ForConditionalGeneration": ("t5", {**SIZES, "key_dim": 6, "gated": True, "tie_embeddings": False}),
    "BartForConditionalGeneration": ("bart", {**SIZES, "max_sequence_length": 12, "num_decoder_layers": 1}),
    "MBartForConditionalGeneration": ("bart", {**SIZES, "max_sequence_length": 12, "norm_placement": "pre"}),
    "ViTForImageClassification": ("vit", VIT),
    "DeiTForImageClassification": ("vit", {**VIT, "distillation_token": True}),
    "DeiTForImageClassificationWithTeacher": (
        "vit",
        {**VIT, "distillation_token": True, "distillation_head": True},
    ),
}


def built(name):
    builder, options = MODELS[name]
    model = getattr(kt.models, builder)(None, **options)
    reference.randomize(model, stddev=0.3)
    return model


def assert_same_states(model, theirs):
    ids = np.array([[5, 6, 7, 3, 4, 8]])
    inputs = {"input_ids": torch.tensor(ids)}
    if theirs.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor(ids[:, :4])
    with torch.no_grad():
        expected = theirs(**inputs)
    found = predict(model, [ids, ids[:, :4]] if theirs.config.is_encoder_decoder else ids)
    found = found["sequence_output"] if isinstance(found, dict) else found
    expected = expected.logits if hasattr(expected, "logits") else expected.last_hidden_state
    assert np.abs(found).max() > 0.1
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_what_a_builder_made_is_written(name, tmp_path):
    model = built(name)
    model.save(tmp_path / "model.keras")
    save_pretrained(keras.models.load_model(tmp_path / "model.keras"), tmp_path / "folder")
    theirs = theirs_in(tmp_path / "folder", getattr(transformers, name.partition(",")[0]))
    (assert_same_classes if "Image" in name else assert_same_states)(model, theirs)
    again = load_pretrained(tmp_path / "folder")
    for ours, expected in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, expected)
    card, told = kt.layers.read_card(model), theirs.config
    assert getattr(told, "pad_token_id", None) == card.get("pad_token_id")
    assert getattr(told, "eos_token_id", None) == card.get("stop_token_id")


@pytest.mark.parametrize(
    "name, head, kind",
    [
        ("BertModel", "masked_lm", "BertForMaskedLM"),
        ("DistilBertModel", "sequence_classification", "DistilBertForSequenceClassification"),
        ("GPT2LMHeadModel", "token_classification", "GPT2ForTokenClassification"),
        ("LlamaForCausalLM", "sequence_classification", "LlamaForSequenceClassification"),
    ],
)
def test_with_a_head(name, head, kind, tmp_path):
    classes = {} if head == "masked_lm" else {"num_classes": 3}
    model = kt.models.with_head(built(name), head, **classes)
    save_pretrained(model, tmp_path / "folder")
    assert_same(model, theirs_in(tmp_path / "folder", getattr(transformers, kind)))


@pytest.mark.parametrize(
    "builder, options",
    [
        ("gpt", {**SIZES, "norm_placement": "sandwich"}),
        ("gpt", {**SIZES, "activation": "tanh"}),
        ("bert", {**SIZES, "norm": "rms"}),
        ("llama", {**LLAMA, "feed_forward": kt.layers.FeedForward(8)}),
        ("llama", {**LLAMA, "parallel": True}),
        ("t5", {**SIZES, "key_dim": 6, "norm_placement": "post"}),
    ],
)
def test_what_no_config_can_say_is_refused(builder, options, tmp_path):
    model = getattr(kt.models, builder)(None, **options)
    with pytest.raises(ValueError, match="has no place in `transformers`: no config of the types"):
        save_pretrained(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
