from collections import Counter

import keras
import numpy as np
import pytest

from keras_transformer.data import BucketedPairs

START, STOP, PAD = 1, 2, 0


def random_pairs(num_pairs=300, seed=0):
    """Pairs of skewed lengths, as of real text: many short, few long, target about as long as the source."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(2.5, 0.4, num_pairs), 1, 60).astype(int)
    targets = np.maximum(0, np.round(lengths * rng.normal(1.1, 0.08, num_pairs))).astype(int)
    return [rng.integers(3, 30, n).tolist() for n in lengths], [rng.integers(3, 30, n).tolist() for n in targets]


def pairs_of(data):
    """The pairs that an epoch holds, read back from its batches, with every rule of a batch checked on the way."""
    found = Counter()
    for index in range(len(data)):
        inputs, labels, weight = data[index]
        source, target = inputs["encoder_token_ids"], inputs["decoder_token_ids"]
        assert source.dtype == target.dtype == labels.dtype == np.int32 and weight.dtype == np.float32
        assert target.shape == labels.shape == weight.shape
        assert (len(source), source.shape[1], target.shape[1]) in data.shapes
        for i in range(len(source)):
            num_labels = int(weight[i].sum())
            assert weight[i].tolist() == [1.0] * num_labels + [0.0] * (len(weight[i]) - num_labels)
            assert (labels[i, num_labels:] == PAD).all() and (target[i, num_labels:] == PAD).all()
            if not num_labels:  # a row that only fills the batch
                assert (source[i] == PAD).all()
                continue
            assert target[i, 0] == START and labels[i, num_labels - 1] == STOP
            assert (target[i, 1:num_labels] == labels[i, : num_labels - 1]).all()
            source_length = int((source[i] != PAD).sum())
            assert (source[i, source_length:] == PAD).all()
            found[tuple(source[i, :source_length].tolist()), tuple(labels[i, : num_labels - 1].tolist())] += 1
    return found


def counted(sources, targets):
    return Counter(zip(map(tuple, sources), map(tuple, targets)))


@pytest.mark.parametrize(
    "options", [{}, {"batch_tokens": 200}, {"batch_size": 7}, {"batch_size": 1000}, {"buckets": 1}]
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_pair_occurs_once_in_every_epoch(options, shuffle):
    sources, targets = random_pairs()
    data = BucketedPairs(sources, targets, shuffle=shuffle, **options)
    for _ in range(3):
        assert pairs_of(data) == counted(sources, targets)
        data.on_epoch_end()
    assert data.num_pairs == len(sources) and len(set(data.shapes)) == len(data.shapes) <= options.get("buckets", 8)


def test_token_counts_are_those_of_the_batches():
    sources, targets = random_pairs()
    data = BucketedPairs(sources, targets, batch_tokens=300)
    positions = sum(side.size for i in range(len(data)) for side in data[i][0].values())
    real = sum(map(len, sources)) + sum(len(target) + 1 for target in targets)
    assert data.num_real_tokens == real and data.num_padded_tokens == positions - real
    assert data.summary() == f"300 pairs, {len(data.shapes)} shapes, {100 * real / positions:.1f} % real tokens"


def test_a_batch_stays_within_its_budget():
    data = BucketedPairs(*random_pairs(), batch_tokens=300)
    assert all(rows * (source + target) <= 300 for rows, source, target in data.shapes)
    assert all(rows == 1 for rows, _, _ in BucketedPairs(*random_pairs(50), batch_tokens=1).shapes)
    assert all(rows == 16 for rows, _, _ in BucketedPairs(*random_pairs(), batch_size=16).shapes)


def test_skewed_lengths_waste_little():
    pairs = random_pairs(8000)
    data, one_shape = BucketedPairs(*pairs), BucketedPairs(*pairs, buckets=1)
    real, padded = data.num_real_tokens, data.num_padded_tokens
    assert len(data.shapes) <= 8 and real / (real + padded) >= 0.85
    assert real / (real + one_shape.num_padded_tokens) < 0.4


def test_few_pairs_do_not_pay_for_many_shapes():
    data = BucketedPairs(*random_pairs(12))
    assert len(data) == len(data.shapes) == 1


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    "lengths",
    [
        [(n, n) for n in range(1, 40)],
        [(5, 40), (40, 5), (5, 5)],  # the common shape differs in one dimension only from either other
        [(5, 5), (5, 40)],
        [(5, 5), (40, 5)],
        [(5, 5)],
    ],
)
def test_the_first_two_batches_differ_wherever_lengths_vary(lengths, shuffle):
    pairs = [([5] * source, [6] * (target - 1)) for source, target in lengths for _ in range(8)]
    data = BucketedPairs(*zip(*pairs), batch_size=2, shuffle=shuffle)
    for _ in range(10):
        shapes = [(b[0]["encoder_token_ids"].shape[1], b[1].shape[1]) for b in (data[i] for i in range(len(data)))]
        for side in (0, 1):
            varies = len({shape[side] for shape in shapes}) > 1
            assert (shapes[0][side] != shapes[1][side]) == varies
        data.on_epoch_end()


def epoch_of(data):
    return [np.concatenate([side.ravel() for side in data[i][0].values()]).tolist() for i in range(len(data))]


def test_the_shuffle_depends_on_seed_and_epoch_alone():
    pairs = random_pairs()
    data, same, other = (BucketedPairs(*pairs, batch_tokens=300, seed=seed) for seed in (0, 0, 1))
    first = epoch_of(data)
    assert first == epoch_of(same) != epoch_of(other)
    data.on_epoch_end()
    second = epoch_of(data)
    assert data.epoch == 1 and sorted(second) != sorted(first)  # other batches, not only another order
    same.epoch = 1
    assert epoch_of(same) == second
    same.epoch = 0
    assert epoch_of(same) == first


def test_without_shuffling_the_order_stays():
    data = BucketedPairs(*random_pairs(), batch_tokens=300, shuffle=False)
    first = epoch_of(data)
    data.on_epoch_end()
    assert epoch_of(data) == first


def test_one_pair_and_an_empty_target():
    data = BucketedPairs([[5, 6]], [[]])
    inputs, labels, weight = data[0]
    assert len(data) == 1 and data.shapes == [(1, 2, 1)]
    assert inputs["encoder_token_ids"].tolist() == [[5, 6]] and inputs["decoder_token_ids"].tolist() == [[START]]
    assert labels.tolist() == [[STOP]] and weight.tolist() == [[1.0]]


def test_a_batch_larger_than_the_data_is_filled_with_weightless_rows():
    (inputs, labels, weight), *rest = BucketedPairs([[5], [6]], [[7], [8]], batch_size=5)
    assert not rest and labels.shape == (5, 2)
    assert weight.sum(axis=1).tolist() == [2, 2, 0, 0, 0]
    assert not inputs["encoder_token_ids"][2:].any() and not inputs["decoder_token_ids"][2:].any()


def test_pairs_without_a_source_are_dropped_and_counted():
    data = BucketedPairs([[5], [], [6]], [[7], [8], [9]])
    assert pairs_of(data) == counted([[5], [6]], [[7], [9]])
    assert data.num_dropped["without a source"] == 1 and data.summary().endswith("1 without a source dropped")


@pytest.mark.parametrize("options", [{"max_length": (3, 4)}, {"buckets": [(2, 2), (3, 4)]}])
def test_overlong_pairs_are_dropped_or_truncated(options):
    sources, targets = [[5, 6, 7], [5, 6, 7, 8], [5], [5]], [[9, 10, 11], [9], [9, 10, 11, 12], [9]]
    data = BucketedPairs(sources, targets, **options)
    assert pairs_of(data) == counted([sources[0], sources[3]], [targets[0], targets[3]])
    assert data.num_pairs == 2 and data.num_dropped["too long"] == 2 and data.num_truncated == 0
    assert "2 too long dropped" in data.summary()

    data = BucketedPairs(sources, targets, overlong="truncate", shuffle=False, **options)
    assert data.num_pairs == 4 and data.num_dropped["too long"] == 0 and data.num_truncated == 2
    assert "2 too long truncated" in data.summary()
    rows = [
        (source[source > 0].tolist(), target[w > 0].tolist(), label[w > 0].tolist())
        for inputs, labels, weight in data
        for source, target, label, w in zip(inputs["encoder_token_ids"], inputs["decoder_token_ids"], labels, weight)
        if w.any()
    ]
    assert ([5, 6, 7], [1, 9], [9, 2]) in rows  # the source was cut, its target is whole
    assert ([5], [1, 9, 10, 11], [9, 10, 11, 12]) in rows  # cut before the stop token


def test_given_buckets_are_the_shapes():
    sources, targets = random_pairs()
    data = BucketedPairs(sources, targets, buckets=[16, (32, 40), 100, 500], batch_size=4)
    assert data.shapes == [(4, 16, 16), (4, 32, 40), (4, 100, 100)]  # nothing needs the largest
    assert pairs_of(data) == counted(sources, targets)


def test_special_ids_are_free():
    inputs, labels, _ = BucketedPairs(
        [[5, 6], [7]], [[8], [8, 9]], start_token_id=4, stop_token_id=3, pad_token_id=1, buckets=1, shuffle=False
    )[0]
    assert inputs["encoder_token_ids"].tolist() == [[5, 6], [7, 1]]
    assert inputs["decoder_token_ids"].tolist() == [[4, 8, 1], [4, 8, 9]] and labels.tolist() == [[8, 3, 1], [8, 9, 3]]


@pytest.mark.parametrize(
    "sources, targets, options, message",
    [
        ([], [], {}, "No pair is left"),
        ([[]], [[5]], {}, "No pair is left"),
        ([[5, 6]], [[5]], {"max_length": 1}, "No pair is left.*too long"),
        ([[5]], [], {}, "1 and 0"),
        ([[5.0]], [[5]], {}, "`sources`.*float"),
        ([[5]], [[-5]], {}, "`targets`.*-5"),
        ([[5]], [[10]], {"vocabulary_size": 10}, r"`targets`.*\[0, 10\).*10"),
        ([[10]], [[5]], {"vocabulary_size": (10, 20)}, r"`sources`.*\[0, 10\).*10"),
        ([[5]], [[5]], {"batch_tokens": 0}, "batch_tokens=0"),
        ([[5]], [[5]], {"batch_size": 0}, "batch_size=0"),
        ([[5]], [[5]], {"batch_size": 2.5}, "batch_size=2.5"),
        ([[5]], [[5]], {"buckets": 0}, "buckets=0"),
        ([[5]], [[5]], {"buckets": []}, "`buckets`"),
        ([[5]], [[5]], {"buckets": [(3, 0)]}, "buckets=0"),
        ([[5]], [[5]], {"max_length": (1, 2, 3)}, "max_length"),
        ([[5]], [[5]], {"overlong": "keep"}, "overlong='keep'"),
        ([[5]], [[5]], {"vocabulary_size": 10, "start_token_id": 99}, r"`start_token_id`.*\[0, 10\).*99"),
        ([[5]], [[5]], {"vocabulary_size": 10, "stop_token_id": -1}, r"`stop_token_id`.*-1"),
        ([[5]], [[5]], {"pad_token_id": 2**32}, f"pad_token_id={2**32}"),
    ],
)
def test_refusals(sources, targets, options, message):
    with pytest.raises(ValueError, match=message):
        BucketedPairs(sources, targets, **options)


class WeightedSum(keras.metrics.Sum):
    """The sum of the labels that count: equal for all epochs only if each of them counts once."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(keras.ops.cast(y_true, "float32"), sample_weight)

    def result(self):
        return super().result() + 0  # Keras on torch logs the variable itself, which validation then overwrites


