"""A scope in which every attention layer leaves its probabilities behind."""

from keras_transformer.ops.scope import Scope


class ScoresScope(Scope):
    """Collects `(layer, scores)` of every attention layer called inside, in the order of the calls.

    Scores are (B, N, T, S) probabilities. `keras_transformer.inspect.attention_scores` is the friendly form.
    """

    def __init__(self):
        self.records = []
