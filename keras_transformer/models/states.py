"""Where in a model's graph its states are: the vectors (B, T, D) that a head reads."""

import keras

from keras_transformer import layers
from keras_transformer.layers.model_card import HeadCard

# Behind a layer that maps states to logits; none of them is where a body of layers ends.
AFTER_LOGITS = (layers.SoftCap, layers.AddBias, keras.layers.Softmax, keras.layers.Cropping1D)
# What makes one of several logits, all of which come from the same states.
OF_SEVERAL_HEADS = (keras.layers.Average,)


def find_states(model, name=None):
    """The tensor of a functional model that a new head is to read; what stands behind it is an old head.

    It is where `with_head` put the card of a head, else what is found on the way back from the outputs.

    Args:
        model: a functional model whose outputs are states, or come from them by a head.
        name: name of the layer whose output they are; None: they are looked for.

    Raises:
        ValueError: the model has no graph, or no states that can be told from a head.
    """
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None):
        raise ValueError(
            f"`backbone` must be a functional or a built Sequential model. Received: {type(model).__name__}"
        )
    if name is not None:
        if name not in [layer.name for layer in model.layers]:
            raise ValueError(
                f"`states` must name a layer of the model. Received: states={name!r}; its layers are "
                f"{[layer.name for layer in model.layers]}"
            )
        return _checked(_sequence(keras.Operation.output.fget(model.get_layer(name))))
    card = next((layer for layer in model.layers if isinstance(layer, HeadCard)), None)
    if card is not None:
        return keras.Operation.input.fget(card)
    output = model.output if hasattr(model, "operations") else model.outputs  # of a Sequential one
    if isinstance(output, dict) and "sequence_output" in output:
        return _checked(output["sequence_output"])
    found = {id(x): x for x in (_below_head(model, output) for output in keras.tree.flatten(output))}
    if len(found) > 1:
        raise ValueError(f"The outputs of {model.name} come from states at {len(found)} places. {_hint(model)}")
    return _checked(next(iter(found.values())))


def _sequence(output):
    return output["sequence_output"] if isinstance(output, dict) and "sequence_output" in output else output


def _checked(states):
    is_one = isinstance(states, keras.KerasTensor)
    is_float = is_one and "float" in keras.backend.standardize_dtype(states.dtype)
    if not is_float or len(states.shape) != 3 or states.shape[-1] is None:
        raise ValueError(
            f"A head needs states of shape (batch, length, features). Received: {getattr(states, 'shape', states)}"
        )
    return states


def _below_head(model, tensor):
    """The states that an output comes from; the output itself, if nothing on the way to it is of a head."""
    while True:
        layer, inputs = _made_by(tensor)
        if len(tensor.shape) == 3 and not _is_of_head(model, layer, inputs, tensor):
            return tensor
        vectors = [x for x in inputs if "float" in keras.backend.standardize_dtype(x.dtype)]
        if isinstance(layer, OF_SEVERAL_HEADS) and len(tensor.shape) == 2:
            found = {id(x): x for x in (_below_head(model, x) for x in vectors)}
            vectors = list(found.values()) if len(found) > 1 else vectors[:1]
        if len(vectors) != 1 or isinstance(layer, keras.layers.InputLayer):
            raise ValueError(f"No states are found under the output of {model.name}. {_hint(model)}")
        tensor = vectors[0]


def _made_by(tensor):
    """The layer that a tensor comes from, and the tensors that it was called with."""
    # There is no public way to ask this of a layer that is called twice, as a tied table is.
    layer, node, _ = tensor._keras_history
    return layer, layer._inbound_nodes[node].input_tensors


def _is_of_head(model, layer, inputs, tensor):
    if isinstance(layer, AFTER_LOGITS):
        return True
    if isinstance(layer, (layers.PositionalEmbedding, keras.layers.ReversibleEmbedding)):
        return len(inputs[0].shape) == 3 and getattr(layer, "vocabulary_size", tensor.shape[-1]) is not None
    if not isinstance(layer, keras.layers.Dense):
        return False
    if layer.name == "logits" or layer.units in _vocabulary_sizes(model):
        return True
    raise ValueError(f"{model.name} ends in the Dense layer {layer.name!r}, which may be a head or not. {_hint(model)}")


def _vocabulary_sizes(model):
    for layer in model.layers:
        if isinstance(layer, layers.PositionalEmbedding):
            yield layer.vocabulary_size
        elif isinstance(layer, keras.layers.Embedding):
            yield layer.input_dim


def _hint(model):
    names = [layer.name for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    return f"Say by `states=` which layer's output (batch, length, features) they are: one of {names}"