def small_model():
    source, target = (keras.Input((None,), dtype="int32", name=f"{side}_token_ids") for side in ("encoder", "decoder"))
    context = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(30, 8)(source))
    states = keras.layers.Add()([keras.layers.Embedding(30, 8)(target), keras.layers.Reshape((1, 8))(context)])
    model = keras.Model({"encoder_token_ids": source, "decoder_token_ids": target}, keras.layers.Dense(30)(states))
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[WeightedSum(name="label_sum")],
    )
    return model


@pytest.mark.parametrize(
    "options", [{"batch_tokens": 500, "buckets": 3}, {"batch_size": 16, "buckets": 2}, {"buckets": 1}]
)
def test_fit_and_evaluate_take_all_shapes(options):
    sources, targets = random_pairs(120)
    data = BucketedPairs(sources, targets, **options)
    assert len(data.shapes) == options["buckets"]
    valid = BucketedPairs(*random_pairs(40, seed=1), shuffle=False, buckets=2)
    model = small_model()
    history = model.fit(data, epochs=2, validation_data=valid, verbose=0).history
    label_sum = sum(map(sum, targets)) + STOP * len(targets)
    assert history["label_sum"] == [label_sum] * 2
    assert history["val_loss"][1] < history["val_loss"][0]


def test_training_is_compiled_once_for_a_bucket_at_most():
    """B29: a Python counter in the user's layer, which eager PyTorch calls at every step; Keras once for shapes."""
    traces = []

    class Counter(keras.layers.Layer):
        def call(self, x):
            traces.append(None)
            return x

    plain = small_model()
    model = keras.Model(plain.inputs, Counter()(plain.outputs[0]))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = BucketedPairs(*random_pairs(120), batch_size=8, buckets=3)
    traces.clear()
    model.fit(data, epochs=2, verbose=0)
    is_eager = keras.backend.backend() == "torch"
    most = 2 * len(data) if is_eager else len(data.shapes)
    assert len(data) > 2 * len(data.shapes) and 0 < len(traces) <= most + 1


