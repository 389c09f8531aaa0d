"""Fine-tuning: frozen layers, smaller steps for lower ones, and classes that count alike.

Lower and upper follow the order in which the layers run: the blocks of an encoder are below those of its decoder.
"""

import keras
import numpy as np
from keras import ops

from keras_transformer import layers
from keras_transformer.arguments import check_count, check_positive_number
from keras_transformer.layers.common import register
from keras_transformer.layers.model_card import HeadCard

BLOCKS = (layers.EncoderBlock, layers.DecoderBlock, layers.Recurrent)
# They belong to the bottom, wherever they are used first: the table of a decoder, for instance.
EMBEDDINGS = (layers.PositionalEmbedding, layers.SegmentEmbedding, layers.PatchEmbedding, layers.ClassToken)
EMBEDDINGS += (keras.layers.Embedding,)


def freeze(model, all_but_top=0):
    """Freeze a model's embeddings and its blocks but the k uppermost ones, and what stands between those layers.

    What stands behind the last frozen block stays as it is: upper blocks, a last norm, the head. With `all_but_top=0`
    all that is below the head of a `with_head` model is frozen. Call it before `compile`: a compiled model goes on as
    it was compiled. Layers that are shared with another model are frozen there, too. Keras keeps no account of it in
    files for layers that are made of others: a loaded model has to be frozen again.

    Args:
        model: a functional or Sequential model with blocks of this library.
        all_but_top: number of blocks, k, that stay trainable.

    Returns:
        The names of the frozen layers, list of str, from the lowest on.

    Raises:
        ValueError: the model has no blocks, or fewer than k.

    Example:

    >>> model = keras_transformer.models.gpt("tiny", vocabulary_size=50)
    >>> freeze(model, all_but_top=1)
    ['embedding', 'decoder_block_0']
    """
    check_count(0, all_but_top=all_but_top)
    stack = _stack(model)
    blocks = _blocks(model, stack)
    if all_but_top > len(blocks):
        raise ValueError(
            f"`all_but_top` must be at most the number of blocks of {model.name}, {len(blocks)}. "
            f"Received: all_but_top={all_but_top}"
        )
    end = [*blocks, blocks[-1] + 1][len(blocks) - all_but_top]
    if all_but_top == 0:
        end = next((i for i, layer in enumerate(stack) if isinstance(layer, HeadCard)), end)
    below = [layer for i, layer in enumerate(stack) if i < end or isinstance(layer, EMBEDDINGS)]
    below = [layer for layer in below if layer.weights]
    for layer in below:
        layer.trainable = False
    return [layer.name for layer in below]


def unfreeze(model):
    """Make every layer of a model trainable again. Call it before `compile`.

    Returns:
        The names of the layers that were frozen, list of str.

    Example: `unfreeze(model)`
    """
    frozen = [layer.name for layer in _stack(model) if layer.weights and not layer.trainable]
    for layer in [model, *_stack(model)]:
        layer.trainable = True
    return frozen


def layerwise_rates(model, decay=0.9):
    """Factors on the learning rate, for `LayerwiseOptimizer`, that fall from the head to the embeddings.

    What stands behind the last block has 1, the uppermost block `decay`, the one below `decay ** 2`, and so on; the
    embeddings, below all L blocks, have `decay ** (L + 1)`.

    Sources: Howard and Ruder 2018, "Universal Language Model Fine-tuning for Text Classification"
    (https://arxiv.org/abs/1801.06146); in this form Clark et al. 2020, "ELECTRA" (https://arxiv.org/abs/2003.10555).

    Args:
        model: a functional or Sequential model with blocks of this library.
        decay: float above 0, from each block to the one below it.

    Returns:
        dict from the name of each layer with weights to its factor, from the lowest on.

    Raises:
        ValueError: the model has no blocks, or `decay` is not above 0.

    Example:

    >>> layerwise_rates(keras_transformer.models.gpt("tiny", vocabulary_size=50), decay=0.5)
    {'embedding': 0.125, 'decoder_block_0': 0.25, 'decoder_block_1': 0.5, 'decoder_norm': 1.0}
    """
    check_positive_number(decay=decay)
    stack = _stack(model)
    number, top = 0, len(_blocks(model, stack)) + 1
    rates = {}
    for layer in stack:
        number += isinstance(layer, BLOCKS)
        # A layer between two blocks belongs to the lower one.
        level = 0 if isinstance(layer, EMBEDDINGS) else number + (number == top - 1 and not isinstance(layer, BLOCKS))
        if layer.weights:
            rates[layer.name] = float(decay) ** (top - level)
    return rates


def _stack(model):
    """The layers of a model in the order in which they run, those of nested models in their places."""
    stack = []
    for layer in getattr(model, "layers", ()):
        stack += _stack(layer) if isinstance(layer, keras.Model) else [layer]
    return stack


