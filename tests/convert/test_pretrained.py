"""A folder of `transformers` as a model of ours: every tensor in its place, and nothing else read."""

import json
import os
import struct
import time

import keras
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers

import keras_transformer as kt
from keras_transformer.convert import files, load_pretrained, save_pretrained
from tests.backend import numpy, predict
from tests.models import published

SIZES = {"vocab_size": 19, "d_model": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8, "d_ff": 20}
T5 = {**SIZES, "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0, "relative_attention_num_buckets": 8}
BART = {"vocab_size": 19, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 12}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20}
VIT = {"image_size": 8, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VIT |= {"intermediate_size": 20, "num_labels": 3}
MARIAN = {**BART, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
OTHERS = {
    "marian": lambda: transformers.MarianMTModel(transformers.MarianConfig(**MARIAN)),
    "deit": lambda: transformers.DeiTForImageClassification(transformers.DeiTConfig(**VIT)),
    "deit, two heads": lambda: transformers.DeiTForImageClassificationWithTeacher(transformers.DeiTConfig(**VIT)),
    "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(**T5)),
    "bart": lambda: transformers.BartForConditionalGeneration(transformers.BartConfig(**BART)),
    "vit": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**VIT)),
}


def values(model):
    return {x.path.split("/", 1)[-1]: numpy(x.value) for x in model.variables if "seed_generator" not in x.path}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """GPT-2 in one file."""
    path = tmp_path_factory.mktemp("gpt2")
    published.theirs("gpt2").save_pretrained(path)
    return path


@pytest.fixture
def copy(folder, tmp_path):
    """GPT-2 in a folder that a test may change."""
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("name", published.CASES)
def test_every_tensor_is_in_its_place(name, tmp_path):
    """Bit for bit those of the model that was filled by the table, which equals theirs in its outputs."""
    published.theirs(name).save_pretrained(tmp_path)
    found, expected = values(load_pretrained(tmp_path, pad_token_id=0)), values(published.ours(name))
    assert [*found] == [*expected]
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value)


@pytest.mark.parametrize("name", OTHERS)
def test_families_of_two_sides_and_of_images(name, tmp_path):
    theirs = OTHERS[name]().eval()
    theirs.save_pretrained(tmp_path)
    model = load_pretrained(tmp_path)
    count = sum(x.numel() for x in theirs.parameters())
    # Two positions that theirs never uses on each side; sinusoids; a bias that is no parameter of theirs.
    extra = {"bart": 4 * 16, "marian": 2 * 12 * 16 - 19}.get(name, 0)
    family = {"marian": "bart"}.get(name, "vit" if "deit" in name else name)
    assert kt.layers.read_card(model)["family"] == family
    assert count - extra <= model.count_params() <= count


@pytest.mark.parametrize("name", ["vit", "deit", "deit, two heads"])
def test_classes_of_images_equal_theirs(name, tmp_path):
    theirs = OTHERS[name]().eval()
    for x in theirs.parameters():
        torch.nn.init.normal_(x, std=0.3)
    theirs.save_pretrained(tmp_path / "theirs")
    model = load_pretrained(tmp_path / "theirs")
    assert_same_classes(model, theirs)
    swapped = kt.models.with_head(model, "image_classification", num_classes=4)
    save_pretrained(swapped, tmp_path / "swapped")
    kind = transformers.ViTForImageClassification if name == "vit" else transformers.DeiTForImageClassification
    assert_same_classes(swapped, theirs_in(tmp_path / "swapped", kind))


def assert_same_classes(model, theirs):
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("float32")
    with torch.no_grad():
        expected = theirs(torch.tensor(images.transpose(0, 3, 1, 2))).logits.numpy()
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(predict(model, images), expected, atol=1e-4)


def test_several_files(tmp_path):
    published.theirs("llama").save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    found, expected = values(load_pretrained(tmp_path)), values(published.ours("llama"))
    assert all((found[path] == expected[path]).all() for path in expected)


@pytest.mark.parametrize("asked", [None, "float32"])
def test_the_type_of_the_tensors_is_kept_or_changed(asked, copy):
    tensors = safetensors.numpy.load_file(copy / files.WHOLE)
    tensors = {name: x.astype(ml_dtypes.bfloat16) for name, x in tensors.items()}
    safetensors.numpy.save_file(tensors, copy / files.WHOLE)
    model = load_pretrained(copy, dtype=asked)
    table = model.get_layer("embedding").embeddings
    assert keras.backend.standardize_dtype(table.dtype) == (asked or "bfloat16")
    expected = tensors["transformer.wte.weight"].astype("float32")
    np.testing.assert_array_equal(numpy(keras.ops.cast(table, "float32")), expected)


