"""A scope in which every attention layer leaves its probabilities behind."""

import threading

from keras_transformer.ops.symbolic import in_symbolic_call

_stack = threading.local()


class ScoresScope:
    """Collects `(layer, scores)` of every attention layer called inside, in the order of the calls.

    Scores are (B, N, T, S) probabilities. `keras_transformer.inspect.attention_scores` is the friendly form.
    """

    def __init__(self):
        self.records = []

    def __enter__(self):
        if not hasattr(_stack, "scopes"):
            _stack.scopes = []
        _stack.scopes.append(self)
        return self

    def __exit__(self, *exception):
        _stack.scopes.pop()


def current_scores_scope():
    """The innermost open `ScoresScope`, or None."""
    scopes = getattr(_stack, "scopes", None)
    return scopes[-1] if scopes and not in_symbolic_call() else None
