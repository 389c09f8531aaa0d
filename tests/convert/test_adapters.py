"""Low-rank adapters: PEFT's folders in and out, and what is written of a model that has some."""

import json

import keras
import numpy as np
import peft
import pytest
import safetensors.numpy
import torch
import transformers

from keras_transformer.convert import load_adapter, load_pretrained, save_adapter, save_pretrained
from tests.backend import numpy, predict
from tests.convert import zoo
from tests.convert.test_pretrained import theirs_in

KINDS = {  # class of theirs: modules that are adapted
    "LlamaForCausalLM": ["q_proj", "k_proj", "o_proj", "gate_proj", "down_proj"],
    "GPT2LMHeadModel": ["c_attn", "c_proj"],
    "BertForSequenceClassification": ["query", "value", "output.dense", "pooler.dense"],
    "T5ForConditionalGeneration": ["q", "v", "wo"],
}


def assert_same(model, right):
    for found, expected in zoo.outputs(model, right):
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.fixture(params=KINDS)
def pair(request, tmp_path):
    """Ours, and their adapted model with its folder."""
    theirs = zoo.theirs(request.param)
    theirs.save_pretrained(tmp_path / "base")
    kind = "SEQ_CLS" if "Classification" in request.param else None  # whose head is trained whole
    options = {"r": 3, "lora_alpha": 5, "target_modules": KINDS[request.param], "task_type": kind}
    options |= {"rank_pattern": {KINDS[request.param][0]: 2}, "use_rslora": request.param.startswith("Llama")}
    adapted = peft.get_peft_model(theirs, peft.LoraConfig(**options)).eval()
    for name, x in adapted.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            torch.nn.init.normal_(x, std=0.3)
    adapted.save_pretrained(tmp_path / "adapter")
    return load_pretrained(tmp_path / "base"), adapted, tmp_path


def test_a_folder_of_peft_is_added(pair):
    model, adapted, folder = pair
    load_adapter(model, folder / "adapter")
    assert_same(model, adapted)
    save_pretrained(model, folder / "merged")
    name = json.loads((folder / "merged" / "config.json").read_text())["architectures"][0]
    assert_same(model, theirs_in(folder / "merged", getattr(transformers, name)))


def with_adapters(name, folder):
    """Ours with random adapters on queries, one feed-forward projection, and what comes out of attention."""
    zoo.theirs(name).save_pretrained(folder / "base")
    model = load_pretrained(folder / "base")
    block = next(layer for layer in model.layers if "block_0" in layer.name)
    attention, network = block.self_attention, block.feed_forward
    for rank, layer in ((2, attention.query_dense), (3, attention.output_dense), (2, network.intermediate_dense)):
        layer.enable_lora(rank, lora_alpha=4)
        for i, factor in enumerate((layer.lora_kernel_a, layer.lora_kernel_b)):
            factor.assign(np.random.default_rng((rank, i)).normal(size=factor.shape))
    return model


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_adapters_of_keras_are_written(name, tmp_path):
    """As such, and merged into the weights."""
    model = with_adapters(name, tmp_path)
    base = load_pretrained(tmp_path / "base")
    assert abs(predict(model, zoo.IDS) - predict(base, zoo.IDS)).max() > 0.1
    save_adapter(model, tmp_path / "adapter")
    adapted = peft.PeftModel.from_pretrained(
        getattr(transformers, name).from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    )
    assert_same(model, adapted.eval())
    load_adapter(base, tmp_path / "adapter")
    np.testing.assert_allclose(predict(base, zoo.IDS), predict(model, zoo.IDS), atol=1e-4)
    save_pretrained(model, tmp_path / "merged")
    assert_same(model, theirs_in(tmp_path / "merged", getattr(transformers, name)))


def change(folder, config=None, tensors=None):
    path = folder / "adapter" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **(config or {})}))
    path = folder / "adapter" / "adapter_model.safetensors"
    found = {**safetensors.numpy.load_file(path), **(tensors or {})}
    safetensors.numpy.save_file({name: x for name, x in found.items() if x is not None}, path)


QUERY = "base_model.model.model.layers.0.self_attn.q_proj"
WRONG = {
    "another kind": ({"peft_type": "IA3"}, None, "`peft_type`.*'IA3'"),
    "directions": ({"use_dora": True}, None, "`use_dora`.*True"),
    "another rank": ({"rank_pattern": {"q_proj": 9}}, None, "rank and the scale of"),
    "no scale": ({"alpha_pattern": {"q_proj": "much"}}, None, "lora_alpha='much'"),
    "a wild card": ({"rank_pattern": {".*": 2}}, None, "without wild cards"),
    "no dict": ({"alpha_pattern": [2]}, None, "must name modules"),
    "huge": (
        None,
        {
            f"{QUERY}.lora_A.weight": np.zeros((4, 300_000), "float32"),
            f"{QUERY}.lora_B.weight": np.zeros((300_000, 4), "float32"),
        },
        r"must have shape \(16, 16\). Received: \(300000, 300000\)",
    ),
    "one factor": (None, {f"{QUERY}.lora_B.weight": None}, "must be matrices.*q_proj|q_proj.*must be matrices"),
    "another shape": (None, {f"{QUERY}.lora_A.weight": np.ones((4, 3), "float32")}, "q_proj.*must have shape"),
    "no such module": (
        None,
        {f"base_model.model.lost.lora_{x}.weight": np.ones((4, 4), "float32") for x in "AB"},
        "no matrix for the adapter 'lost'",
    ),
    "another tensor": (None, {"base_model.model.lost.bias": np.ones(4, "float32")}, "no place for.*lost.bias"),
}


@pytest.mark.parametrize("config, tensors, message", WRONG.values(), ids=WRONG)
def test_what_does_not_fit_changes_nothing(config, tensors, message, tmp_path):
    model = with_adapters("LlamaForCausalLM", tmp_path)
    save_adapter(model, tmp_path / "adapter")
    change(tmp_path, config, tensors)
    base = load_pretrained(tmp_path / "base")
    before = [numpy(x) for x in base.weights]
    with pytest.raises(ValueError, match=message):
        load_adapter(base, tmp_path / "adapter")
    assert all((numpy(x) == y).all() for x, y in zip(base.weights, before, strict=True))


def test_what_has_no_place(tmp_path):
    model = with_adapters("LlamaForCausalLM", tmp_path)
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match="exists"):
        save_adapter(model, tmp_path / "there")
    with pytest.raises(ValueError, match="has no adapters"):
        save_adapter(load_pretrained(tmp_path / "base"), tmp_path / "adapter")
    with pytest.raises(ValueError, match="did not come from `load_pretrained`"):
        save_adapter(adapted_dense(), tmp_path / "adapter")
    with pytest.raises(ValueError, match="must be a folder"):
        load_adapter(model, tmp_path / "nowhere")
    model.get_layer("embedding").token_embedding.enable_lora(2)
    with pytest.raises(ValueError, match="no place in a folder of PEFT.*lora_embeddings"):
        save_adapter(model, tmp_path / "adapter")
    with pytest.raises(ValueError, match="no row for these variables.*lora"):
        save_pretrained(model, tmp_path / "new")


def adapted_dense():
    inputs = keras.Input((3,))
    layer = keras.layers.Dense(2)
    model = keras.Model(inputs, layer(inputs))
    layer.enable_lora(1)
    return model