def test_options_beside_the_config(folder):
    model = load_pretrained(folder, name="mine", dropout=0.0, pad_token_id=3)
    assert model.name == "mine" and kt.layers.read_card(model)["pad_token_id"] == 3
    assert predict(model, np.asarray([[1, 2]])).shape == (1, 2, published.VOCABULARY_SIZE)


def with_config(folder, **entries):
    config = json.loads((folder / files.CONFIG).read_text())
    (folder / files.CONFIG).write_text(json.dumps({**config, **entries}))


def with_index(folder, places):
    (folder / files.WHOLE).rename(folder / "a.safetensors")
    (folder / files.INDEX).write_text(places if isinstance(places, str) else json.dumps({"weight_map": places}))


def header(data, body=b""):
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    return struct.pack("<Q", len(data)) + data + body


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
EIGHT_BITS = {"dtype": "F8_E5M2", "shape": [2], "data_offsets": [0, 2]}
TWICE = b'{"a":%b,"a":%b}' % ((json.dumps(ONE).encode(),) * 2)
DEEP = '{"a":' * 100_000
CONFIGS = {
    "family": ({"model_type": "unheard of"}, "`model_type`.*'unheard of'"),
    "no family": ({"model_type": None}, "`model_type`.*None"),
    "vocabulary": ({"vocab_size": 10**12}, "vocabulary_size=1000000000000"),
    "layers": ({"n_layer": 10**9}, "1,000,000,000 layers"),
    "inner size": ({"n_inner": 10**7}, "intermediate_dim=10000000"),
    "features": ({"n_embd": "sixteen"}, "config.json|hidden_dim"),
    "a list": ({"activation_function": ["gelu"]}, "activation_function"),
    "activation": ({"activation_function": "mish"}, "activation_function.*'mish'"),
    "other mathematics": ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    "another size": ({"vocab_size": 18}, r"'transformer.wte.weight' must have shape \(18, 16\).*\(19, 16\)"),
    "more layers": ({"n_layer": 3}, "no tensor 'transformer.h.2"),
    "fewer layers": ({"n_layer": 1}, "no place for.*transformer.h.1"),
}


@pytest.mark.parametrize("entries, message", CONFIGS.values(), ids=CONFIGS)
def test_a_config_that_cannot_be(entries, message, copy):
    with_config(copy, **entries)
    start = time.process_time()
    with pytest.raises(ValueError, match=message):
        load_pretrained(copy)
    assert time.process_time() - start < 30  # that nothing of such a size was made


FILES = {
    "truncated": (files.WHOLE, lambda data: data[:-4], "model.safetensors"),
    "longer": (files.WHOLE, lambda data: data + b"0" * 4, "model.safetensors"),
    "empty": (files.WHOLE, lambda data: b"", "model.safetensors"),
    "lying header": (files.WHOLE, lambda data: struct.pack("<Q", 2**60) + data[8:], "model.safetensors.*header"),
    "deep header": (files.WHOLE, lambda data: header(DEEP.encode()), "model.safetensors"),
    "a name twice": (files.WHOLE, lambda data: header(TWICE, b"0" * 8), "'a' twice"),
    "overlapping": (files.WHOLE, lambda data: header({"a": ONE, "b": ONE}, b"0" * 8), "model.safetensors"),
    "too large a shape": (files.WHOLE, lambda data: header({"a": {**ONE, "shape": [2**62, 2**62]}}, b"0" * 8), "model"),
    "unknown type": (
        files.WHOLE,
        lambda data: header({"a": {**ONE, "dtype": "F8_E5M2", "data_offsets": [0, 2]}}, b"00"),
        "F8",
    ),
    "no config": (files.CONFIG, lambda data: b"[1]", "config.json.*list"),
    "deep config": (files.CONFIG, lambda data: DEEP.encode(), "config.json"),
    "bytes": (files.CONFIG, lambda data: b"\xff\xfe\xff", "config.json"),
    "a key twice": (files.CONFIG, lambda data: b'{"model_type": "gpt2", "model_type": "bert"}', "'model_type' twice"),
}


