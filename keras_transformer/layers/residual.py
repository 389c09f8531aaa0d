"""The one residual expression of every transformer: `x = post(x + dropout(out(sublayer(pre(x)))))`."""

import keras

from keras_transformer.layers.normalization import make_norm

# Which of the slots pre, out and post hold a normalisation.
PLACEMENTS = {
    "pre": ("pre",),  # GPT-2, ViT, Llama
    "post": ("post",),  # the original, BERT
    "sandwich": ("pre", "out"),  # Gemma 2
    "output": ("out",),  # OLMo 2
}


class Residual:
    """A sublayer's norms and dropout, around whatever function of x is given at call time.

    Args:
        owner: the layer that holds the norms and the dropout (it tracks them).
        name: of the sublayer; the norm is called `NAME_norm`, a second one `NAME_output_norm`.
        placement: a key of `PLACEMENTS`.
        norm, epsilon: the kind of norm, as for `make_norm`.
        dropout, seed: of the residual dropout.
    """

    def __init__(self, owner, name, placement, norm, epsilon, dropout, seed):
        self.norms = {}
        for slot in PLACEMENTS[placement]:
            norm_name = f"{name}_norm" if not self.norms else f"{name}_output_norm"
            self.norms[slot] = make_norm(norm, epsilon, norm_name, owner.dtype_policy)
            setattr(owner, norm_name, self.norms[slot])
        self.dropout = keras.layers.Dropout(
            dropout, seed=seed, dtype=owner.dtype_policy, name=f"{name}_residual_dropout"
        )
        setattr(owner, f"{name}_residual_dropout", self.dropout)

    def build(self, shape):
        """Build the norms for inputs (B, T, D)."""
        for norm in self.norms.values():
            if not norm.built:
                norm.build(shape)

    def __call__(self, x, sublayer, training):
        """Apply the expression; `sublayer` is a function of the (normalised) x."""
        y = sublayer(self._norm("pre", x))
        y = self._norm("out", y)
        if self.dropout.rate:
            y = self.dropout(y, training=training)
        return self._norm("post", x + y)

    def _norm(self, slot, x):
        return self.norms[slot](x) if slot in self.norms else x
