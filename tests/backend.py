"""What the tests need of the backend at hand: results as NumPy, in one compilation where JAX would do hundreds."""

import functools

import keras
import numpy as np


def numpy(results):
    """Nested results as NumPy float or bool arrays."""
    return keras.tree.map_structure(keras.ops.convert_to_numpy, results)


def compiled(function):
    """On JAX `function` compiled as a whole, in a hurry.

    Called eagerly, every operation of every new shape is compiled by itself, and a test takes seconds.
    """
    if keras.backend.backend() != "jax":
        return function
    import jax

    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    options |= {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
    return jax.jit(function, compiler_options=options)


def run(function, *inputs):
    """`function` of arrays, as NumPy."""
    return numpy(compiled(function)(*map(keras.ops.convert_to_tensor, inputs)))


def one_array(outputs):
    """Nested outputs one behind the other, as a flat array; a single one as it is."""
    found = keras.tree.flatten(outputs)
    return found[0] if len(found) == 1 else np.concatenate([x.reshape(-1) for x in found])


def vectors(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype("float32")


def gradients(function, *inputs):
    """Gradients of the sum of `function`'s result with respect to its float inputs, as NumPy."""
    inputs = [keras.ops.convert_to_tensor(x) for x in inputs]
    name = keras.backend.backend()
    if name == "jax":
        import jax

        total = jax.grad(lambda *inputs: function(*inputs).astype("float32").sum(), argnums=tuple(range(len(inputs))))
        return run(total, *inputs)
    if name == "torch":
        for x in inputs:
            x.requires_grad_()
        function(*inputs).sum().backward()
        return numpy([x.grad for x in inputs])
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        total = tf.reduce_sum(function(*inputs))
    return numpy(tape.gradient(total, inputs))


def weight_gradients(layer, loss):
    """Gradients of `loss()`, a scalar, with respect to the layer's trainable weights: {path: NumPy array}."""
    weights = layer.trainable_variables
    name = keras.backend.backend()
    if name == "jax":
        import jax

        def with_values(values):
            with keras.StatelessScope(state_mapping=list(zip(weights, values, strict=True))):
                return loss()

        found = compiled(jax.grad(with_values))([w.value for w in weights])
    elif name == "torch":
        layer.zero_grad()
        loss().backward()
        found = [w.value.grad for w in weights]
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            total = loss()
        found = map(tf.convert_to_tensor, tape.gradient(total, [w.value for w in weights]))
    return {w.path: numpy(gradient) for w, gradient in zip(weights, found, strict=True)}


@functools.lru_cache(maxsize=64)
def _stateless(model):
    return compiled(lambda *arguments: model.stateless_call(*arguments)[0])


def predict(model, inputs):
    """The model's outputs as NumPy, compiled once per shape on JAX; the weights are read anew at each call."""
    inputs = keras.tree.map_structure(keras.ops.convert_to_tensor, inputs)
    if keras.backend.backend() != "jax":
        return numpy(model(inputs))
    trainable, fixed = ([v.value for v in x] for x in (model.trainable_variables, model.non_trainable_variables))
    return numpy(_stateless(model)(trainable, fixed, inputs))


@functools.lru_cache(maxsize=64)
def _graph(model):
    import tensorflow as tf

    return tf.function(model, autograph=False)


def predict_often(model, inputs):
    """As `predict`, for many calls of one shape: on TensorFlow, too, as one function."""
    if keras.backend.backend() != "tensorflow":
        return predict(model, inputs)
    return numpy(_graph(model)(keras.tree.map_structure(keras.ops.convert_to_tensor, inputs)))
