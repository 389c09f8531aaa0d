"""What the tests need of the backend at hand: results as NumPy, in one compilation where JAX would do hundreds."""

import keras
import numpy as np


def numpy(results):
    """Nested results as NumPy float or bool arrays."""
    return keras.tree.map_structure(keras.ops.convert_to_numpy, results)


def run(function, *inputs):
    """`function` of arrays, as NumPy.

    On JAX it is compiled as a whole, in a hurry: called eagerly, every operation of every new shape is compiled by
    itself, and a test takes seconds.
    """
    if keras.backend.backend() == "jax":
        import jax

        options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
        function = jax.jit(function, compiler_options=options)
    return numpy(function(*map(keras.ops.convert_to_tensor, inputs)))


def vectors(*shape, seed=0):
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype("float32")
