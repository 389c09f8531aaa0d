"""Scopes: what the layers of a model find around their call without being told by the model."""

import threading

import keras

_open = threading.local()


class Scope:
    """Base of context managers of which the innermost open one is found by `current()`, per class and thread."""

    def __enter__(self):
        self._stack().append(self)
        return self

    def __exit__(self, *exception):
        self._stack().pop()

    @classmethod
    def current(cls):
        """The innermost open scope of this class, or None."""
        stack = cls._stack()
        return stack[-1] if stack and not _in_symbolic_call() else None

    @classmethod
    def _stack(cls):
        return _open.__dict__.setdefault(cls.__name__, [])


def _in_symbolic_call():
    """True while Keras runs a `call` to learn shapes, as it does to build a subclassed model on its first call.

    Such a call must leave nothing behind in a scope: its tensors have no values, and the real call follows.
    """
    with keras.SymbolicScope() as scope:
        return scope.original_scope is not None
