"""Images to sequences of patches, and the learned tokens in front of them.

Letters: B batch, H height, W width, C channels, h and w rows and columns of patches, T length, D features.

Sources: Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words" (https://arxiv.org/abs/2010.11929); a second token:
Touvron et al. 2020, DeiT (https://arxiv.org/abs/2012.12877).
"""

import keras
from keras import ops

from keras_transformer.arguments import check_size
from keras_transformer.layers.common import DenseOptions, PolicyLayer, clone_initializer, register


def pair(**argument):
    """A size (height, width) from one number or two."""
    ((name, value),) = argument.items()
    sizes = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    if len(sizes) != 2:
        raise ValueError(f"`{name}` must be a number or a pair (height, width). Received: {name}={value!r}")
    for size in sizes:
        check_size(**{name: size})
    return int(sizes[0]), int(sizes[1])


def grid_of(image_size, patch_size):
    """Rows and columns of patches in an image (H, W); an unknown size (None) stays unknown."""
    for side, size, patch in zip(("height", "width"), image_size, patch_size, strict=True):
        if isinstance(size, int) and (size % patch or not size):
            raise ValueError(
                f"The {side} of the images must be a multiple of the {side} of the patches. "
                f"Received: image {side} {size}, patch {side} {patch}"
            )
    return tuple(None if size is None else size // patch for size, patch in zip(image_size, patch_size, strict=True))


@register
class PatchEmbedding(PolicyLayer):
    """Cuts images into patches and projects each to a vector: a convolution whose stride is its kernel's size.

    Args:
        patch_size: height and width of a patch in pixels, one number for both or a pair.
        hidden_dim: size of the vectors, D.
        use_bias: whether the projection has a bias.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, kernel_constraint,
            bias_constraint: of the projection.

    Call arguments:
        inputs: images (B, H, W, C), of any number of channels. They are channels-last whatever Keras'
            `image_data_format` says.

    Returns:
        (B, h * w, D), row by row: the patch in row i and column j is token `i * w + j`.

    Raises:
        ValueError: H or W is not a multiple of the patch's. (In a TensorFlow graph that leaves them open the error is
            TensorFlow's own, about a reshape.)

    Example: `PatchEmbedding(patch_size=16, hidden_dim=768)(images)  # (B, 224, 224, 3) -> (B, 196, 768)`
    """

    def __init__(self, patch_size, hidden_dim, use_bias=True, **kwargs):
        patch_size = pair(patch_size=patch_size)
        check_size(hidden_dim=hidden_dim)
        self.dense_options = DenseOptions(kwargs)
        super().__init__(**kwargs)
        self.patch_size = patch_size
        self.hidden_dim = int(hidden_dim)
        self.use_bias = use_bias
        self.projection = keras.layers.Conv2D(
            self.hidden_dim,
            patch_size,
            strides=patch_size,
            padding="valid",
            data_format="channels_last",
            use_bias=use_bias,
            name="projection",
            **self.sublayer_options("projection"),
            **self.dense_options.arguments("projection"),
        )

    @property
    def sublayers(self):
        return [self.projection]

    def build(self, inputs_shape):
        self._check(inputs_shape)
        self.projection.build(inputs_shape)
        self.built = True

    def _check(self, shape):
        if len(shape) != 4 or shape[-1] is None:
            raise ValueError(
                f"{self.name} expects images of shape (batch, height, width, channels) with known channels. "
                f"Received: inputs.shape={tuple(shape)}"
            )
        if self.projection.built and shape[-1] != self.projection.kernel.shape[2]:
            raise ValueError(
                f"{self.name} was built for images of {self.projection.kernel.shape[2]} channels. "
                f"Received: inputs.shape={tuple(shape)}"
            )
        return grid_of(shape[1:3], self.patch_size)

    def call(self, inputs):
        self._check(inputs.shape)
        images = ops.cast(inputs, self.compute_dtype)
        batch, height, width, channels = ops.shape(images)
        rows, columns = height // self.patch_size[0], width // self.patch_size[1]
        if None in inputs.shape[1:3]:
            # The convolution would leave out what is over at the edges without a word; this does not let it.
            images = ops.reshape(images, (batch, rows * self.patch_size[0], columns * self.patch_size[1], channels))
        return ops.reshape(self.projection(images), (batch, rows * columns, self.hidden_dim))

    def compute_mask(self, inputs, mask=None):
        return None

    def compute_output_shape(self, inputs_shape):
        rows, columns = self._check(inputs_shape)
        return (inputs_shape[0], None if None in (rows, columns) else rows * columns, self.hidden_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "patch_size": list(self.patch_size),
            "hidden_dim": self.hidden_dim,
            "use_bias": self.use_bias,
            **self.dense_options.get_config(),
        }


@register
class ClassToken(keras.layers.Layer):
    """Puts learned tokens in front of each sequence; what the last layer makes of the first one is classified.

    Args:
        num_tokens: how many; DeiT has a second one for distillation.
        initializer: of the tokens.

    Call arguments:
        inputs: (B, T, D). Its mask is kept, with True for the new tokens.

    Returns:
        (B, num_tokens + T, D).

    Example: `ClassToken()(patches)  # (B, 196, 768) -> (B, 197, 768)`
    """

    def __init__(self, num_tokens=1, initializer="truncated_normal", **kwargs):
        check_size(num_tokens=num_tokens)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_tokens = int(num_tokens)
        self.initializer = keras.initializers.get(initializer)

    def build(self, inputs_shape):
        if len(inputs_shape) != 3 or inputs_shape[-1] is None:
            raise ValueError(
                f"{self.name} expects vectors of shape (batch, length, features) with known features. "
                f"Received: inputs.shape={tuple(inputs_shape)}"
            )
        self.tokens = self.add_weight(
            shape=(self.num_tokens, inputs_shape[-1]),
            initializer=clone_initializer(self.initializer, "tokens"),
            name="tokens",
        )
        self.built = True

    def call(self, inputs):
        tokens = ops.cast(ops.expand_dims(self.tokens, 0), inputs.dtype)
        tokens = ops.broadcast_to(tokens, (ops.shape(inputs)[0], *tokens.shape[1:]))
        return ops.concatenate([tokens, inputs], axis=1)

    def compute_mask(self, inputs, mask=None):
        if mask is None:
            return None
        mask = ops.cast(mask, "bool")
        return ops.concatenate([ops.ones_like(mask[:, :1])] * self.num_tokens + [mask], axis=1)

    def compute_output_shape(self, inputs_shape):
        batch, length, features = inputs_shape
        return (batch, None if length is None else length + self.num_tokens, features)

    def get_config(self):
        return {
            **super().get_config(),
            "num_tokens": self.num_tokens,
            "initializer": keras.initializers.serialize(self.initializer),
        }
