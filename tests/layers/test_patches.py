"""`PatchEmbedding` and `ClassToken` against NumPy, and positions on a grid against PyTorch's bicubic resizing."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests import reference
from tests.backend import numpy, run, vectors, weight_gradients
from tests.layers.configs import assert_config_holds


def patches_by_hand(images, weights, patch_size):
    """Patch by patch: row i, column j is token i * w + j."""
    height, width = patch_size
    tokens = [
        np.einsum("bhwc,hwcd->bd", images[:, i : i + height, j : j + width], weights["kernel"]) + weights["bias"]
        for i in range(0, images.shape[1], height)
        for j in range(0, images.shape[2], width)
    ]
    return np.stack(tokens, axis=1)


@pytest.mark.parametrize("patch_size, shape", [(2, (2, 4, 6, 3)), ((2, 3), (1, 6, 9, 1)), (4, (2, 4, 8, 5))], ids=str)
def test_patches_equal_numpy(patch_size, shape):
    layer = kt.layers.PatchEmbedding(patch_size, 6)
    layer.build((None, *shape[1:]))
    weights = reference.randomize(layer)[layer.name]["projection"]
    images = vectors(*shape)
    expected = patches_by_hand(images, weights, layer.patch_size)
    output = run(layer, images)
    assert output.shape == layer.compute_output_shape(shape)
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_images_are_channels_last_whatever_keras_is_told():
    images = vectors(1, 4, 6, 3)
    layer = kt.layers.PatchEmbedding(2, 5)
    layer.build(images.shape)
    expected = run(layer, images)
    keras.config.set_image_data_format("channels_first")
    try:
        again = kt.layers.PatchEmbedding.from_config(layer.get_config())
        again.build((None, None, None, 3))
        again.set_weights(layer.get_weights())
        np.testing.assert_array_equal(run(again, images), expected)
    finally:
        keras.config.set_image_data_format("channels_last")


def test_images_of_whole_numbers():
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3)).astype("uint8")
    layer = kt.layers.PatchEmbedding(2, 5)
    layer.build(images.shape)
    np.testing.assert_allclose(run(layer, images), run(layer, images.astype("float32")), atol=1e-4)


def test_one_layer_takes_images_of_any_size():
    layer = kt.layers.PatchEmbedding((2, 3), 5)
    images = keras.Input((None, None, 3))
    model = keras.Model(images, layer(images))
    assert model.output.shape == (None, None, 5)
    for shape in ((2, 4, 6, 3), (1, 2, 9, 3)):
        x = vectors(*shape)
        expected = patches_by_hand(x, {"kernel": numpy(layer.projection.kernel), "bias": 0.0}, (2, 3))
        np.testing.assert_allclose(model.predict(x, verbose=0), expected, atol=1e-5)


def test_refused_images():
    layer = kt.layers.PatchEmbedding((4, 3), 5)
    for shape, words in (
        ((1, 10, 9, 3), ["height 10", "height 4"]),
        ((1, 8, 10, 3), ["width 10", "width 3"]),
        ((1, 8, 9), ["(1, 8, 9)", "channels"]),
        ((1, 8, 9, 2), ["3 channels", "(1, 8, 9, 2)"]),
    ):
        if len(shape) == 4 and shape[-1] == 2:
            layer(vectors(1, 8, 9, 3))
        with pytest.raises(ValueError) as error:
            layer(vectors(*shape))
        assert all(word in str(error.value) for word in words), error.value
    with pytest.raises(ValueError, match="height 10.*height 4"):
        kt.layers.PatchEmbedding(4, 5)(keras.Input((10, 8, 3)))
    with pytest.raises(ValueError, match="known channels"):
        kt.layers.PatchEmbedding(4, 5)(keras.Input((8, 8, None)))


@pytest.mark.parametrize("edge", [0, 1])
def test_nothing_is_cut_off_in_a_graph_of_open_sizes(edge):
    """Where the sizes are not known before it runs, a size that does not fit is an error all the same."""
    images = keras.Input((None, None, 1))
    model = keras.Model(images, kt.layers.PatchEmbedding(2, 3)(images))
    call = model
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        call = tf.function(lambda x: model(x), input_signature=[tf.TensorSpec((None, None, None, 1))])
    x = vectors(2, 4 + edge, 4, 1)
    if edge:
        with pytest.raises(Exception, match="(?s)reshape|multiple"):
            call(keras.ops.convert_to_tensor(x))
    else:
        assert numpy(call(keras.ops.convert_to_tensor(x))).shape == (2, 4, 3)


def test_class_tokens_come_first_and_are_never_padding():
    layer = kt.layers.ClassToken(num_tokens=2)
    layer.build((None, None, 4))
    tokens = reference.randomize(layer)[layer.name]["tokens"]
    x = vectors(3, 5, 4)
    expected = np.concatenate([np.tile(tokens, (3, 1, 1)), x], axis=1)
    np.testing.assert_allclose(run(layer, x), expected, atol=1e-6)
    assert layer.compute_output_shape((3, 5, 4)) == (3, 7, 4)
    assert layer(keras.Input((None, 4))).shape == (None, None, 4)
    masked = keras.layers.Masking()(np.where(np.arange(5)[:, None] < 3, x, 0).astype("float32"))
    assert numpy(layer(masked)._keras_mask).tolist() == [[True] * 5 + [False] * 2] * 3
    assert getattr(layer(x), "_keras_mask", None) is None


def test_every_weight_has_a_gradient():
    model = keras.Sequential([keras.Input((4, 4, 3)), kt.layers.PatchEmbedding(2, 5), kt.layers.ClassToken()])
    x = keras.ops.convert_to_tensor(vectors(2, 4, 4, 3))
    found = weight_gradients(model, lambda: keras.ops.sum(keras.ops.square(model(x) + 1)))
    assert len(found) == 3 and all(abs(gradient).min() > 0 for gradient in found.values())


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16"])
def test_policies(policy):
    exact, model = (
        keras.Sequential(
            [keras.Input((4, 4, 3)), kt.layers.PatchEmbedding(2, 5, dtype=x), kt.layers.ClassToken(dtype=x)]
        )
        for x in ("float32", policy)
    )
    reference.randomize(exact)
    model.set_weights(exact.get_weights())
    x = vectors(2, 4, 4, 3)
    output = model(x)
    assert keras.backend.standardize_dtype(output.dtype) == policy.replace("mixed_", "")
    np.testing.assert_allclose(numpy(keras.ops.cast(output, "float32")), run(exact, x), atol=0.05)


def test_config_keeps_every_argument():
    options = {
        "patch_size": [2, 3],
        "hidden_dim": 5,
        "use_bias": False,
        "kernel_initializer": keras.initializers.RandomNormal(stddev=0.5),
        "bias_initializer": keras.initializers.Constant(0.5),
        "kernel_regularizer": keras.regularizers.L2(0.5),
        "bias_regularizer": keras.regularizers.L1(0.25),
        "kernel_constraint": keras.constraints.MaxNorm(3),
        "bias_constraint": keras.constraints.NonNeg(),
        "name": "patches",
        "dtype": "mixed_bfloat16",
    }
    assert_config_holds(kt.layers.PatchEmbedding, options)
    options = {"num_tokens": 2, "initializer": keras.initializers.Constant(0.5), "name": "token", "dtype": "bfloat16"}
    assert_config_holds(kt.layers.ClassToken, options)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: kt.layers.PatchEmbedding(0, 4), ["patch_size", "0"]),
        (lambda: kt.layers.PatchEmbedding((2, 2, 2), 4), ["patch_size", "(2, 2, 2)"]),
        (lambda: kt.layers.PatchEmbedding(2, None), ["hidden_dim", "None"]),
        (lambda: kt.layers.ClassToken(0), ["num_tokens", "0"]),
        (lambda: kt.layers.ClassToken()(keras.Input((3, 4, 5))), ["(None, 3, 4, 5)", "features"]),
    ],
)
def test_refused_arguments(make, words):
    with pytest.raises(ValueError) as error:
        make()
    assert all(word in str(error.value) for word in words)


def resize(table, *grids):
    return run(lambda table: kt.ops.interpolate_positions(table, *grids), table)


class TestPositionsOnAGrid:
    """B45."""

    @pytest.mark.parametrize("num_prefix_tokens", [0, 1, 2])
    def test_the_same_grid_gives_the_same_bits(self, num_prefix_tokens):
        table = vectors(num_prefix_tokens + 196, 4)
        same = resize(table, (14, 14), (14, 14), num_prefix_tokens)
        np.testing.assert_array_equal(same, table)

    @pytest.mark.parametrize("grid", [(24, 24), (10, 20), (7, 7), (14, 15)], ids=str)
    @pytest.mark.parametrize("num_prefix_tokens", [0, 1, 2])
    def test_equals_torch(self, num_prefix_tokens, grid):
        import torch

        table = vectors(num_prefix_tokens + 196, 4)
        resized = resize(table, (14, 14), grid, num_prefix_tokens)
        assert resized.shape == (num_prefix_tokens + grid[0] * grid[1], 4)
        np.testing.assert_array_equal(resized[:num_prefix_tokens], table[:num_prefix_tokens])
        image = torch.from_numpy(table[num_prefix_tokens:].reshape(1, 14, 14, 4)).permute(0, 3, 1, 2)
        image = torch.nn.functional.interpolate(image, size=grid, mode="bicubic", align_corners=False)
        expected = image.permute(0, 2, 3, 1).reshape(-1, 4).numpy()
        np.testing.assert_allclose(resized[num_prefix_tokens:], expected, atol=1e-5)

    @pytest.mark.parametrize("grid", [(24, 24), (10, 20), (3, 2)], ids=str)
    def test_a_constant_stays_constant(self, grid):
        resized = resize(np.full((196, 2), 0.7, "float32"), (14, 14), grid)
        np.testing.assert_allclose(resized, 0.7, atol=1e-6)

    @pytest.mark.parametrize("grid", [(24, 24), (10, 20)], ids=str)
    def test_rows_stay_rows(self, grid):
        table = np.repeat(np.arange(14, dtype="float32"), 14)[:, None]
        resized = resize(table, (14, 14), grid)[:, 0].reshape(grid)
        np.testing.assert_allclose(resized, np.tile(resized[:, :1], (1, grid[1])), atol=1e-5)
        assert (np.diff(resized[:, 0]) > 0).all()

    def test_grids_that_are_not_square(self):
        table = vectors(1 + 6, 3)
        resized = resize(table, (2, 3), (3, 2), 1)
        assert resized.shape == (7, 3) and abs(resized[1:] - table[1:]).max() > 0.1

    def test_refuses_a_table_of_another_length(self):
        with pytest.raises(ValueError, match=r"1 \+ 14 \* 14.*\(196, 4\)"):
            kt.ops.interpolate_positions(vectors(196, 4), (14, 14), (7, 7), 1)
