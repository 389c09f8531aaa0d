"""The length-bucketed batches of text pairs that an encoder-decoder is fitted on.

Letters: B rows of a batch, S source length, T target length (start or stop token included).
"""

import itertools
import numbers
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.arguments import check_count, check_id, check_size
from keras_transformer.data.lengths import assign_buckets, length_buckets
from keras_transformer.data.padding import RaggedIds, check_in_vocabulary

# What a fitted shape has to earn: XLA compiles it, which is worth this share of all positions, and its incomplete
# batch is one more step, whose fixed cost is worth this share of a full batch.
_COST_OF_SHAPE, _COST_OF_STEP = 0.01, 0.1


class BucketedPairs(keras.utils.PyDataset):
    """Batches of (source, target) pairs for `fit`, bucketed by length so that little of a batch is padding.

    Yields `({"encoder_token_ids": (B, S), "decoder_token_ids": (B, T)}, labels (B, T), sample_weight (B, T))`: int32
    ids and float32 weights, 1 for a real label and 0 for padding. The decoder reads start + target, the labels are
    target + stop. Every pair occurs once in an epoch. Each shape has its own fixed (B, S, T); incomplete batches are
    filled up with rows of padding of weight 0. Batches 0 and 1 differ in every length that varies, because Keras on
    TensorFlow takes from those two which dimensions are fixed.

    The shuffle depends on `seed` and `epoch` alone. `fit` shuffles the order of the batches once more, by Python's
    random state, unless called with `shuffle=False`; then `data.epoch = k; model.fit(data, initial_epoch=k,
    shuffle=False)` resumes on the very same batches. `evaluate` counts as an epoch too. With `steps_per_epoch`, Keras'
    epochs are pieces of one pass after another in the same order.

    Args:
        sources, targets: lists of equally many id lists, without start, stop or padding. Pairs with an empty source
            are dropped and counted; an empty target is just the stop token.
        batch_tokens: int, source and target positions of a batch, padding included (but one row at least).
        batch_size: int, rows of every batch, instead of `batch_tokens`.
        start_token_id, stop_token_id, pad_token_id: int ids put around and behind the pairs.
        buckets: int, the largest number of shapes to fit to the data, or a list of shapes (S, T), n standing for
            (n, n). More shapes leave less padding, but XLA compiles each: for 40,000 sentence pairs of 2 to 117
            pieces, 1 shape means 88 % padding, 4 mean 37 %, 8 mean 21 % and 14 mean 14 %.
        max_length: int or (S, T), the most positions of a source and a target, start or stop included; None: any.
        overlong: what happens to pairs above `max_length` or above every given bucket: `"drop"` or `"truncate"` (the
            stop token goes with the end, so that no model learns to stop in mid-sentence). Both are counted.
        vocabulary_size: int or (source, target), ids from there on are refused; None: no check.
        shuffle: bool, whether to shuffle; False keeps the order of the pairs within a shape.
        seed: int.

    Attributes:
        num_pairs: int, pairs in an epoch.
        num_real_tokens, num_padded_tokens: int, source and target positions of an epoch that hold a token (start
            included), and that are padding.
        shapes: list of (B, S, T).
        num_dropped: dict from reason to count.
        num_truncated: int.
        epoch: int, the shuffle in use; `on_epoch_end` goes to the next one, and it may be set.

    Raises:
        ValueError: if no pair is left, an id is not an integer, negative or outside the vocabulary, or an argument is
            impossible.

    Example:

    >>> data = BucketedPairs([[5, 6, 7], [8]], [[9, 10], [11]], batch_size=2, shuffle=False)
    >>> inputs, labels, sample_weight = data[0]
    >>> inputs["decoder_token_ids"].tolist(), labels.tolist()
    ([[1, 9, 10], [1, 11, 0]], [[9, 10, 2], [11, 2, 0]])
    >>> data.summary()
    '2 pairs, 1 shape, 75.0 % real tokens'
    """

    def __init__(
        self,
        sources,
        targets,
        *,
        batch_tokens=4096,
        batch_size=None,
        start_token_id=1,
        stop_token_id=2,
        pad_token_id=0,
        buckets=8,
        max_length=None,
        overlong="drop",
        vocabulary_size=None,
        shuffle=True,
        seed=0,
    ):
        super().__init__()  # no workers: batches are ready, and taking one costs less than handing it over
        shapes = None if isinstance(buckets, numbers.Number) else _sorted_shapes(buckets)
        sizes = {"batch_tokens": batch_tokens, "batch_size": batch_size, "buckets": None if shapes else buckets}
        check_size(**{argument: size for argument, size in sizes.items() if size is not None})
        if overlong not in ("drop", "truncate"):
            raise ValueError(f'`overlong` must be "drop" or "truncate". Received: overlong={overlong!r}')
        check_count(0, seed=seed)
        self.batch_tokens, self.batch_size = batch_tokens, batch_size
        self.shuffle, self.seed = shuffle, seed

        sources, targets = RaggedIds.from_lists(sources, "sources"), RaggedIds.from_lists(targets, "targets")
        if len(sources.lengths) != len(targets.lengths):
            raise ValueError(
                "`sources` and `targets` must be equally many. "
                f"Received: {len(sources.lengths)} and {len(targets.lengths)}"
            )
        special = {"start_token_id": start_token_id, "stop_token_id": stop_token_id, "pad_token_id": pad_token_id}
        check_id(**special)
        if vocabulary_size is not None:
            source_limit, target_limit = _shape(vocabulary_size, "vocabulary_size")
            for argument, token_id in special.items():  # padding is on both sides, the others are on the target's
                limit = min(source_limit, target_limit) if argument == "pad_token_id" else target_limit
                check_in_vocabulary([token_id], limit, argument)
            check_in_vocabulary(sources.flat, source_limit, "sources")
            check_in_vocabulary(targets.flat, target_limit, "targets")

        lengths = np.stack([sources.lengths, targets.lengths + 1], axis=1)
        limited = _limit(lengths, max_length, shapes)
        is_empty = sources.lengths == 0
        is_overlong = (limited < lengths).any(axis=1) & ~is_empty
        is_dropped = is_empty | is_overlong if overlong == "drop" else is_empty
        self.num_dropped = {"without a source": int(is_empty.sum()), "too long": int((is_overlong & is_dropped).sum())}
        self.num_truncated = int((is_overlong & ~is_dropped).sum())
        kept, lengths = np.flatnonzero(~is_dropped), limited[~is_dropped]
        if not len(kept):
            raise ValueError(f"No pair is left of {len(is_dropped)} in `sources`; dropped: {self.num_dropped}")
        if shapes is None:
            shapes = self._worthwhile(length_buckets(lengths, buckets), lengths)

        bucket_of_pair = assign_buckets(lengths, shapes)
        sides = (sources, targets.insert(start_token_id), targets.insert(stop_token_id, at_end=True))
        self._buckets = []
        for index in np.unique(bucket_of_pair):
            inside = bucket_of_pair == index
            _, num_rows, _ = self._rows(inside.sum(), shapes[index])
            bucket = _Bucket.padded(sides, kept[inside], lengths[inside], shapes[index], num_rows, pad_token_id)
            self._buckets.append(bucket)

        self.shapes = [bucket.shape for bucket in self._buckets]
        self.num_pairs, self.num_real_tokens = len(kept), int(lengths.sum())
        self._leading_buckets = _differing_shapes(self.shapes)
        self.epoch = 0
        num_positions = sum(len(rows) * sum(self.shapes[bucket][1:]) for bucket, rows in self._plan)
        self.num_padded_tokens = num_positions - self.num_real_tokens

    def _worthwhile(self, shapes, lengths):
        """Leave out shapes, the least useful first, that do not earn what they cost."""
        cells, counts = np.unique(lengths, axis=0, return_counts=True)

        def cost(shapes):
            members = assign_buckets(cells, shapes)
            if (members < 0).any():
                return np.inf
            num_pairs = np.bincount(members, counts, len(shapes)).astype(int)
            positions = 0
            for shape, pairs in zip(shapes, num_pairs):
                num_batches, num_rows, max_rows = self._rows(pairs, shape)
                positions += num_batches * (num_rows + _COST_OF_STEP * max_rows) * sum(shape)
            return positions

        total = cost(shapes)
        while len(shapes) > 1:
            fewer = [shapes[:index] + shapes[index + 1 :] for index in range(len(shapes))]
            costs = [cost(candidate) for candidate in fewer]
            if min(costs) > total * (1 + _COST_OF_SHAPE):
                break
            total, shapes = min(costs), fewer[int(np.argmin(costs))]
        return shapes

    def _rows(self, num_pairs, shape):
        """How many batches of how many rows hold a bucket's pairs, and how many rows there may be.

        A token budget lets the pairs spread evenly over the batches, which leaves hardly a row to fill up.
        """
        max_rows = self.batch_size or max(1, self.batch_tokens // sum(shape))
        num_batches = max(1, -(-num_pairs // max_rows))
        return num_batches, self.batch_size or -(-num_pairs // num_batches), max_rows

    @property
    def epoch(self):
        """int, the number of the shuffle in use."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch):
        self._epoch = epoch
        generator = np.random.default_rng([self.seed, epoch])
        plan = []  # the epoch's batches: a bucket's number, and the batch's rows of it
        for index, bucket in enumerate(self._buckets):
            order = generator.permutation(bucket.num_pairs) if self.shuffle else np.arange(bucket.num_pairs)
            num_missing = -bucket.num_pairs % bucket.num_rows
            rows = np.pad(order, (0, num_missing), constant_values=bucket.num_pairs)
            plan.extend((index, batch) for batch in rows.reshape(-1, bucket.num_rows))
        if self.shuffle:
            plan = [plan[position] for position in generator.permutation(len(plan))]
        for position, leading in enumerate(self._leading_buckets):
            found = next(i for i, (index, _) in enumerate(plan) if i >= position and index == leading)
            plan.insert(position, plan.pop(found))
        self._plan, self._num_read = plan, 0

    def on_epoch_end(self):
        """Go to the next shuffle, if this one was read to its end; called by Keras, or by a loop of your own.

        `fit` looks at a batch or two and reports the end of an epoch before its first one: that is not an epoch.
        """
        if self._num_read >= len(self):
            self.epoch += 1
        self._num_read = 0

    def __len__(self):
        return len(self._plan)

    def __getitem__(self, index):
        bucket, rows = self._plan[index]
        self._num_read += 1
        return self._buckets[bucket].batch(rows)

    def summary(self):
        """One line such as `38,412 pairs, 7 shapes, 93.1 % real tokens`, and what was dropped or truncated."""
        share = 100 * self.num_real_tokens / (self.num_real_tokens + self.num_padded_tokens)
        pairs, shapes = "pair" if self.num_pairs == 1 else "pairs", "shape" if len(self.shapes) == 1 else "shapes"
        parts = [f"{self.num_pairs:,} {pairs}", f"{len(self.shapes)} {shapes}", f"{share:.1f} % real tokens"]
        parts += [f"{count:,} {reason} dropped" for reason, count in self.num_dropped.items() if count]
        parts += [f"{self.num_truncated:,} too long truncated"] if self.num_truncated else []
        return ", ".join(parts)


class _Bucket(NamedTuple):
    """The pairs of one shape, padded once; the row behind the last pair is nothing but padding."""

    num_rows: int
    source: np.ndarray  # (pairs + 1, S)
    target: np.ndarray  # (pairs + 1, T)
    labels: np.ndarray  # (pairs + 1, T)
    lengths: np.ndarray  # (pairs + 1,), of the targets

    @classmethod
    def padded(cls, sides, rows, lengths, shape, num_rows, pad_token_id):
        lengths = np.append(lengths, [[0, 0]], axis=0)  # the row of padding: any pair, cut to nothing
        rows = np.append(rows, rows[0])
        ids = [
            side.take(rows, lengths[:, axis]).pad(shape[axis], pad_token_id)[0] for side, axis in zip(sides, (0, 1, 1))
        ]
        return cls(int(num_rows), *ids, lengths[:, 1])

    @property
    def num_pairs(self):
        return len(self.lengths) - 1

    @property
    def shape(self):
        return self.num_rows, self.source.shape[1], self.target.shape[1]

    def batch(self, rows):
        weight = (np.arange(self.target.shape[1]) < self.lengths[rows, None]).astype("float32")
        inputs = {"encoder_token_ids": self.source[rows], "decoder_token_ids": self.target[rows]}
        return inputs, self.labels[rows], weight


def _limit(lengths, max_length, shapes):
    """The lengths (N, 2) that pairs are cut to, to respect `max_length` and to fit into one of the shapes."""
    if max_length is not None:
        lengths = np.minimum(lengths, _shape(max_length, "max_length"))
    if shapes is not None:
        fits_nowhere = assign_buckets(lengths, shapes) < 0
        lengths = np.where(fits_nowhere[:, None], np.minimum(lengths, shapes[-1]), lengths)
    return lengths


def _differing_shapes(shapes):
    """Two shapes that differ in S if S varies at all and in T if T varies, the larger first; () if all are equal.

    They always exist: shapes of which any two agree in S or in T all agree in the same one of them.
    """
    varies = [len({shape[side] for shape in shapes}) > 1 for side in (1, 2)]
    pairs = [
        (first, second)
        for first, second in itertools.permutations(range(len(shapes)), 2)
        if all(shapes[first][side] != shapes[second][side] for side in (1, 2) if varies[side - 1])
    ]
    return max(pairs, key=lambda pair: (sum(shapes[pair[0]][1:]), sum(shapes[pair[1]][1:])), default=())


def _sorted_shapes(buckets):
    shapes = {_shape(bucket, "buckets") for bucket in buckets}
    if not shapes:
        raise ValueError("`buckets` must be a positive int or a list of shapes (S, T). Received an empty list.")
    return sorted(shapes, key=lambda shape: (sum(shape), shape))


def _shape(size, argument):
    sizes = (size, size) if isinstance(size, (int, np.integer)) else tuple(size)
    if len(sizes) != 2:
        raise ValueError(
            f"`{argument}` must be an int or a pair, of the source and of the target. Received: {argument}={size!r}"
        )
    check_size(**{argument: sizes[0]})
    check_size(**{argument: sizes[1]})
    return int(sizes[0]), int(sizes[1])
