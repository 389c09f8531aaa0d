"""What differs between the backends when a function of a model is compiled; the only file that asks for them."""

import keras


def compile_function(function, model, donate=()):
    """`function` compiled for the current backend, with the model's weights as arguments.

    The weights are passed at every call, never baked in as constants: nothing is stale after further training, and
    compiling stays cheap.

    Args:
        function: takes tensors, or nested dicts of them, by position, and static values by keyword.
        model: the `keras.Model` that the function calls, or a tuple of several; any other callable runs eagerly.
        donate: positions of arguments whose memory may be reused for the results.

    Returns:
        A function of the same signature.
    """
    if not can_compile(model):
        return function
    models = model if isinstance(model, tuple) else (model,)
    return {"jax": _jax, "tensorflow": _tensorflow, "torch": _torch}.get(keras.config.backend(), _eager)(
        function, models, donate
    )


def can_compile(model):
    """Whether a model, or every one of a tuple, can be traced: others may work on NumPy inside."""
    return all(isinstance(x, keras.layers.Layer) for x in (model if isinstance(model, tuple) else (model,)))


def compile_briefly(function, model):
    """As `compile_function`, for a function that is called a few times only: what is fastest then.

    JAX compiles every operation of every shape anyway, so all of them at once; elsewhere compiling would take longest.
    """
    return {"jax": _jax, "torch": _torch}.get(keras.config.backend(), _eager)(function, (model,), ())


def _eager(function, models, donate):
    return function


def _jax(function, models, donate):
    import jax

    variables = [variable for model in models for variable in model.variables]

    def pure(values, static, *arguments):
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return function(*arguments, **dict(static))

    jitted = jax.jit(pure, static_argnums=1, donate_argnums=[2 + position for position in donate])

    def call(*arguments, **static):
        return jitted([variable.value for variable in variables], tuple(sorted(static.items())), *arguments)

    return call


def _tensorflow(function, models, donate):
    import tensorflow as tf

    # Python numbers are constants to a trace, so static values arrive as they are and make a trace each.
    return tf.function(function, jit_compile=True, autograph=False)


def _torch(function, models, donate):
    import torch

    def call(*arguments, **static):
        with torch.inference_mode():
            return function(*arguments, **static)

    return call
