"""What a model is made of, as far as decoding needs to know."""

from typing import NamedTuple

import keras

from keras_transformer.layers import (
    ClassToken,
    DecoderBlock,
    EncoderBlock,
    MultiHeadAttention,
    PaddingMask,
    Pooler,
    PositionalEmbedding,
    Recurrent,
    Rotary,
    SequencePooling,
    SpanLogits,
    StateAtToken,
    TokensAt,
)
from keras_transformer.layers.residual import Residual
from keras_transformer.models import decoder_from_ids, encoder_from_ids

# Keras' own layers that treat each position alone, unless they are told otherwise: a cache changes nothing for them.
POSITION_WISE = frozenset(
    "InputLayer Embedding ReversibleEmbedding Dense Dropout Activation ReLU LeakyReLU PReLU ELU Softmax "
    "GRUCell LSTMCell SimpleRNNCell "  # one step, whose state `Recurrent` keeps
    "LayerNormalization RMSNormalization UnitNormalization Add Subtract Multiply Average Maximum Minimum Identity "
    "Rescaling GaussianNoise GaussianDropout AlphaDropout ActivityRegularization Masking".split()
)

# The layers of this library that do not.
MIXES_POSITIONS = (ClassToken, Pooler, SequencePooling, SpanLogits, StateAtToken, TokensAt)


def walk(layer):
    """All layers inside a model as far as they show themselves, nested models and our blocks included."""
    children = getattr(layer, "layers", ())
    if isinstance(layer, MultiHeadAttention):
        children = layer.variants.layers
    if isinstance(layer, (EncoderBlock, DecoderBlock)):
        children = [layer.self_attention, getattr(layer, "cross_attention", None), layer.feed_forward]
        residuals = [part for part in vars(layer).values() if isinstance(part, Residual)]
        children += [norm for residual in residuals for norm in residual.norms.values()]
    if isinstance(layer, Recurrent):
        children = [layer.cell]  # it may be the user's own
    if not hasattr(layer, "layers") and type(layer).__module__.split(".")[0] not in ("keras", "keras_transformer"):
        children = _attributes(layer)
    for child in children:
        if child is not None:
            yield child
            yield from walk(child)


def _attributes(layer):
    """The layers among the attributes of a user's layer, each once."""
    values = [x for x in vars(layer).values() if isinstance(x, (keras.layers.Layer, list, tuple, dict))]
    values = keras.tree.flatten(values)
    return {id(x): x for x in values if isinstance(x, keras.layers.Layer) and x is not layer}.values()


def reason_against_cache(model):
    """Why a layer of ours cannot keep its keys while the text grows, and which; None if all can."""
    for layer in walk(model):
        if isinstance(layer, Rotary) and layer.reason_against_cache:
            return f"its layer {layer.name} {layer.reason_against_cache}"
    return None


def foreign_layers(model):
    """Layers and operations that might mix positions behind the cache's back: not known to be position-wise, and not
    our attention either. What `keras.ops` does between the layers of a functional model is an operation of its own.
    """
    layers = [model, *walk(model)]
    between = [step for layer in layers for step in getattr(layer, "operations", ())]
    between = [step for step in between if not (isinstance(step, keras.layers.Layer) or _makes_a_mask(step))]
    return [*filter(_is_foreign, layers), *between]


def _makes_a_mask(step):
    """Whether this is how a layer's `compute_mask` shows in the graph: ids compared with one number."""
    # Compared with numbers for each place, the result would have their length.
    return type(step).__name__ == "NotEqual" and len(step.output.shape) == 2 and step.output.shape[1] is None


def _is_foreign(layer):
    package = type(layer).__module__.split(".")[0]
    if package == "keras_transformer":
        return isinstance(layer, MIXES_POSITIONS)
    if package != "keras":
        return True  # also a subclassed model: nobody knows what its `call` does
    is_known = isinstance(layer, keras.Model) or type(layer).__name__ in POSITION_WISE
    return not (is_known and _works_along_features(layer))


