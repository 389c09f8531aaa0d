"""The one residual expression of every transformer: `x = post(x + dropout(out(sublayer(pre(x)))))`."""

import keras
from keras import ops

from keras_transformer.layers.normalization import make_norm

# Which of the slots pre, out and post hold a normalisation.
PLACEMENTS = {
    "pre": ("pre",),  # GPT-2, ViT, Llama
    "post": ("post",),  # the original, BERT
    "sandwich": ("pre", "out"),  # Gemma 2
    "output": ("out",),  # OLMo 2
}


def attach_residual(owner, name, placement, norm, epsilon, dropout, seed):
    """Make the norms and the dropout around a sublayer, attributes of `owner` from now on, as a `Residual`.

    Args:
        owner: the layer that holds the norms and the dropout (it tracks them).
        name: of the sublayer; the norm is called `NAME_norm`, a second one `NAME_output_norm`.
        placement: a key of `PLACEMENTS`.
        norm, epsilon: the kind of norm, as for `make_norm`.
        dropout, seed: of the residual dropout.
    """
    norms = {}
    for slot in PLACEMENTS[placement]:
        norm_name = f"{name}_output_norm" if norms else f"{name}_norm"
        norms[slot] = make_norm(norm, epsilon, norm_name, owner.dtype_policy)
        setattr(owner, norm_name, norms[slot])
    dropout_name = f"{name}_residual_dropout"
    dropout = keras.layers.Dropout(dropout, seed=seed, dtype=owner.dtype_policy, name=dropout_name)
    setattr(owner, dropout_name, dropout)
    return Residual(norms, dropout)


class Residual:
    """The norms by slot and the dropout around a sublayer, which is given at call time.

    Norms and sublayers may compute in a dtype of their own; what they give is cast to that of x, so that the result
    has the dtype of the block whatever is put into it.
    """

    def __init__(self, norms, dropout):
        self.norms = norms
        self.dropout = dropout

    def build(self, shape):
        """Build the norms for inputs (B, T, D)."""
        for norm in self.norms.values():
            if not norm.built:
                norm.build(shape)

    def __call__(self, x, sublayer, training):
        """Apply the expression; `sublayer` is a function of the (normalised) x."""
        y = sublayer(self._norm("pre", x))
        y = self._norm("out", ops.cast(y, x.dtype))
        if self.dropout.rate:
            y = self.dropout(y, training=training)
        return self._norm("post", x + y)

    def _norm(self, slot, x):
        return ops.cast(self.norms[slot](x), x.dtype) if slot in self.norms else x
