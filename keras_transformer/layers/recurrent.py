"""Recurrent layers over padded sequences, which also decode token by token.

Letters: B batch, T length, D features, U units.
"""

import inspect

import keras
from keras import ops

from keras_transformer.arguments import check_size
from keras_transformer.layers.common import (
    PolicyLayer,
    check_choice,
    check_mask,
    check_rate,
    clone_initializer,
    derived_seed,
    plain_int,
    register,
)
from keras_transformer.ops.cache import CannotCache, LooksBothWays, current_scope
from keras_transformer.ops.masks import NOT_A_TOKEN, combine

CELLS = {"simple": keras.layers.SimpleRNNCell, "gru": keras.layers.GRUCell, "lstm": keras.layers.LSTMCell}


@register
class Float32Orthogonal(keras.initializers.Orthogonal):
    """Keras' initializer of recurrent kernels, for weights in 16 bits as well, in which no backend has a QR."""

    def __call__(self, shape, dtype=None):
        return ops.cast(super().__call__(shape, dtype="float32"), dtype or keras.config.floatx())


@register
class Recurrent(PolicyLayer):
    """A recurrent layer that padding on either side does not change, in one direction or both.

    The cells are Keras' own. The layer runs them over the real tokens alone: the forward direction ends, and the
    backward one begins, at the last of them; a row of nothing but padding ends as it began. (Keras' fused kernels do
    that for padding on the right only, so they are not used.) While decoding, a causal layer keeps its state where
    attention keeps its keys, so that `generate` feeds it one token per step.

    Args:
        units: size of the state, U; None with a cell of your own.
        cell: `"simple"` (Elman 1990), `"gru"` (Cho et al. 2014, https://arxiv.org/abs/1406.1078), `"lstm"` (Hochreiter
            and Schmidhuber 1997), or a Keras cell such as `keras.layers.GRUCell(64, recurrent_dropout=0.1)`. Stack
            layers, not cells.
        bidirectional: also run a cell of the same kind from the last token to the first and put its outputs behind
            the others (Schuster and Paliwal 1997). Such a layer reads texts, it cannot write them.
        dropout: rate on the inputs, the same in no two steps (Zaremba et al. 2014, https://arxiv.org/abs/1409.2329).
        seed: seed of the dropout.

    Call arguments:
        x: (B, T, D). Its implicit mask and `padding_mask` hide padding, also between tokens.
        initial_state: (B, U), or a list with one tensor for each of the layer's states: the hidden state and, of an
            LSTM, the carry; those of the backward direction behind them. Zeros by default.
        padding_mask: boolean (B, T), True = real token.
        return_state: also return the last states.

    Returns:
        (B, T, U), or (B, T, 2 * U) in both directions, zeros at padding; with `return_state` a tuple of this and the
        list of the last states, each (B, U).

    Example:
    ```python
    states = Recurrent(64, "lstm", bidirectional=True)(x)  # (B, T, 128)
    y, (hidden, carry) = Recurrent(64, "lstm")(x, return_state=True)
    ```
    """

    def __init__(self, units=None, cell="gru", bidirectional=False, dropout=0.0, seed=None, **kwargs):
        if isinstance(cell, str):
            check_choice(tuple(CELLS), cell=cell)
            check_size(units=units)
        elif units is not None:
            raise ValueError(f"`units` goes with the name of a cell; a cell has its own. Received: units={units!r}")
        check_rate(dropout=dropout)
        super().__init__(**kwargs)
        self.units, self.seed = plain_int(units), plain_int(seed)
        self.bidirectional = bool(bidirectional)
        self.dropout = dropout
        self._cell_name = cell if isinstance(cell, str) else None
        cell = self._named_cell() if self._cell_name else cell
        _check_cell(cell)
        # Called `forward`, it would stand in the way of PyTorch.
        self.forward_run = self._run_of(cell, "forward")
        self.backward_run = self._run_of(_another(cell), "backward") if bidirectional else None
        self.dropout_layer = keras.layers.Dropout(dropout, seed=self.seed, dtype=self.dtype_policy, name="dropout")

    def _named_cell(self):
        options = {"recurrent_initializer": Float32Orthogonal(), "seed": derived_seed(self.seed, "cell")}
        return CELLS[self._cell_name](self.units, **options, dtype=self.dtype_policy, name="cell")

    def _run_of(self, cell, name):
        options = {"return_sequences": True, "return_state": True, "zero_output_for_mask": True}
        options |= {"go_backwards": name == "backward", "dtype": self.dtype_policy, "name": name}
        return keras.layers.RNN(cell, **options)

    @property
    def _runs(self):
        return [self.forward_run, self.backward_run] if self.bidirectional else [self.forward_run]

    @property
    def cell(self):
        """The cell of the forward direction."""
        return self.forward_run.cell

    @property
    def state_sizes(self):
        """Sizes of the states that the layer takes and returns."""
        sizes = keras.tree.flatten(self.cell.state_size)
        return sizes * 2 if self.bidirectional else sizes

    def build(self, x_shape, initial_state_shape=None):
        for direction in self._runs:
            if not direction.built:
                direction.build(tuple(x_shape))
        self.built = True

    def call(
        self,
        x,
        initial_state=None,
        padding_mask=None,
        return_state=False,
        training=None,
        mask=None,
        x_mask=None,
    ):
        check_mask(x, padding_mask=padding_mask)
        mask = combine(mask, x_mask, padding_mask)
        states = self._given_states(initial_state)
        x = self.dropout_layer(x, training=training)
        scope = current_scope()
        if scope is not None and scope.caches:
            outputs, states = self._decode(scope, x, states, mask)
        else:
            if scope is not None and x.shape[1] in (None, scope.positions.shape[1]):
                mask = combine(mask, scope.positions > NOT_A_TOKEN)
            outputs, states = self._read(x, states, mask, training)
        return (outputs, states) if return_state else outputs

    def _given_states(self, initial_state):
        if initial_state is None:
            return None
        states, sizes = keras.tree.flatten(initial_state), self.state_sizes
        if [x.shape[-1] for x in states] != sizes:
            shapes = [tuple(x.shape) for x in states]
            raise ValueError(f"`initial_state` must be states of the sizes {sizes}. Received shapes: {shapes}")
        return states

    def _read(self, x, states, mask, training):
        """All tokens at once."""
        size = len(self.state_sizes) // len(self._runs)
        outputs, last = [], []
        for i, direction in enumerate(self._runs):
            begin = None if states is None else states[i * size : (i + 1) * size]
            output, *end = direction(x, initial_state=begin, mask=mask, training=training)
            outputs.append(ops.flip(output, axis=1) if direction.go_backwards else output)
            last += end
        return ops.concatenate(outputs, axis=-1) if self.bidirectional else outputs[0], last

    def _decode(self, scope, x, states, mask):
        """The tokens that a decoding scope feeds now; what came before them is in the state that it kept."""
        if self.bidirectional:
            raise LooksBothWays(
                f"The recurrent layer {self.path} is bidirectional, so earlier tokens change with every new one: the "
                "model cannot write texts. Decode with `bidirectional=False`."
            )
        fed = scope.positions.shape[1]
        if x.shape[1] not in (None, fed):
            raise CannotCache(
                f"The recurrent layer {self.path} reads {x.shape[1]} vectors, while {fed} tokens are decoded: it "
                "belongs outside of the decoding scope."
            )

        def start():
            begin = self.forward_run.get_initial_state(ops.shape(x)[0]) if states is None else states
            return [ops.cast(state, self.cell.compute_dtype) for state in begin]

        def run(states, is_token, all_of_them):
            if all_of_them:
                return self._step_by_step(x, states, is_token)
            outputs, *last = self.forward_run(x, initial_state=states, mask=is_token)
            return outputs, [ops.expand_dims(state, 1) for state in last]

        return scope.recur(start, run, mask)

    def _step_by_step(self, x, states, is_token):
        """A few tokens, and the states after each."""
        outputs, seen = [], []
        for t in range(x.shape[1]):
            here = is_token[:, t : t + 1]
            output, new = self.cell(x[:, t], states)
            states = [ops.where(here, *pair) for pair in zip(keras.tree.flatten(new), states, strict=True)]
            outputs.append(ops.where(here, output, ops.zeros((), output.dtype)))
            seen.append(states)
        for forget in ("reset_dropout_mask", "reset_recurrent_dropout_mask"):  # cells keep one for a whole sequence
            getattr(self.cell, forget, lambda: None)()
        return ops.stack(outputs, axis=1), [ops.stack(state, axis=1) for state in zip(*seen, strict=True)]

    def compute_output_shape(self, x_shape, initial_state_shape=None):
        size = getattr(self.cell, "output_size", None) or self.state_sizes[0]
        return (*x_shape[:-1], size * 2 if self.bidirectional else size)

    def compute_output_spec(self, x, initial_state=None, return_state=False, **kwargs):
        self._given_states(initial_state)
        output = keras.KerasTensor(self.compute_output_shape(x.shape), dtype=self.compute_dtype)
        if not return_state:
            return output
        return output, [keras.KerasTensor((x.shape[0], size), dtype=self.compute_dtype) for size in self.state_sizes]

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "cell": self._cell_name or keras.saving.serialize_keras_object(self.cell),
            "bidirectional": self.bidirectional,
            "dropout": self.dropout,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config):
        if isinstance(config["cell"], dict):
            config = {**config, "cell": keras.saving.deserialize_keras_object(config["cell"])}
        return cls(**config)


def _another(cell):
    """A cell of the same kind with weights of its own."""
    config = cell.get_config()
    config |= {name: clone_initializer(config[name], "backward") for name in config if name.endswith("_initializer")}
    return type(cell).from_config(config)


def _check_cell(cell):
    takes = inspect.signature(cell.call).parameters if isinstance(cell, keras.layers.Layer) else {}
    if "states" not in takes or not hasattr(cell, "state_size") or any(map(keras.tree.is_nested, _sizes(cell))):
        raise ValueError(
            f"`cell` must be one of {', '.join(map(repr, CELLS))} or a Keras cell, whose `call` takes the inputs and "
            f"the states, with a flat `state_size`. Received: cell={cell!r}"
        )


def _sizes(cell):
    return cell.state_size if keras.tree.is_nested(cell.state_size) else [cell.state_size]