def _blocks(model, stack):
    blocks = [i for i, layer in enumerate(stack) if isinstance(layer, BLOCKS)]
    if not blocks:
        raise ValueError(
            f"{getattr(model, 'name', model)} has no blocks of this library among its layers, by which to tell lower "
            "from upper ones."
        )
    return blocks


@register
class LayerwiseOptimizer(keras.optimizers.Optimizer):
    """An optimizer whose steps are multiplied by a factor for each layer, as if each had a learning rate of its own.

    It works around any optimizer of Keras: that one makes its step, and of the way a weight went the share is kept.
    Its learning rate, a number or a schedule, is this one's, so that callbacks go on to work; gradients are clipped by
    their norm over all layers, and weight decay is scaled as well. The weights with a factor are copied once per step.

    Args:
        optimizer: a `keras.optimizers.Optimizer`, or the name of one. It may not average weights (`use_ema`).
        rates: dict from the name of a layer to its factor, 0 or above; the weights of other layers have 1.
            `layerwise_rates` makes one.
        name: name of the optimizer.

    Raises:
        ValueError: a factor is below 0 or not finite, or the optimizer averages weights.

    Example:

    ```python
    rates = keras_transformer.training.layerwise_rates(model, decay=0.8)
    optimizer = keras_transformer.training.LayerwiseOptimizer(keras.optimizers.AdamW(5e-5), rates)
    model.compile(optimizer, loss)
    ```
    """

    def __init__(self, optimizer, rates, name="layerwise_optimizer"):
        for layer, rate in rates.items():
            if rate != 0:
                check_positive_number(**{f"rates[{layer!r}]": rate})
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = keras.optimizers.get(optimizer)
        self.rates = {layer: float(rate) for layer, rate in rates.items()}
        if getattr(self.inner_optimizer, "use_ema", False):
            raise ValueError("`optimizer` must not average the weights, which here are not yet those of the step.")

    def build(self, variables):
        self.inner_optimizer.build(variables)
        super().build(variables)

    def rate_of(self, variable):
        """The factor for a variable: that of the first layer on its path that has one."""
        return next((self.rates[name] for name in variable.path.split("/") if name in self.rates), 1.0)

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(list(trainable_variables))
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        scaled = [(variable, self.rate_of(variable)) for variable in variables]
        scaled = [(variable, rate, ops.copy(variable.value)) for variable, rate in scaled if rate != 1]
        self.inner_optimizer.apply(grads, variables)
        for variable, rate, before in scaled:
            variable.assign(before + ops.cast(rate, before.dtype) * (variable.value - before))
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))

    @property
    def variables(self):
        return self._variables + self.inner_optimizer.variables

    @property
    def learning_rate(self):
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def iterations(self):
        return self.inner_optimizer.iterations

    def scale_loss(self, loss):
        return self.inner_optimizer.scale_loss(loss)

    def get_config(self):
        optimizer = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {"optimizer": optimizer, "rates": dict(self.rates), "name": self.name}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        optimizer = keras.saving.deserialize_keras_object(config["optimizer"], custom_objects=custom_objects)
        return cls(**{**config, "optimizer": optimizer})


def class_weights(labels, mask=None):
    """Weights with which rare classes count as much as frequent ones: `number / (classes * number of the class)`.

    The formula is that of scikit-learn's `class_weight="balanced"`; King and Zeng 2001, "Logistic Regression in Rare
    Events Data".

    Args:
        labels: integers of any shape.
        mask: boolean of the same shape, True where a label counts; None: everywhere.

    Returns:
        dict from each class that occurs to its weight, for `fit(class_weight=)`. Of labels of tokens, (B, T), Keras
        would take each row for one class: there use `sample_weight`, for instance
        `np.vectorize(lambda label: weights.get(label, 0.0))(labels) * mask`.

    Raises:
        ValueError: labels are not integers, none counts, or the mask has another shape.

    Example:

    >>> class_weights([0, 0, 0, 1])
    {0: 0.6666666666666666, 1: 2.0}
    """
    labels = np.asarray(labels)
    mask = np.ones(labels.shape, bool) if mask is None else np.asarray(mask, bool)
    if mask.shape != labels.shape:
        raise ValueError(f"`mask` must have the shape of `labels`, {labels.shape}. Received: {mask.shape}")
    if not np.issubdtype(labels.dtype, np.integer) or not mask.any():
        raise ValueError(
            "`labels` must hold integers, of which one or more count. "
            f"Received: dtype={labels.dtype}, {int(mask.sum())} that count"
        )
    classes, counts = np.unique(labels[mask], return_counts=True)
    weights = counts.sum() / (len(classes) * counts)
    return dict(zip(classes.tolist(), weights.tolist(), strict=True))
