"""`kt.models.vit` against transformers with the same weights, at any image size, and what must change nothing in it."""

import functools
import tempfile

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_transformer as kt
from keras_transformer.convert import table, vit
from keras_transformer.convert.config import builder_arguments
from keras_transformer.models import sizes
from tests import reference
from tests.backend import numpy, predict, vectors, weight_gradients
from tests.hurry import outputs_in_training, train_in_a_hurry

SIZES = {"patch_size": 4, "num_layers": 2, "hidden_dim": 8, "num_heads": 2, "intermediate_dim": 12}
IMAGE_SIZE = (8, 12)


def copy_weights(theirs, ours):
    """Every weight of theirs into one of ours; none is left over on either side."""
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        state = safetensors.numpy.load_file(f"{folder}/model.safetensors")
    table.load(ours, state, vit.ROWS, vit.IGNORED)
    return state


def small(image_size=IMAGE_SIZE, num_classes=5, **options):
    model = kt.models.vit(None, num_classes, image_size, **{**SIZES, **options})
    reference.randomize(model, stddev=0.3)
    return model


@functools.cache
def shared(**options):
    """A model that tests leave as they found it."""
    return small(**options)


def theirs(image_size=IMAGE_SIZE, patch_size=4, num_channels=3):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        image_size=list(image_size),
        patch_size=patch_size,
        num_channels=num_channels,
        num_labels=5,
    )
    model = transformers.ViTForImageClassification(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model


def their_logits(model, images, **options):
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), **options).logits.numpy()


@pytest.mark.parametrize("image_size, patch_size, num_channels", [((8, 12), 4, 3), ((6, 6), 3, 1)])
def test_logits_equal_transformers(image_size, patch_size, num_channels):
    their = theirs(image_size, patch_size, num_channels)
    model = small(image_size, patch_size=patch_size, num_channels=num_channels)
    state = copy_weights(their, model)
    images = vectors(2, *image_size, num_channels)
    logits = predict(model, images)
    assert logits.shape == (2, 5) and logits.dtype == "float32"
    np.testing.assert_allclose(logits, their_logits(their, images), atol=1e-5)
    saved = table.save(model, vit.ROWS)
    assert saved.keys() == state.keys() and all((saved[name] == state[name]).all() for name in state)


def test_arguments_from_a_config():
    config = theirs().config
    found = builder_arguments({**config.to_dict(), "id2label": config.id2label}, vit.FIELDS)
    given = {"image_size": [8, 12], "num_channels": 3, "dropout": 0.0, "norm_epsilon": 1e-12, "activation": "gelu"}
    assert found == {**SIZES, **given, "num_classes": 5}
    assert builder_arguments({}, vit.FIELDS)["num_classes"] == 2  # which a config does not say
    with pytest.raises(ValueError, match="qkv_bias"):
        builder_arguments({"qkv_bias": False}, vit.FIELDS)


@functools.cache
def square():
    """A model of theirs, and ours with its weights."""
    their, model = theirs((16, 16)), small((16, 16))
    copy_weights(their, model)
    return their, model


@pytest.mark.parametrize("image_size", [(24, 24), (12, 20), (4, 8)], ids=str)
def test_at_another_image_size_logits_equal_transformers(image_size):
    """B45: `interpolate_pos_encoding=True`."""
    their, model = square()
    resized = kt.models.resize_vit(model, image_size)
    images = vectors(2, *image_size, 3)
    expected = their_logits(their, images, interpolate_pos_encoding=True)
    np.testing.assert_allclose(predict(resized, images), expected, atol=1e-5)


