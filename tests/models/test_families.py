"""BERT, GPT-2, Llama and its relatives against `transformers` with the same weights, and their published sizes."""

import keras
import numpy as np
import pytest
import torch

import keras_transformer as kt
from keras_transformer.convert import table
from keras_transformer.models.sizes import SIZES
from tests.backend import numpy, predict, weight_gradients
from tests.generation import hf
from tests.models import published
from tests.models.published import CASES

# Soft caps, windows, two kinds of rotary positions; more among the invariants.
WRITERS = ["gpt2", "opt", "phi3", "mixtral", "gemma", "gemma2", "gemma3"]
# Together they have every kind of weight: a pooler, tables of positions, biases, norms of queries and keys, sandwiches.
KINDS = ["bert", "gpt2", "qwen2, some windows", "gemma3"]


@pytest.mark.parametrize("family", ["bert", "gpt", "llama", "vit", "t5", "bart", "transformer"])
def test_a_sublayer_is_a_pattern_for_all_blocks(family):
    """It takes the place of the number, and every block has one of its own."""
    options = {"num_layers": 2, "hidden_dim": 8, "feed_forward": kt.layers.FeedForward(6, gated=True, seed=1)}
    if family == "vit":
        model = kt.models.vit("ti16", image_size=8, patch_size=4, num_classes=None, num_heads=2, **options)
    elif family == "transformer":
        model = kt.models.transformer(9, 9, num_heads=2, **options)
    else:
        model = getattr(kt.models, family)("tiny", vocabulary_size=9, num_heads=2, **options)
    kernels = {x.path for x in model.trainable_variables if x.path.endswith("gate/kernel")}
    assert len(kernels) == (4 if family in ("t5", "bart", "transformer") else 2)
    assert all(x.shape[1] == 6 for x in model.trainable_variables if x.path in kernels)
    again = keras.Model.from_config(model.get_config())
    assert [x.path for x in again.trainable_variables] == [x.path for x in model.trainable_variables]