def test_fit_resumes_on_the_same_batches():
    pairs = random_pairs(120)

    def fit(model, epoch, epochs):
        data = BucketedPairs(*pairs, batch_tokens=500, buckets=2)
        data.epoch = epoch
        losses = model.fit(data, initial_epoch=epoch, epochs=epochs, shuffle=False, verbose=0).history["loss"]
        assert data.epoch == epochs
        return losses

    keras.utils.set_random_seed(0)
    in_one_go = fit(small_model(), 0, 3)
    keras.utils.set_random_seed(0)
    model = small_model()
    np.testing.assert_allclose(fit(model, 0, 2) + fit(model, 2, 3), in_one_go, rtol=1e-6)


def test_an_epoch_that_was_not_read_to_its_end_is_not_over():
    data = BucketedPairs(*random_pairs(), batch_tokens=300)
    data[0], data[1]
    data.on_epoch_end()
    assert data.epoch == 0
    pairs_of(data)
    data.on_epoch_end()
    assert data.epoch == 1


def test_ids_that_only_targets_have_are_those_of_their_vocabulary():
    special = {"start_token_id": 98, "stop_token_id": 99}
    data = BucketedPairs([[5, 29]], [[50, 60]], vocabulary_size=(30, 100), **special)
    assert data[0][1].max() == 99
    with pytest.raises(ValueError, match="`start_token_id`.*98"):
        BucketedPairs([[5, 50]], [[5, 6]], vocabulary_size=(100, 30), **special)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"seed": -1}, "`seed`.*seed=-1"),
        ({"seed": None}, "`seed`.*seed=None"),
        ({"buckets": 4.0}, "`buckets`.*buckets=4.0"),
        ({"vocabulary_size": (30, 30, 30)}, "`vocabulary_size`.*an int or a pair"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(ValueError, match=message):
        BucketedPairs([[5, 6]], [[5, 6]], **options)
