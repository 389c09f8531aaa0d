"""Where every attention layer of a model looks."""

import keras
import numpy as np
from keras import ops

from keras_transformer import weights
from keras_transformer.ops.capture import ScoresScope


def attention_scores(model, inputs):
    """Attention probabilities of every attention layer of this library inside a model.

    The model is called once, eagerly and at inference; nothing about it has to be prepared, whether it was stacked,
    subclassed or loaded.

    Args:
        model: any Keras model or layer that contains `MultiHeadAttention` layers, in blocks or alone.
        inputs: what the model takes.

    Returns:
        dict from layer path to a float NumPy array (B, N, T, S), in the order of the calls. Layers that share a path,
        or are called again, get `:1`, `:2`, ... behind it.

    Raises:
        ValueError: the model has no attention layer of this library.

    Example:
    ```python
    scores = attention_scores(model, {"encoder_token_ids": source, "decoder_token_ids": target})
    scores["decoder_block_0/cross_attention"][0]  # (N, T, S): of the first row, for each head
    ```
    """
    # One nested argument may not mix arrays and tensors.
    if isinstance(inputs, list) and not any(hasattr(x, "shape") for x in inputs):
        if len({len(row) if isinstance(row, (list, tuple)) else -1 for row in inputs}) > 1:
            raise ValueError(
                "`inputs` has rows of different lengths: fill them up, `keras_transformer.data.pad_batch`."
            )
        inputs = np.asarray(inputs)  # rows of ids, not one array per input
    inputs = keras.tree.map_structure(ops.convert_to_tensor, inputs)
    weights.bring_back(model)
    with ScoresScope() as scope:
        model(inputs, training=False)
    if not scope.records:
        raise ValueError(f"The model {model.name!r} has no attention layer of keras_transformer.")
    result = {}
    for layer, scores in scope.records:
        path, repeated = layer.path or layer.name, 0
        while (key := f"{path}:{repeated}" if repeated else path) in result:
            repeated += 1
        result[key] = ops.convert_to_numpy(ops.cast(scores, "float32"))
    return result