@pytest.mark.parametrize("pooling", ["class_token", "mean"])
def test_resizing_from_one_shape_to_another(pooling, tmp_path):
    """B45: the number of tokens is exact, the prefix stays, the model that is given too."""
    model = shared(pooling=pooling, num_classes=None)
    before = [numpy(weight) for weight in model.weights]
    resized = kt.models.resize_vit(model, (16, 4))
    prefix = int(pooling == "class_token")
    assert model.output.shape == (None, 6 + prefix, 8) and resized.output.shape == (None, 4 + prefix, 8)
    assert [w.path for w in resized.weights] == [w.path for w in model.weights]
    for weight, new, old in zip(model.weights, map(numpy, resized.weights), before, strict=True):
        np.testing.assert_array_equal(numpy(weight), old)
        if weight.path == "embedding/position_embeddings":
            assert new.shape == (4 + prefix, 8)
            np.testing.assert_array_equal(new[:prefix], old[:prefix])
            old = numpy(kt.ops.interpolate_positions(old, (2, 3), (4, 1), prefix))
        np.testing.assert_array_equal(new, old)
    images = vectors(2, 16, 4, 3)
    resized.save(tmp_path / "resized.keras")
    loaded = keras.models.load_model(tmp_path / "resized.keras")
    np.testing.assert_allclose(predict(loaded, images), predict(resized, images), atol=1e-6)
    card = kt.layers.read_card(loaded)
    assert card["image_size"] == [16, 4] and kt.layers.read_card(model)["image_size"] == [8, 12]
    again = kt.models.resize_vit(model, IMAGE_SIZE)
    for weight, old in zip(again.weights, before, strict=True):
        np.testing.assert_array_equal(numpy(weight), old)


def test_models_of_ones_own_are_resized_too():
    images = keras.Input((4, 4, 2), name="photos")
    x = kt.layers.PatchEmbedding(2, 8)(images)
    x = kt.layers.ClassToken(2)(x)
    x = kt.layers.PositionalEmbedding(None, 8, 6, position="learned", position_offset=1)(x)
    x = kt.layers.SequencePooling("mean")(kt.layers.EncoderBlock(2, 12)(x))
    model = keras.Model(images, {"a": keras.layers.Dense(2)(x), "b": keras.layers.Dense(3)(x)})
    reference.randomize(model)
    model.compile("adam", "mse")
    resized = kt.models.resize_vit(model, (4, 8))
    assert resized.compiled and resized.optimizer is not model.optimizer
    outputs = predict(resized, vectors(2, 4, 8, 2))
    assert {name: x.shape for name, x in outputs.items()} == {"a": (2, 2), "b": (2, 3)}
    old, new = (next(numpy(w) for w in m.weights if w.path.endswith("position_embeddings")) for m in (model, resized))
    assert old.shape == (7, 8) and new.shape == (11, 8)  # an offset, 2 tokens, 2 * 4 patches
    np.testing.assert_array_equal(new[:3], old[:3])


def test_refused_resizing():
    model = shared()
    for make, words in (
        (lambda: kt.models.resize_vit(model, (9, 8)), ["height 9", "height 4"]),
        (lambda: kt.models.resize_vit(kt.models.transformer(9, 9, 1, 1, 4, 4), 8), ["PatchEmbedding", "0"]),
    ):
        with pytest.raises(ValueError) as error:
            make()
        assert all(word in str(error.value) for word in words)


def test_the_mean_of_the_patches():
    """Without a class token: 6 tokens, and the head on their mean."""
    model = shared(pooling="mean")
    states = keras.Model(model.inputs, model.get_layer("encoder_norm").output)
    images = vectors(2, *IMAGE_SIZE, 3)
    found = predict(states, images)
    assert found.shape == (2, 6, 8) and not any(w.path.startswith("class_token") for w in model.weights)
    kernel, bias = map(numpy, model.get_layer("logits").weights)
    np.testing.assert_allclose(predict(model, images), found.mean(1) @ kernel + bias, atol=1e-5)


def test_epsilon_of_every_norm():
    """B13: the first of four numbers near a thousandth, normalized."""
    tiny = np.array([[[1e-3, -1e-3, 2e-3, -2e-3]]], "float32")
    for options, expected in (({}, 0.632455), ({"norm_epsilon": 1e-6}, 0.534522)):
        model = kt.models.vit(None, 2, 4, **{**SIZES, "hidden_dim": 4, "num_layers": 1}, **options)
        block = model.get_layer("encoder_block_0")
        for norm in (block.self_attention_norm, block.feed_forward_norm, model.get_layer("encoder_norm")):
            np.testing.assert_allclose(numpy(norm(tiny))[0, 0, 0], expected, atol=1e-5)