@pytest.mark.parametrize("name, change, message", FILES.values(), ids=FILES)
def test_a_broken_file(name, change, message, copy):
    (copy / name).write_bytes(change((copy / name).read_bytes()))
    with pytest.raises(ValueError, match=message):
        load_pretrained(copy)


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "b/a.safetensors", "..", "", "a\0b", 7, None])
def test_an_index_that_leads_out_of_the_folder(name, copy):
    with_index(copy, {"transformer.wte.weight": name})
    with pytest.raises(ValueError, match="must lie in its folder"):
        load_pretrained(copy)


def test_an_index_that_is_wrong(copy):
    names = [*safetensors.numpy.load_file(copy / files.WHOLE)]
    places = dict.fromkeys(names, "a.safetensors")
    with_index(copy, places)
    assert load_pretrained(copy).count_params() > 0
    for wrong, message in (
        ({**places, "more": "a.safetensors"}, "in no file.*'more'"),
        (dict.fromkeys(names[1:], "a.safetensors"), f"does not say.*{names[0]}"),
        ({**places, names[0]: "b.safetensors"}, "no file 'b.safetensors'"),
        ({}, "weight_map"),
    ):
        (copy / files.INDEX).write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(ValueError, match=message):
            load_pretrained(copy)


def test_links_and_pickles(copy, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "secret"
    outside.write_bytes((copy / files.WHOLE).read_bytes())
    (copy / files.WHOLE).unlink()
    with pytest.raises(ValueError, match="no file 'model.safetensors'"):
        load_pretrained(copy)
    (copy / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ValueError, match="Pickled weights are not read: pytorch_model.bin"):
        load_pretrained(copy)
    os.symlink(outside, copy / files.WHOLE)
    with pytest.raises(ValueError, match="link out of the folder"):
        load_pretrained(copy)
    (copy / files.WHOLE).unlink()
    os.mkfifo(copy / files.WHOLE)
    with pytest.raises(ValueError, match="no file"):
        load_pretrained(copy)


def test_nothing_but_a_value_error(copy):
    """Bytes changed, left out and put in at random places of the header, or anywhere."""
    path, random = copy / files.WHOLE, np.random.default_rng(0)
    whole = path.read_bytes()
    size = 8 + struct.unpack("<Q", whole[:8])[0]
    refused = 0
    for i in range(400):
        data = bytearray(whole)
        for place in random.integers(0, size if i % 4 else len(whole), random.integers(1, 4)):
            kind = random.integers(3)
            if kind == 0:
                data[place] = random.integers(256)
            elif kind == 1:
                del data[place : place + random.integers(1, 9)]
            else:
                data[place:place] = random.bytes(random.integers(1, 9))
        path.write_bytes(data)
        try:
            tensors = files.Tensors(copy)
            assert all(np.asarray(x).shape == x.shape for x in tensors.values())
        except ValueError:
            refused += 1
    assert refused > 200


def theirs_in(folder, kind):
    """Their model of a folder, and nothing missing or left over."""
    model, told = kind.from_pretrained(folder, output_loading_info=True, dtype="auto")
    assert not any(told[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    return model.eval()


def state(model):
    return {name: x.detach() for name, x in model.state_dict().items()}


@pytest.mark.parametrize("name", [*published.CASES, *OTHERS])
def test_a_folder_comes_back_as_it_was(name, tmp_path):
    """Through ours and a `.keras` file, bit for bit, with the config that it had."""
    theirs = OTHERS[name]() if name in OTHERS else published.theirs(name)
    theirs.save_pretrained(tmp_path / "theirs")
    model = load_pretrained(tmp_path / "theirs")
    model.save(tmp_path / "model.keras")
    save_pretrained(keras.models.load_model(tmp_path / "model.keras"), tmp_path / "ours")
    again = theirs_in(tmp_path / "ours", type(theirs))
    expected, found = state(theirs), state(again)
    assert expected.keys() == found.keys() and all((found[key] == x).all() for key, x in expected.items())
    before, after = (theirs.config.to_dict(), again.config.to_dict())
    differing = {key for key in before if before[key] != after.get(key)}
    assert differing <= {"_name_or_path", "dtype", "architectures", "transformers_version"}


@pytest.mark.parametrize("image_size", [16, (16, 8)])
def test_images_of_another_size_are_told(image_size, tmp_path):
    OTHERS["vit"]().save_pretrained(tmp_path / "theirs")
    model = kt.models.resize_vit(load_pretrained(tmp_path / "theirs"), image_size)
    save_pretrained(model, tmp_path / "ours")
    again = theirs_in(tmp_path / "ours", transformers.ViTForImageClassification)
    assert again.config.image_size in (image_size, list(np.atleast_1d(image_size)))
    images = np.random.default_rng(0).normal(size=(2, *np.broadcast_to(image_size, 2), 3)).astype("float32")
    with torch.no_grad():
        expected = again(torch.tensor(images.transpose(0, 3, 1, 2))).logits.numpy()
    np.testing.assert_allclose(predict(model, images), expected, atol=1e-4)


def test_options_go_into_the_config(folder, tmp_path):
    """What they change of the numbers is told, as a number or a word of theirs; what no config can say is refused."""
    model, ids = load_pretrained(folder, norm_epsilon=0.5, activation="relu", dropout=0.3), np.asarray([[1, 2, 3]])
    save_pretrained(model, tmp_path / "told")
    theirs = theirs_in(tmp_path / "told", transformers.GPT2LMHeadModel)
    np.testing.assert_allclose(predict(model, ids), theirs(torch.tensor(ids)).logits.detach().numpy(), atol=1e-4)
    assert np.abs(predict(model, ids) - predict(load_pretrained(folder), ids)).max() > 0.01
    for untold in ({"activation": "tanh"}, {"norm": "layer"}):
        with pytest.raises(ValueError, match=f"loaded with {[*untold][0]}"):
            save_pretrained(load_pretrained(folder, **untold), tmp_path / "untold")
    assert not (tmp_path / "untold").exists()


@pytest.mark.parametrize("kind", ["dynamic", "yarn"])
def test_scaled_positions_that_do_not_say_their_length(kind, tmp_path):
    """Theirs takes the longest text of the config then; this one is longer."""
    sizes = {**published.SIZES, "max_position_embeddings": 6}
    rope = {"rope_type": kind, "rope_theta": 500.0, "factor": 4.0}
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, rope_parameters=rope)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ids = np.random.default_rng(0).integers(0, published.VOCABULARY_SIZE, (1, 12))
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    model = load_pretrained(tmp_path / "theirs")
    np.testing.assert_allclose(predict(model, ids), expected, atol=1e-4)
    save_pretrained(model, tmp_path / "ours")
    assert theirs_in(tmp_path / "ours", type(theirs)).config.rope_parameters == theirs.config.rope_parameters


@pytest.mark.parametrize("directory", ["gpt2", None, 3])
def test_what_is_no_folder(directory):
    with pytest.raises(ValueError, match=f"must be a folder; nothing is downloaded.*{directory}"):
        load_pretrained(directory)


def test_what_was_trained_goes_back_in_several_files(tmp_path):
    published.theirs("llama").save_pretrained(tmp_path / "theirs")
    model = load_pretrained(tmp_path / "theirs")
    model.set_weights([w + 1 for w in model.get_weights()])
    save_pretrained(model, tmp_path / "ours", max_shard_size=4096)
    assert len(list((tmp_path / "ours").glob("model-0000*-of-*.safetensors"))) > 2
    found = state(theirs_in(tmp_path / "ours", transformers.LlamaForCausalLM))
    assert all((found[name] == x + 1).all() for name, x in state(published.theirs("llama")).items())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_sixteen_bits_go_back_as_they_are(name, dtype, tmp_path):
    """Also those that we compute with in 32 bits: logits and routers."""
    published.theirs(name).save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / files.WHOLE
    tensors = safetensors.numpy.load_file(path)
    safetensors.numpy.save_file({k: x.astype(keras_dtype(dtype)) for k, x in tensors.items()}, path)
    save_pretrained(load_pretrained(tmp_path / "theirs"), tmp_path / "back")
    found = safetensors.numpy.load_file(tmp_path / "back" / files.WHOLE)
    assert found.keys() == tensors.keys()
    assert all(x.dtype == dtype and (x == tensors[name].astype(x.dtype)).all() for name, x in found.items())


def keras_dtype(name):
    return ml_dtypes.bfloat16 if name == "bfloat16" else name


def test_what_cannot_be_written(folder, tmp_path, monkeypatch):
    model = load_pretrained(folder)
    with pytest.raises(ValueError, match="it is of no family of `kt.models`"):
        save_pretrained(
            kt.models.transformer(9, 9, num_layers=1, num_heads=2, hidden_dim=4, intermediate_dim=8), tmp_path / "new"
        )
    with pytest.raises(ValueError, match="exists"):
        save_pretrained(model, tmp_path)
    with pytest.raises(ValueError, match="max_shard_size=0"):
        save_pretrained(model, tmp_path / "new", max_shard_size=0)

    def fail(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    with pytest.raises(OSError, match="full"):
        save_pretrained(model, tmp_path / "new")
    assert not list(tmp_path.iterdir())
