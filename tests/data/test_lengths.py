import itertools

import numpy as np
import pytest

from keras_transformer.data import assign_buckets, length_buckets


def num_positions(lengths, buckets):
    """Positions after padding, by looking at every sequence."""
    lengths, buckets = (np.reshape(sizes, (len(sizes), -1)).tolist() for sizes in (lengths, buckets))
    return sum(
        min(sum(bucket) for bucket in buckets if all(n <= size for n, size in zip(length, bucket)))
        for length in lengths
    )


def brute_force(lengths, num_buckets):
    """The fewest positions that any choice of `num_buckets` buckets leaves."""
    lengths = np.reshape(lengths, (len(lengths), -1))
    options = list(itertools.product(*(sorted(set(side)) for side in lengths.T.tolist())))
    best = float("inf")
    for buckets in itertools.combinations(options, num_buckets):
        if all(any((length <= bucket).all() for bucket in np.array(buckets)) for length in lengths):
            best = min(best, num_positions(lengths, buckets))
    return best


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_buckets", [1, 2, 3])
def test_buckets_of_single_sequences_are_close_to_the_best(seed, num_buckets):
    lengths = np.random.default_rng(seed).geometric(0.15, 60)
    buckets = length_buckets(lengths, num_buckets)
    assert len(buckets) <= num_buckets and max(buckets) == lengths.max() and buckets == sorted(buckets)
    assert num_positions(lengths, buckets) <= 1.05 * brute_force(lengths, num_buckets)


@pytest.mark.parametrize("seed", range(3))
def test_buckets_of_pairs_are_close_to_the_best(seed):
    rng = np.random.default_rng(seed)
    lengths = np.stack([rng.integers(1, 6, 30), rng.integers(1, 6, 30)], axis=1)
    assert num_positions(lengths, length_buckets(lengths, 2)) <= 1.05 * brute_force(lengths, 2)


def test_buckets_hold_everything_and_are_few_for_a_wide_range_of_lengths():
    lengths = np.random.default_rng(0).integers(1, 5000, (20_000, 2))
    buckets = length_buckets(lengths, 6)
    assert len(buckets) <= 6
    assert (assign_buckets(lengths, buckets) >= 0).all()
    assert num_positions(lengths[:500], buckets) < 0.75 * num_positions(lengths[:500], [lengths.max(axis=0)])


def test_no_bucket_is_wasted():
    assert length_buckets([5, 5, 5], 8) == [5]
    assert length_buckets([(5, 3)], 8) == [(5, 3)]
    assert sorted(length_buckets([(5, 40), (40, 5)], 8)) == [(5, 40), (40, 5)]


def test_assign_buckets_takes_the_cheapest_that_fits():
    buckets = [(4, 4), (4, 20), (20, 4), (20, 20)]
    lengths = [(4, 4), (1, 5), (5, 1), (5, 5), (21, 1), (0, 0)]
    assert assign_buckets(lengths, buckets).tolist() == [0, 1, 2, 3, -1, 0]


def test_refusals():
    with pytest.raises(ValueError, match="`lengths` is empty"):
        length_buckets([])
    with pytest.raises(ValueError, match="num_buckets=0"):
        length_buckets([3], 0)


def test_the_number_of_buckets_is_a_whole_one():
    with pytest.raises(ValueError, match="`num_buckets` must be a positive integer. Received: num_buckets=2.5"):
        length_buckets([3, 4, 9], 2.5)
