"""Whether Keras only asks for shapes at the moment."""

import keras


def in_symbolic_call():
    """True while Keras runs a `call` to learn shapes, as it does to build a subclassed model on its first call.

    Such a call must leave nothing behind in a scope: its tensors have no values, and the real call follows.
    """
    with keras.SymbolicScope() as scope:
        return scope.original_scope is not None