def _works_along_features(layer):
    """Whether the layer was given neither another axis nor a function of the user's, which might have one."""
    activation = getattr(layer, "activation", None)
    is_from_keras = activation is None or getattr(activation, "__module__", "").split(".")[0] == "keras"
    return is_from_keras and set(keras.tree.flatten(getattr(layer, "axis", -1))) <= {-1, 2}


class Side(NamedTuple):
    """What the ids of one of a model's inputs have to obey; None where nothing is known."""

    vocabulary_size: int | None
    masked_token_id: int | None
    max_sequence_length: int | None
    fixed_length: int | None = None


def sides(model):
    """The `Side` of an encoder-decoder's sources, None for other models, and the one of the texts it writes."""
    if not is_encoder_decoder(model):
        return None, _side(model, fixed_length(model))
    source, target = model, model
    if has_sub_models(model):
        source, target = encoder_from_ids(model), decoder_from_ids(model)
    lengths = {tensor.name: tensor.shape[1] for tensor in model.inputs}
    return _side(source, lengths["encoder_token_ids"]), _side(target, lengths["decoder_token_ids"])


def _side(model, length):
    return Side(vocabulary_size(model), masked_token_id(model), max_sequence_length(model), length)


def vocabulary_size(model):
    """Rows of the token table, of the largest where there are several (it may be one of positions); None if none."""
    return max(_table_sizes(model), default=None)


def num_logits(model):
    """Size of a functional model's last axis, of another the rows of its token table; None if neither is known."""
    outputs = getattr(model, "outputs", None) or ()
    return outputs[0].shape[-1] if len(outputs) == 1 else vocabulary_size(model)


def _table_sizes(model):
    ours = [layer.vocabulary_size for layer in walk(model) if isinstance(layer, PositionalEmbedding)]
    sizes = [size for size in ours if size]
    return sizes or [layer.input_dim for layer in walk(model) if isinstance(layer, keras.layers.Embedding)]


def masked_token_id(model):
    """The id that the model itself masks as padding; None if there is none."""
    for layer in walk(model):
        if isinstance(layer, PaddingMask):
            return layer.pad_token_id
        if isinstance(layer, PositionalEmbedding) and layer.vocabulary_size:
            return layer.pad_token_id
        if isinstance(layer, keras.layers.Embedding) and layer.mask_zero:
            return 0
    return None


def real_token_ids(model):
    """Ids that may be drawn at random: those of the smallest embedding, without padding; None if there is none."""
    sizes = [*_table_sizes(model), *(x.input_dim for x in walk(model) if isinstance(x, keras.layers.Embedding))]
    return [i for i in range(min(sizes)) if i != masked_token_id(model)] if sizes else None


def max_sequence_length(model):
    """The smallest number of learned positions; None without a limit."""
    positional = [layer for layer in walk(model) if isinstance(layer, PositionalEmbedding)]
    return min((layer.max_sequence_length for layer in positional if layer.position == "learned"), default=None)


def input_names(model):
    """Names of a functional model's inputs; () for others."""
    return tuple(tensor.name for tensor in getattr(model, "inputs", None) or ())


def fixed_length(model):
    """Length of a fixed-length `Input`; None when it is free."""
    inputs = getattr(model, "inputs", None) or ()
    lengths = [tensor.shape[1] for tensor in inputs if len(tensor.shape) > 1 and tensor.shape[1] is not None]
    return min(lengths, default=None)


def is_encoder_decoder(model):
    """Whether the model's inputs say that it is one."""
    return {"encoder_token_ids", "decoder_token_ids"} <= set(input_names(model))


def has_sub_models(model):
    """Whether an encoder-decoder's halves can be called apart."""
    names = {layer.name for layer in getattr(model, "layers", ()) if isinstance(layer, keras.Model)}
    return {"encoder", "decoder"} <= names