@pytest.mark.parametrize("placement", ["post", "pre", "sandwich", "output"])
@pytest.mark.parametrize("family", ["bert", "gpt", "t5", "vit"])
def test_what_leaves_the_blocks_is_normed_once(family, placement):
    """By a norm of its own, unless the last block ends with one."""
    sizes = {"t5": {"vocabulary_size": 9}, "vit": {"num_classes": None, "image_size": 8, "patch_size": 4}}
    sizes = sizes.get(family, {"vocabulary_size": 9, "max_sequence_length": 8})
    size = "ti16" if family == "vit" else "tiny"
    model = getattr(kt.models, family)(size, num_layers=1, norm_placement=placement, **sizes)
    name = {"gpt": "decoder_norm", "t5": "decoder_norm"}.get(family, "encoder_norm")
    model = model.get_layer("decoder") if family == "t5" else model
    assert any(layer.name == name for layer in model.layers) == (placement != "post")


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_states_equal_transformers(name):
    ids, real = published.batch(name)
    with torch.no_grad():
        expected = published.theirs(name)(
            torch.tensor(ids), attention_mask=torch.tensor(real).long(), output_hidden_states=True
        )
    found = predict(published.with_states(name), ids)
    states = expected.hidden_states
    assert len(states) == len(found["states"]) == 1 + CASES[name].num_layers
    for ours, theirs in list(zip(found["states"], states, strict=True))[: -1 if CASES[name].is_causal else None]:
        np.testing.assert_allclose(ours[real], theirs.numpy()[real], atol=1e-4)  # their last one is normed
    outputs = found["outputs"]
    if not isinstance(outputs, dict) and not CASES[name].is_causal:
        outputs = {"sequence_output": outputs}
    if CASES[name].is_causal:
        assert outputs.dtype == "float32" and abs(outputs[real]).max() > 0.3
        np.testing.assert_allclose(outputs[real], expected.logits.numpy()[real], atol=1e-4)
    else:
        np.testing.assert_allclose(
            outputs["sequence_output"][real], expected.last_hidden_state.numpy()[real], atol=1e-4
        )
        assert ("pooled_output" in outputs) == (expected.get("pooler_output") is not None)
        if "pooled_output" in outputs:
            np.testing.assert_allclose(outputs["pooled_output"], expected.pooler_output.numpy(), atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_the_table_goes_back(name):
    family, tensors = CASES[name].family, published.tensors(name)
    back = table.save(published.ours(name), family.ROWS)
    back = {path if path in tensors else path.removeprefix(family.PREFIX): x for path, x in back.items()}
    assert back.keys() == tensors.keys()
    for path, value in back.items():
        assert value.shape == tensors[path].shape
        np.testing.assert_array_equal(value, tensors[path])


@pytest.mark.parametrize("name", ["bert, tanh gelu", "gpt2", "llama, grouped, tied, biases", "gemma3"])
def test_names_with_and_without_prefix(name):
    """The file of a bare model lacks the prefix, the one of a model with a head has it."""
    family = CASES[name].family
    model = keras.models.clone_model(published.ours(name))
    tensors = table.save(published.ours(name), family.ROWS)
    bare = {path.removeprefix(family.PREFIX): x for path, x in tensors.items()}
    for names in (tensors, bare):
        for variable in model.variables:
            if variable.dtype == "float32":
                variable.assign(np.zeros(variable.shape))
        published.load(model, names, family)
        for path, value in table.save(model, family.ROWS).items():
            np.testing.assert_array_equal(value, tensors[path])


def test_a_head_that_is_not_tied_is_not_dropped():
    name, family = "llama, grouped, tied, biases", CASES["llama"].family
    tensors = {**published.tensors(name)}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    with pytest.raises(ValueError, match="'lm_head.weight' is not 'model.embed_tokens.weight'"):
        published.load(published.ours(name), tensors, family)


@pytest.mark.parametrize("name", WRITERS)
def test_greedy_texts_equal_transformers(name):
    rows = [[3, 1, 4], [1, 5, 9, 2, 6]]
    theirs = hf.generate(published.theirs(name), rows, max_new_tokens=6, do_sample=False)
    ours = kt.generate(published.ours(name, pad_token_id=None), rows, 6)  # in which they may write 0
    for row, (expected, _), found in zip(rows, theirs, ours, strict=True):
        assert list(found[: len(row) + 6]) == row + expected[0]


def test_segments():
    ids, real = published.batch("bert")
    segments = (np.arange(ids.shape[1]) > 3).astype("int32") * np.ones_like(ids)
    with torch.no_grad():
        expected = published.theirs("bert")(
            torch.tensor(ids), attention_mask=torch.tensor(real).long(), token_type_ids=torch.tensor(segments)
        ).last_hidden_state.numpy()
    model = published.ours("bert", with_segments=True, pooler=False)
    found = predict(model, {"token_ids": ids, "segment_ids": segments})
    np.testing.assert_allclose(found[real], expected[real], atol=1e-4)
    without = predict(published.ours("bert"), ids)["sequence_output"]
    assert abs(found[real] - without[real]).max() > 0.1


def test_states_of_bert_carry_the_padding_mask():
    """Called eagerly: what JAX traces has no mask to look at."""
    ids, real = published.batch("bert")
    ids = keras.ops.convert_to_tensor(ids)
    found = published.ours("bert")(ids)["sequence_output"]
    np.testing.assert_array_equal(numpy(found._keras_mask), real)
    found = published.ours("bert", with_segments=True, pooler=False)({"token_ids": ids, "segment_ids": ids * 0})
    np.testing.assert_array_equal(numpy(found._keras_mask), real)


@pytest.mark.parametrize("name", KINDS)
def test_every_weight_has_a_gradient(name):
    model, (ids, _) = published.ours(name), published.batch(name)

    def loss():
        outputs = keras.tree.flatten(model(keras.ops.convert_to_tensor(ids)))
        return sum(keras.ops.mean(keras.ops.square(x - 1)) for x in outputs)

    found = weight_gradients(model, loss)
    zero = {path for path, gradient in found.items() if abs(gradient).max() < 1e-7}
    assert all(path.endswith("self_attention/key/bias") for path in zero), zero  # the softmax takes it out


@pytest.mark.parametrize("name", KINDS)
def test_saving(name, tmp_path):
    ids, _ = published.batch(name)
    model = published.ours(name)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]
    assert kt.layers.read_card(loaded) == kt.layers.read_card(model)
    for found, expected in zip(*(keras.tree.flatten(predict(m, ids)) for m in (loaded, model)), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


BUILDERS = {"bert": kt.models.bert, "gpt": kt.models.gpt, "llama": kt.models.llama}


@pytest.mark.parametrize(
    "family, options, words",
    [
        ("bert", {"size": "huge"}, ["'huge'", "'base'", "'tiny'"]),
        ("bert", {"size": None}, ["num_layers", "intermediate_dim"]),
        ("bert", {"num_heads": 3, "vocabulary_size": 9}, ["num_heads=3", "hidden_dim=128"]),
        ("bert", {"num_segments": -1}, ["num_segments", "-1"]),
        ("bert", {"num_segments": 0, "with_segments": True}, ["with_segments=True", "num_segments=0"]),
        ("bert", {"pad_token_id": 30522}, ["pad_token_id", "30522"]),
        ("gpt", {"max_sequence_length": 0}, ["max_sequence_length", "0"]),
        ("gpt", {"stop_token_id": [1, 50257]}, ["stop_token_id", "50257"]),
        ("llama", {"size": None, "num_layers": 2}, ["vocabulary_size, num_heads, hidden_dim"]),
        ("llama", {"num_heads": 3}, ["num_heads=3", "hidden_dim=128"]),
        ("llama", {"num_heads": 6, "key_dim": 4, "num_key_value_heads": 4}, ["num_heads=6", "num_key_value_heads=4"]),
        ("llama", {"layer_types": ["local"]}, ["layer_types", "'local'", "'sliding_attention'"]),
        ("llama", {"layer_types": []}, ["layer_types", "'full_attention'"]),
        ("llama", {"vocabulary_size": -1}, ["vocabulary_size", "-1"]),
        ("llama", {"num_layers": 1, "vocabulary_size": 9, "logits_soft_cap": -2.0}, ["cap", "-2.0"]),
    ],
)
def test_refused_arguments(family, options, words):
    with pytest.raises(ValueError) as error:
        BUILDERS[family](**{"size": "tiny", **options})
    assert all(word in str(error.value) for word in words), error.value


def test_what_a_row_says_can_be_taken_back():
    """0 and False are without it."""
    sizes = {"num_layers": 2, "hidden_dim": 8, "num_heads": 2, "key_dim": 4, "intermediate_dim": 8}
    gemma = {"attention_soft_cap": 0, "logits_soft_cap": 0, "sliding_window": 0, "norm_placement": "pre"}
    model = kt.models.llama("gemma2_2b", vocabulary_size=9, num_key_value_heads=1, **sizes, **gemma)
    attention = model.get_layer("decoder_block_0").self_attention
    assert attention.variants.soft_cap is None and attention.sliding_window is None
    assert "soft_cap" not in [layer.name for layer in model.layers]
    assert not any("output_norm" in weight.path for weight in model.weights)
    published = kt.models.llama("gemma2_2b", vocabulary_size=9, num_key_value_heads=1, **sizes)
    windows = [published.get_layer(f"decoder_block_{i}").self_attention.sliding_window for i in range(2)]
    assert windows == [4096, None]


def count(family, size):
    """Blocks of a model have the same size, so that one with a single block tells that of all."""
    with keras.StatelessScope(initialize_variables=False):  # without being allocated
        model = BUILDERS[family](size, num_layers=1)
        block = next(layer for layer in model.layers if layer.name.endswith("block_0"))
        return model.count_params() + (SIZES[family][size]["num_layers"] - 1) * block.count_params()


@pytest.mark.parametrize("family", BUILDERS)
def test_published_numbers_of_parameters(family):
    published = {size: number for (name, size), number in PUBLISHED.items() if name == family}
    assert {size: count(family, size) for size in published} == published


PUBLISHED = {
    ("bert", "tiny"): 4_385_920,
    ("bert", "base"): 109_482_240,
    ("bert", "large"): 335_141_888,
    ("gpt", "small"): 124_439_808,
    ("gpt", "medium"): 354_823_168,
    ("gpt", "large"): 774_030_080,
    ("gpt", "xl"): 1_557_611_200,
    ("llama", "7b"): 6_738_415_616,
    ("llama", "13b"): 13_015_864_320,
    ("llama", "70b"): 68_976_648_192,
    ("llama", "llama3_8b"): 8_030_261_248,
    ("llama", "llama3_70b"): 70_553_706_496,
    ("llama", "llama3.1_8b"): 8_030_261_248,
    ("llama", "llama3.2_1b"): 1_235_814_400,
    ("llama", "llama3.2_3b"): 3_212_749_824,
    ("llama", "mistral_7b"): 7_241_732_096,
    ("llama", "mixtral_8x7b"): 46_702_792_704,
    ("llama", "phi3_mini"): 3_821_079_552,
    ("llama", "qwen2_0.5b"): 494_032_768,
    ("llama", "qwen2_1.5b"): 1_543_714_304,
    ("llama", "qwen2_7b"): 7_615_616_512,
    ("llama", "qwen3_0.6b"): 596_049_920,
    ("llama", "qwen3_1.7b"): 1_720_574_976,
    ("llama", "qwen3_4b"): 4_022_468_096,
    ("llama", "qwen3_8b"): 8_190_735_360,
    ("llama", "gemma2_2b"): 2_614_341_888,
    ("llama", "gemma2_9b"): 9_241_705_984,
    ("llama", "gemma2_27b"): 27_227_128_320,
    ("llama", "gemma3_1b"): 999_885_952,
    ("llama", "gemma3_4b"): 3_880_263_168,
    ("llama", "gemma3_12b"): 11_766_034_176,
    ("llama", "gemma3_27b"): 27_009_346_304,
}
