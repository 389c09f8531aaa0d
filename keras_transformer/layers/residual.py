"""The one residual expression of every transformer: `x = post(x + branch(x))`.

A branch is `scale * dropout(out(sublayer(pre(x))))`, left out by chance where there is stochastic depth. In parallel
blocks x gets two branches at once.
"""

import keras
from keras import ops

from keras_transformer.layers.common import derived_seed, register
from keras_transformer.layers.normalization import make_norm

# Which of the slots pre, out and post hold a normalisation.
PLACEMENTS = {
    "pre": ("pre",),  # GPT-2, ViT, Llama
    "post": ("post",),  # the original, BERT
    "sandwich": ("pre", "out"),  # Gemma 2
    "output": ("out",),  # OLMo 2
}


def attach_residual(owner, name, placement, norm, epsilon, dropout, layer_scale, stochastic_depth, seed):
    """Make what is around a sublayer, attributes of `owner` from now on, as a `Residual`.

    Args:
        owner: the layer that holds the norms, the dropout and the scale (it tracks them).
        name: of the sublayer; the norm is called `NAME_norm`, a second one `NAME_output_norm`.
        placement: a key of `PLACEMENTS`.
        norm, epsilon: the kind of norm, as for `make_norm`.
        dropout: rate of the residual dropout.
        layer_scale: initial value of the learned factors, None for none.
        stochastic_depth: how probably a row skips the branch in training.
        seed: seed of the block.
    """
    dtype, norms = owner.dtype_policy, {}
    for slot in PLACEMENTS[placement]:
        norm_name = f"{name}_output_norm" if norms else f"{name}_norm"
        norms[slot] = make_norm(norm, epsilon, norm_name, dtype)
        setattr(owner, norm_name, norms[slot])
    dropout_seed, depth_seed = (derived_seed(seed, f"{name}_{part}") for part in ("residual", "depth"))

    def dropped(part, rate, part_seed, noise_shape=None):
        return keras.layers.Dropout(rate, noise_shape, part_seed, dtype=dtype, name=f"{name}_{part}")

    parts = {"residual_dropout": dropped("residual_dropout", dropout, dropout_seed)}
    if layer_scale is not None:
        parts["layer_scale"] = LayerScale(layer_scale, dtype=dtype, name=f"{name}_layer_scale")
    if stochastic_depth:
        # A row is dropped as a whole: one draw for all its positions and features.
        parts["stochastic_depth"] = dropped("stochastic_depth", stochastic_depth, depth_seed, (None, 1, 1))
    for part, layer in parts.items():
        setattr(owner, f"{name}_{part}", layer)
    return Residual(norms, *map(parts.get, ("residual_dropout", "layer_scale", "stochastic_depth")))


class Residual:
    """The parts around a sublayer, which is given at call time: norms by slot, dropout, and a scale and depth or None.

    Norms and sublayers may compute in a dtype of their own; what they give is cast to that of x, so that the result
    has the dtype of the block whatever is put into it.
    """

    def __init__(self, norms, dropout, layer_scale=None, stochastic_depth=None):
        self.norms = norms
        self.dropout = dropout
        self.layer_scale = layer_scale
        self.stochastic_depth = stochastic_depth

    def build(self, shape):
        """Build the parts for inputs (B, T, D)."""
        for part in (*self.norms.values(), self.layer_scale):
            if part is not None and not part.built:
                part.build(shape)

    def __call__(self, x, sublayer, training, beside=()):
        """Apply the expression; `sublayer` is a function of the (normalised) x.

        `beside` are other residuals with their sublayers, whose branches join in at the same place.
        """
        y = x + self.branch(x, sublayer, training)
        for residual, other in beside:
            y = y + residual.branch(x, other, training)
        return self._norm("post", y)

    def branch(self, x, sublayer, training):
        """What is added to x."""
        y = sublayer(self._norm("pre", x))
        y = self._norm("out", ops.cast(y, x.dtype))
        if self.dropout.rate:
            y = self.dropout(y, training=training)
        if self.layer_scale is not None:
            y = self.layer_scale(y)
        if self.stochastic_depth is not None:
            y = self.stochastic_depth(y, training=training)
        return y

    def _norm(self, slot, x):
        return ops.cast(self.norms[slot](x), x.dtype) if slot in self.norms else x


@register
class LayerScale(keras.layers.Layer):
    """A learned factor for each feature.

    Source: Touvron et al. 2021, "Going deeper with Image Transformers" (https://arxiv.org/abs/2103.17239).
    """

    def __init__(self, initial_value, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.initial_value = initial_value

    def build(self, inputs_shape):
        initializer = keras.initializers.Constant(self.initial_value)
        self.scale = self.add_weight(shape=(inputs_shape[-1],), initializer=initializer, name="scale")
        self.built = True

    def call(self, inputs):
        return inputs * ops.cast(self.scale, inputs.dtype)

    def get_config(self):
        return {**super().get_config(), "initial_value": self.initial_value}
