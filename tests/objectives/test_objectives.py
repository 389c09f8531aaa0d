"""Rates as published, special tokens untouched, originals restored, and one stream whatever the batches."""

import itertools

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.objectives import (
    Batches,
    CausalLM,
    Denoising,
    MaskedLM,
    PrefixLM,
    SpanCorruption,
    next_sentence_pairs,
)

SIZE, MASK, PAD, START, STOP, SEPARATOR = 1000, 4, 0, 1, 2, 3
FULL_STOP = 10
SENTINELS = range(SIZE - 1, SIZE - 101, -1)


def rows(count=200, length=500, specials=True, seed=0):
    """Ids of 20 and above, of which every row has a separator in the middle; 100,000 tokens by default."""
    ids = np.random.default_rng(seed).integers(20, SIZE - 200, (count, length))
    if specials:
        ids[:, length // 2] = SEPARATOR
    return ids.tolist()


def near(count, total, share):
    """Whether a binomial count lies within three standard deviations."""
    return abs(count - total * share) < 3 * np.sqrt(total * share * (1 - share))


OBJECTIVES = {
    "causal": CausalLM(START, STOP),
    "prefix": PrefixLM(START, STOP),
    "masked": MaskedLM(SIZE, MASK, [SEPARATOR]),
    "spans": SpanCorruption(SENTINELS, START, STOP, special_token_ids=[SEPARATOR]),
    "denoising": Denoising(
        MASK,
        START,
        STOP,
        mask_rate=0.1,
        delete_rate=0.1,
        permute_rate=0.5,
        rotate_rate=0.5,
        sentence_end_ids=range(20, 60),
        special_token_ids=[SEPARATOR],
    ),
}


class TestMaskedLM:
    def test_rates(self):
        """15 % of the tokens, of these 80 % masks, 10 % others, 10 % as they are; never a special token."""
        given = np.asarray(rows())
        inputs, labels, weights = MaskedLM(SIZE, MASK, [SEPARATOR])(given)
        hidden = inputs
        assert (labels == given).all()
        assert (hidden[weights == 0] == given[weights == 0]).all()
        assert (weights[given == SEPARATOR] == 0).all()
        chosen = weights == 1
        total = (given != SEPARATOR).sum()
        assert near(chosen.sum(), total, 0.15)
        masks = hidden[chosen] == MASK
        others = ~masks & (hidden[chosen] != given[chosen])
        assert near(masks.sum(), chosen.sum(), 0.8)
        assert near(others.sum(), chosen.sum(), 0.1 * (1 - 1 / SIZE))
        drawn = hidden[chosen][others]
        assert not np.isin(drawn, [PAD, MASK, SEPARATOR]).any() and len(np.unique(drawn)) > 600

    def test_whole_words(self):
        """All pieces of a word or none; a piece behind a special token begins a word."""
        continues = np.arange(SIZE) % 3 == 0
        given = np.asarray(rows())
        _, _, weights = MaskedLM(SIZE, MASK, [SEPARATOR], continues_word=continues)(given)
        joined = continues[given[:, 1:]] & (given[:, 1:] != SEPARATOR) & (given[:, :-1] != SEPARATOR)
        assert (weights[:, 1:] == weights[:, :-1])[joined].all()
        behind = continues[given[:, 1:]] & (given[:, :-1] == SEPARATOR)
        assert behind.any() and weights[:, 1:][behind].any()
        words = (~joined).sum() + len(given) - 2 * len(given)  # those that begin inside, those in front, no separators
        begins = np.concatenate([np.ones((len(given), 1), bool), ~joined], axis=1) & (given != SEPARATOR)
        assert begins.sum() == words + len(given)
        assert near(weights[begins].sum(), begins.sum(), 0.15)

    def test_errors(self):
        for options, message in (
            ({"rate": 1.5}, "rate=1.5"),
            ({"mask_share": 0.8, "random_share": 0.3}, "random_share=0.3"),
            ({"special_token_ids": [SIZE]}, "1000"),
            ({"continues_word": [True]}, "continues_word"),
        ):
            with pytest.raises(ValueError, match=message):
                MaskedLM(**{"vocabulary_size": SIZE, "mask_token_id": MASK, **options})
        with pytest.raises(ValueError, match=f"the id {SIZE}"):
            MaskedLM(SIZE, MASK)([[SIZE]])
        with pytest.raises(ValueError, match="integer"):
            MaskedLM(SIZE, MASK)([[0.5]])


class TestSpanCorruption:
    def test_rates_and_lengths(self):
        objective, given = OBJECTIVES["spans"], rows()
        masks = [objective.hidden(np.asarray(row), objective.random(i)) for i, row in enumerate(given)]
        total = sum(len(row) - 1 for row in given)
        hidden = sum(mask.sum() for mask in masks)
        assert abs(hidden - 0.15 * total) < 3 * np.sqrt(len(given)) / 2  # each row's number is rounded by chance
        runs = sum(len(np.flatnonzero(np.diff(np.pad(mask.astype(int), 1)) == 1)) for mask in masks)
        assert abs(hidden / runs - 3.0) < 0.05
        assert not any(mask[250] for mask in masks)
        where = np.mean(masks, axis=0)
        assert abs(where[:250].mean() - where[251:].mean()) < 0.01  # no side is preferred
        # At either end fewer runs can cover a token, yet some do.
        assert 0.02 < where[:3].mean() < 0.15 and 0.02 < where[-3:].mean() < 0.15

    @pytest.mark.parametrize("rate", [0.15, 0.5, 1.0])
    @pytest.mark.parametrize("length", [1, 2, 3, 7, 40])
    def test_the_original_comes_back(self, rate, length):
        """What stands behind a sentinel in the target takes its place in the source."""
        objective = SpanCorruption(SENTINELS, START, STOP, rate=rate, special_token_ids=[SEPARATOR])
        for number, row in enumerate(rows(30, length)):
            example = objective.example(row, number)
            assert example["labels"][-1] == example["encoder_token_ids"][-1] == STOP
            assert example["decoder_token_ids"] == [START, *example["labels"][:-1]]
            pieces, sentinel = {}, None
            for token in example["labels"][:-1]:
                if token in SENTINELS:
                    sentinel, pieces[token] = token, []
                else:
                    pieces[sentinel].append(token)
            restored = [pieces.get(token, [token]) for token in example["encoder_token_ids"][:-1]]
            assert list(itertools.chain.from_iterable(restored)) == row
            assert list(pieces) == list(SENTINELS)[: len(pieces)] and all(pieces.values())

    def test_too_few_sentinels(self):
        with pytest.raises(ValueError, match="needs more than the 2 sentinels"):
            SpanCorruption([998, 999])(rows(1))


class TestDenoising:
    def test_infilling(self):
        """30 % of the tokens, in runs of Poisson length; what is left stands in order, and each mask may be nothing."""
        objective, given = Denoising(MASK, START, STOP, special_token_ids=[SEPARATOR]), rows()
        kept, masks = 0, 0
        for number, row in enumerate(given):
            source = objective.example(row, number)["encoder_token_ids"]
            left = [token for token in source if token != MASK]
            follows = iter(row)
            assert all(token in follows for token in left)  # a subsequence
            assert left.count(SEPARATOR) == 1
            kept, masks = kept + len(left) - 1, masks + source.count(MASK)
        total = sum(len(row) - 1 for row in given)
        assert abs(total - kept - 0.3 * total) < 3 * np.sqrt(2 * len(given)) / 2
        # Runs are cut to the share, so they are a little shorter than drawn.
        assert 2.7 < (total - kept) / masks < 3.0

    def test_masks_and_deletions(self):
        given = rows()
        total = sum(len(row) - 1 for row in given)
        masking = Denoising(MASK, START, STOP, infill_rate=0, mask_rate=0.2, special_token_ids=[SEPARATOR])
        sources = np.asarray([masking.example(row, i)["encoder_token_ids"] for i, row in enumerate(given)])
        assert ((sources == given) | (sources == MASK)).all() and (sources[:, 250] == SEPARATOR).all()
        assert near((sources == MASK).sum(), total, 0.2)
        deleting = Denoising(MASK, START, STOP, infill_rate=0, delete_rate=0.2, special_token_ids=[SEPARATOR])
        lengths = [len(deleting.example(row, i)["encoder_token_ids"]) for i, row in enumerate(given)]
        assert near(500 * len(given) - sum(lengths), total, 0.2)

    def test_sentences_change_places_and_rows_are_turned(self):
        row = [20, FULL_STOP, 21, 22, FULL_STOP, 23, 24, 25, FULL_STOP, 26]
        permuting = Denoising(MASK, START, STOP, infill_rate=0, permute_rate=1.0, sentence_end_ids=[FULL_STOP])
        sentences = [(20, FULL_STOP), (21, 22, FULL_STOP), (23, 24, 25, FULL_STOP), (26,)]
        orders = {tuple(itertools.chain(*order)) for order in itertools.permutations(sentences)}
        assert {tuple(permuting.example(row, i)["encoder_token_ids"]) for i in range(400)} == orders
        turning = Denoising(MASK, START, STOP, infill_rate=0, rotate_rate=1.0)
        turned = {tuple(row[i:] + row[:i]) for i in range(len(row))}
        assert {tuple(turning.example(row, i)["encoder_token_ids"]) for i in range(200)} == turned
        with pytest.raises(ValueError, match="sentence_end_ids"):
            Denoising(MASK, START, STOP, permute_rate=1.0)

    def test_the_target_is_the_original(self):
        for number, row in enumerate(rows(10, 30)):
            example = OBJECTIVES["denoising"].example(row, number)
            assert example["labels"] == [*row, STOP] and example["decoder_token_ids"] == [START, *row]


class TestNextSentence:
    documents = [[[100 * d + s] * 3 for s in range(11)] for d in range(1, 9)]

    def test_half_belong_together(self):
        many = [self.documents for _ in range(50)]
        pairs = [pair for epoch, x in enumerate(many) for pair in next_sentence_pairs(x, START, SEPARATOR, epoch=epoch)]
        assert len(pairs) == 50 * 8 * 10
        assert near(sum(pair.is_next for pair in pairs), len(pairs), 0.5)
        for pair in pairs:
            first, second = pair.token_ids[1], pair.token_ids[-2]
            assert pair.segment_ids == [0] * 5 + [1] * 4
            assert (second == first + 1) if pair.is_next else (second // 100 != first // 100)

    def test_too_long_pairs_lose_the_end_of_the_longer_sentence(self):
        documents = [[[5] * 9, [6] * 3], [[7]]]
        (pair,) = next_sentence_pairs(documents, START, SEPARATOR, max_length=10, next_share=1.0)
        assert pair.token_ids == [START, 5, 5, 5, 5, SEPARATOR, 6, 6, 6, SEPARATOR]
        for documents, options, message in (
            ([[[5], [6]]], {}, "two or more"),
            ([[[5]], [[6]]], {"max_length": 4}, "max_length"),
        ):
            with pytest.raises(ValueError, match=message):
                next_sentence_pairs(documents, START, SEPARATOR, **options)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_one_stream_whatever_the_batches(name):
    objective, given = OBJECTIVES[name], rows(7, 12)
    whole = objective(given, length=40)
    cut = [objective(given[i : i + 3], first=i, length=40) for i in range(0, 7, 3)]
    joined = keras.tree.map_structure(lambda *parts: np.concatenate(parts), *cut)
    keras.tree.map_structure(np.testing.assert_array_equal, whole, joined)
    again, other = objective(given), objective(given, first=7)
    for first, second in zip(keras.tree.flatten(objective(given)), keras.tree.flatten(again), strict=True):
        np.testing.assert_array_equal(first, second)
    if name != "causal":
        different = zip(keras.tree.flatten(again), keras.tree.flatten(other), strict=True)
        assert any(a.shape != b.shape or (a != b).any() for a, b in different)
    inputs, labels, weights = whole
    assert all(x.dtype == "int32" for x in (*keras.tree.flatten(inputs), labels)) and weights.dtype == "float32"
    assert set(np.unique(weights)) <= {0.0, 1.0}


def test_loaders_of_others_give_the_same_stream():
    """tf.data, and a loader of PyTorch with workers of its own: a row's number says what is drawn for it."""
    import tensorflow as tf
    import torch

    texts = rows(6, 20)
    objective = MaskedLM(SIZE, MASK, (START, STOP), seed=3)
    expected = objective(texts)
    names = ["token_ids", "labels", "weights"]

    def examples():
        for number, row in enumerate(texts):
            example = objective.example(row, number)
            yield tuple(np.asarray(example[name], "int32") for name in names)

    data = tf.data.Dataset.from_generator(examples, output_signature=(tf.TensorSpec((None,), tf.int32),) * 3)
    (batch,) = data.batch(6).as_numpy_iterator()
    for found, wanted in zip(batch, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)

    def collate(pairs):
        numbers, some = zip(*pairs)
        return objective(some, first=numbers[0])

    loader = torch.utils.data.DataLoader([*enumerate(texts)], batch_size=3, collate_fn=collate)
    for found, wanted in zip(zip(*loader), expected, strict=True):
        np.testing.assert_array_equal(np.concatenate(found), wanted)


def test_prefixes_and_rests_make_the_row():
    cuts = set()
    for number, row in enumerate(rows(200, 6)):
        example = OBJECTIVES["prefix"].example(row, number)
        assert example["encoder_token_ids"] + example["labels"] == [*row, STOP]
        cuts.add(len(example["encoder_token_ids"]))
    assert cuts == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_example_is_longer_than_the_longest(name):
    objective = OBJECTIVES[name]
    for row in [*rows(3, 12), *rows(2, 5), *rows(2, 60), *rows(2, 400)]:
        longest = objective.longest(row)
        lengths = [{key: len(x) for key, x in objective.example(row, i).items()} for i in range(300)]
        assert all(x[key] <= longest[key] for x in lengths for key in longest)
        assert longest.keys() == lengths[0].keys() - {"labels", "weights"}


def test_the_longest_is_reached():
    row = rows(1, 12, specials=False)[0]
    for objective in (OBJECTIVES["prefix"], SpanCorruption(SENTINELS, rate=0.3, mean_length=2.0)):
        lengths = [{key: len(x) for key, x in objective.example(row, i).items()} for i in range(300)]
        assert all(max(x[key] for x in lengths) == size for key, size in objective.longest(row).items())
    # Every run is of length 0 or 1 with a mean of 0.05: without a limit some thousand masks for each token.
    assert len(Denoising(MASK, START, STOP, mean_length=0.001).example(row)["encoder_token_ids"]) < 1e5


def test_batches_to_compare_with_are_the_same_in_every_epoch():
    objective = MaskedLM(SIZE, MASK, (START, STOP))
    for again in (True, False):
        data = Batches(rows(4, 20), objective, batch_size=2, again=again)
        before = [data[i][0] for i in range(len(data))]
        data.on_epoch_end()
        after = [data[i][0] for i in range(len(data))]
        assert any((x != y).any() for x, y in zip(before, after)) == again


class TestBatches:
    def test_every_row_once_in_an_epoch_and_anew_in_the_next(self):
        given = rows(7, 12)
        data = Batches(given, MaskedLM(SIZE, MASK, rate=0.5), batch_size=3)
        first = [data[i] for i in range(len(data))]
        assert len(data) == 3 and all(inputs.shape == (3, 12) for inputs, _, _ in first)
        labels = np.concatenate([labels for _, labels, _ in first])
        assert sorted(labels[:7, :12].tolist()) == sorted(given) and (labels[7:] == PAD).all()
        assert not first[-1][2][1:].any()
        data.on_epoch_end()
        data.on_epoch_end()  # nothing was read: no epoch
        assert data.epoch == 1
        assert (np.concatenate([data[i][1] for i in range(3)]) != labels).any()
        with pytest.raises(IndexError):
            data[3]
        with pytest.raises(ValueError, match="at least one row"):
            Batches([], MaskedLM(SIZE, MASK))

    def test_fit(self):
        ids = keras.Input((None,), dtype="int32", name="token_ids")
        model = keras.Model(ids, keras.layers.Dense(30)(kt.layers.PositionalEmbedding(30, 8)(ids)))
        model.compile("adam", kt.training.MaskedCrossentropy())
        given = np.random.default_rng(0).integers(5, 30, (6, 5)).tolist()
        data = Batches(given, MaskedLM(30, MASK), batch_size=2)
        history = model.fit(data, epochs=2, verbose=0)
        assert np.isfinite(history.history["loss"]).all()
        assert data.epoch == 2  # the first one trained was epoch 0

    @pytest.mark.parametrize("name", OBJECTIVES)
    def test_no_epoch_has_a_longer_example(self, name):
        """One row is much longer, and what is drawn of it has another length in each epoch."""
        data = Batches([*rows(20, 6, specials=False), *rows(1, 300, specials=False)], OBJECTIVES[name], batch_size=7)
        shapes = set()
        for data.epoch in range(12):
            shapes |= {tuple(x.shape for x in keras.tree.flatten(data[i])) for i in range(len(data))}
        assert len(shapes) == 1


def test_a_length_for_one_input_leaves_the_other_at_its_longest():
    objective, rows = kt.objectives.SpanCorruption([20, 21, 22], 1, 2), [[5, 6, 7, 8, 9, 10], [5, 6, 7]]
    longest = kt.objectives.Batches(rows, objective, 1).length
    data = kt.objectives.Batches(rows, objective, 1, length={"encoder_token_ids": 16})
    shapes = {tuple(data[i][0][name].shape for name in sorted(data[i][0])) for i in range(2)}
    assert shapes == {((1, longest["decoder_token_ids"]), (1, 16))}
    with pytest.raises(ValueError, match="`length` may name .'encoder_token_ids', 'decoder_token_ids'.*'encoder'"):
        kt.objectives.Batches(rows, objective, 1, length={"encoder": 16})
