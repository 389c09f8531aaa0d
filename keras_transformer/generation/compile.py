"""What differs between the backends when a function of a model is compiled."""

import collections
import operator

import keras

from keras_transformer.ops.capture import ScoresScope
from keras_transformer.ops.update import OverwriteScope


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


def trace_step(function):
    """One decoding step, recorded where the backend would otherwise run it eagerly through all layers each time.

    XLA compiles the step as a part of its loop, so on TensorFlow and JAX this is the function itself. On PyTorch the
    operations of one call are recorded and replayed from then on, once for each set of shapes: the layers' own Python
    code costs several times what the numbers cost. The state is overwritten.

    Args:
        function: takes tensors, or nested dicts of them, by position and does with them only what the backend's
            operations do; a layer that computes in NumPy, or remembers, must not be inside.
    """
    return _Replayed(function) if keras.config.backend() == "torch" else function


class _Replayed:
    """See `trace_step`."""

    eager_steps = 32  # recording takes as long as so many of them, so that it does not pay for a short text

    def __init__(self, function):
        self.function = function
        self.recorded, self.calls = {}, collections.Counter()

    def __call__(self, *arguments):
        # A broadcast tensor has one number in many places, which cannot be overwritten apart.
        flat = [x.contiguous() for x in keras.tree.flatten(arguments)]
        key = tuple((x.shape, x.dtype) for x in flat)
        self.calls[key] += 1
        if self.calls[key] <= self.eager_steps or ScoresScope.current() is not None:
            with OverwriteScope():
                return self.function(*keras.tree.pack_sequence_as(arguments, flat))
        if key not in self.recorded:
            self.recorded[key] = self._record(arguments, flat)
        replay, structure = self.recorded[key]
        return keras.tree.pack_sequence_as(structure, replay(*flat))

    def _record(self, arguments, flat):
        from torch.fx.experimental.proxy_tensor import make_fx

        structure = []

        def function(*flat):
            with OverwriteScope():
                results = self.function(*keras.tree.pack_sequence_as(arguments, flat))
            structure.append(keras.tree.map_structure(lambda x: 0, results))
            return keras.tree.flatten(results)

        # Recording computes as well, so it works on copies: what it overwrites is written again by the replay.
        graph_module = make_fx(function)(*(x.clone() for x in flat))
        return _without_constant_steps(graph_module), structure[0]


def _without_constant_steps(graph_module):
    """The recorded operations without those that give the same at each replay: constants, and views of weights.

    A view shares the memory of its weight, so it is never out of date; copies of weights are made at each replay.
    """
    import torch

    graph, values = graph_module.graph, {}
    for node in graph.nodes:
        if node.op == "get_attr":
            values[node] = getattr(graph_module, node.target)
        elif node.op == "call_function" and _is_constant(node, values):
            arguments = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*arguments[0], **arguments[1])
    for number, (node, value) in enumerate(values.items()):
        if node.op == "call_function" and not all(user in values for user in node.users):
            name = f"constant_{number}"
            graph_module.register_buffer(name, value)
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.get_attr(name))
    graph.eliminate_dead_code()
    graph_module.recompile()
    return graph_module


def _is_constant(node, values):
    if node.target is operator.getitem:  # one of an operation's several results
        return node.args[0] in values
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable or not all(source in values for source in node.all_input_nodes):
        return False
    is_view = any(result.alias_info is not None for result in schema.returns)
    return is_view or not node.all_input_nodes or node.target.__name__.startswith("lift_fresh")
