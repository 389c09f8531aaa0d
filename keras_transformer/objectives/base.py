"""What all objectives share: a generator for each row of the stream, and batches that `fit` takes.

Letters: B rows of a batch, T length.
"""

import abc
import numbers

import keras
import numpy as np

from keras_transformer.arguments import check_count, check_id, check_size
from keras_transformer.data import pad_batch


class Objective(abc.ABC):
    """Base of the objectives: rows of token ids in, `(inputs, labels, sample_weight)` for `fit` out, all NumPy.

    What is drawn for a row depends on `seed` and on its number in the stream alone: the same stream comes out whatever
    the batch size, the loader and the number of its workers. Give every epoch numbers of its own (`Batches` does).

    Subclasses write `example(row, number)`, which gives one example as a dict of lists of equal length for each side:
    the inputs of the model by name, `labels`, and `weights`, 1 where a label counts and 0 where not. If how long these
    are is drawn, `longest(row)` says how long they may be.

    Args:
        pad_token_id: id that fills rows up; its weight is 0.
        seed: int.
    """

    def __init__(self, pad_token_id=0, seed=0):
        check_id(pad_token_id=pad_token_id)
        check_count(0, seed=seed)
        self.pad_token_id, self.seed = int(pad_token_id), int(seed)

    @abc.abstractmethod
    def example(self, row, number=0):
        """One example, not padded."""

    def longest(self, row):
        """The most tokens that an example of the row may have, a dict by the name of the input."""
        return {name: len(ids) for name, ids in self.example(row).items() if name not in ("labels", "weights")}

    def __call__(self, rows, first=0, length=None):
        """A batch.

        Args:
            rows: list of B lists of ids.
            first: number of the first row in the stream.
            length: T, or a dict of it by the name of the input; None takes the longest row's.

        Returns:
            `(inputs, labels (B, T) int32, sample_weight (B, T) float32)`; inputs are (B, T) int32, a dict of them by
            name where a model has several.
        """
        check_count(0, first=first)
        examples = [self.example(row, first + i) for i, row in enumerate(rows)]
        if not examples:
            raise ValueError("`rows` must hold at least one row. Received an empty batch.")
        lengths = length if isinstance(length, dict) else dict.fromkeys(examples[0], length)

        def padded(name, fill):
            same = {"labels": self.labelled, "weights": self.labelled}.get(name, name)
            return pad_batch([example[name] for example in examples], fill, lengths.get(same))[0]

        inputs = {name: padded(name, self.pad_token_id) for name in examples[0] if name not in ("labels", "weights")}
        inputs = inputs if len(inputs) > 1 else next(iter(inputs.values()))
        return inputs, padded("labels", self.pad_token_id), padded("weights", 0).astype("float32")

    labelled = "token_ids"  # the input that the labels lie beside

    def random(self, number):
        """The generator of a row of the stream."""
        check_count(0, number=number)
        return np.random.default_rng((number, self.seed))


class Batches(keras.utils.PyDataset):
    """Batches of an objective for `fit`, drawn anew in every epoch, or for `evaluate`, the same each time.

    All have one shape, so that nothing is compiled twice; the last one is filled up with rows of weight 0. Workers must
    be threads: what processes of `use_multiprocessing` read is not counted here, so that no epoch would end.

    Args:
        rows: list of id lists.
        objective: an `Objective`.
        batch_size: int, B.
        length: T, or a dict of it by the name of the input; a longer example is an error. None: as long as an example
            may become.
        shuffle: whether the rows come in another order in every epoch.
        again: whether an epoch is drawn anew; False for what is compared from one epoch to the next.

    Example:

    >>> from keras_transformer.objectives import CausalLM
    >>> inputs, labels, weights = Batches([[5, 6, 7], [8, 9]], CausalLM(), batch_size=2, shuffle=False)[0]
    >>> inputs.tolist(), labels.tolist()
    ([[5, 6, 0], [8, 0, 0]], [[6, 7, 0], [9, 0, 0]])
    """

    def __init__(self, rows, objective, batch_size=32, length=None, shuffle=True, again=True):
        super().__init__()
        check_size(batch_size=batch_size)
        self.rows, self.objective, self.batch_size, self.shuffle = list(rows), objective, batch_size, shuffle
        self.again = again
        if not self.rows:
            raise ValueError("`rows` must hold at least one row. Received none.")
        self.epoch, self._num_read = 0, 0
        self._order = (None, None)
        self.length = length if isinstance(length, (int, np.integer)) else self._longest(**(length or {}))

    def _longest(self, **given):
        longest = [self.objective.longest(row) for row in self.rows]
        found = {name: max(lengths[name] for lengths in longest) for name in longest[0]}
        if unknown := sorted(given.keys() - found.keys()):
            raise ValueError(f"`length` may name {[*found]}, the inputs of the model. Received: {unknown}")
        return {**found, **given}

    def _rows_in_order(self):
        """The numbers of the rows as this epoch has them, drawn once for it."""
        if self._order[0] != self.epoch:
            order = np.arange(len(self.rows))
            if self.shuffle:
                order = np.random.default_rng((self.objective.seed, self.epoch)).permutation(order)
            self._order = (self.epoch, order)
        return self._order[1]

    def __len__(self):
        return -(-len(self.rows) // self.batch_size)

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError(f"There are {len(self)} batches. Received: index={index}")
        self._num_read += 1
        begin = index * self.batch_size
        rows = [self.rows[i] for i in self._rows_in_order()[begin : begin + self.batch_size]]
        first = self.epoch * len(self.rows) + begin
        inputs, labels, weights = self.objective(rows, first, self.length)
        room = self.batch_size - len(rows)
        fill = [(0, room), (0, 0)]
        pad = self.objective.pad_token_id
        inputs = keras.tree.map_structure(lambda x: np.pad(x, fill, constant_values=pad), inputs)
        return inputs, np.pad(labels, fill, constant_values=pad), np.pad(weights, fill)

    def on_epoch_end(self):
        """The next epoch draws anew, if this one was read to its end.

        `fit` looks at a batch or two and reports the end of an epoch before its first one: that is not an epoch, unless
        there are no more.
        """
        if self.again and self._num_read >= len(self):
            self.epoch += 1
        self._num_read = 0


def check_row(row):
    """A row of ids as an int64 array; anything else is refused."""
    ids = np.asarray(row)
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise ValueError(f"A row must be a flat list of integer ids. Received: shape={ids.shape}, dtype={ids.dtype}")
    if ids.size and ids.min() < 0:
        raise ValueError(f"A row must hold ids of 0 or more. Received the id {ids.min()}.")
    return ids.astype("int64")


def check_share(**arguments):
    """Refuse anything but numbers from 0 to 1."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value <= 1:
            raise ValueError(f"`{name}` must be in the range [0, 1]. Received: {name}={value!r}")


def rounded(expected, random):
    """An integer near the number, with it as its mean."""
    return int(np.floor(expected + random.random()))


def teacher_forced(source, target, start_token_id):
    """The example of an encoder-decoder that reads `source` and writes `target`, both lists of ids."""
    return {
        "encoder_token_ids": list(source),
        "decoder_token_ids": [start_token_id, *target[:-1]],
        "labels": list(target),
        "weights": [1] * len(target),
    }