PUBLISHED = {
    "ti16": 5_717_416,
    "s16": 22_050_664,
    "b16": 86_567_656,
    "b32": 88_224_232,
    "l16": 304_326_632,
    "h14": 632_045_800,
}


@pytest.mark.parametrize("size", PUBLISHED)
def test_published_numbers_of_parameters(size):
    """Blocks of a model have the same size, so that one with a single block tells that of all."""
    with keras.StatelessScope(initialize_variables=False):  # counted without being allocated
        model = kt.models.vit(size, num_layers=1)
        block = model.get_layer("encoder_block_0").count_params()
        assert model.count_params() + (sizes.SIZES["vit"][size]["num_layers"] - 1) * block == PUBLISHED[size]


def test_batch_mates_change_nothing():
    model, images = shared(), vectors(3, *IMAGE_SIZE, 3)
    expected = predict(model, images)
    np.testing.assert_allclose(predict(model, images[::-1].copy()), expected[::-1], atol=1e-5)
    np.testing.assert_allclose(predict(model, images[1:2]), expected[1:2], atol=1e-5)


def test_compiling_changes_nothing():
    model, images = shared(), vectors(3, *IMAGE_SIZE, 3)
    expected = numpy(model(images))
    model.compile(run_eagerly=False)
    np.testing.assert_allclose(model.predict(images, verbose=0), expected, atol=1e-5)


def test_dropout_is_off_at_inference():
    images = vectors(2, *IMAGE_SIZE, 3)
    model = small(dropout=0.5, seed=3)
    np.testing.assert_allclose(predict(model, images), predict(shared(), images), atol=1e-5)
    one, other = outputs_in_training(model, images, calls=2)
    assert abs(one - other).max() > 1e-3


@pytest.mark.parametrize("policy", ["mixed_float16", "bfloat16"])
def test_sixteen_bits(policy):
    images = vectors(2, *IMAGE_SIZE, 3)
    expected = predict(shared(), images)
    logits = predict(small(dtype=policy), images)
    step = 2.0**-10 if "float16" in policy and "bfloat16" not in policy else 2.0**-7
    assert logits.dtype == "float32"
    assert abs(logits - expected).max() <= 8 * step * abs(expected).max()


def test_every_weight_has_a_gradient():
    model, images = shared(), keras.ops.convert_to_tensor(vectors(2, *IMAGE_SIZE, 3))
    found = weight_gradients(model, lambda: keras.ops.sum(keras.ops.square(model(images))))
    zero = {path for path, gradient in found.items() if abs(gradient).max() < 1e-6}
    assert all(path.endswith("self_attention/key/bias") for path in zero)  # the softmax takes it out


def test_blocks_start_different_under_one_initializer():
    model = kt.models.vit(None, 2, 4, **SIZES, kernel_initializer=keras.initializers.RandomNormal(seed=1))
    first, second = (
        numpy(model.get_layer(f"encoder_block_{i}").feed_forward.intermediate_dense.kernel) for i in range(2)
    )
    assert abs(first - second).max() > 1e-3


def test_training_learns(monkeypatch):
    train_in_a_hurry(monkeypatch)
    images = vectors(8, *IMAGE_SIZE, 3)
    labels = np.arange(8) % 2
    model = kt.models.vit(None, 2, IMAGE_SIZE, **SIZES, pooling="mean", norm="rms", dropout=0.1, seed=1)
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(images, labels, batch_size=8, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "options, words",
    [
        ({"image_size": (8, 10)}, ["width 10", "width 4"]),
        ({"image_size": 0}, ["image_size", "0"]),
        ({"pooling": "max"}, ["pooling", "'max'", "'class_token'"]),
        ({"num_classes": 0}, ["num_classes", "0"]),
        ({"num_channels": -1}, ["num_channels", "-1"]),
        ({"num_heads": 3}, ["num_heads=3", "hidden_dim=8"]),
        ({"patch_size": (4, 4, 4)}, ["patch_size", "(4, 4, 4)"]),
    ],
)
def test_refused_arguments(options, words):
    with pytest.raises(ValueError) as error:
        kt.models.vit(None, **{"image_size": IMAGE_SIZE, **SIZES, **options})
    assert all(word in str(error.value) for word in words), error.value


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match="12"):
        shared()(vectors(1, 12, 8, 3))
