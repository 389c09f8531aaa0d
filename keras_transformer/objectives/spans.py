"""Runs of hidden tokens: where they lie, and T5's span corruption."""

import numpy as np

from keras_transformer.arguments import check_id, check_positive_number
from keras_transformer.objectives.base import Objective, check_row, check_share, rounded, teacher_forced


def random_parts(total, count, random, least=1):
    """`count` random whole numbers of at least `least` with this sum, every way being as likely as another."""
    free = total - least * count
    cuts = np.sort(random.choice(free + count - 1, count - 1, replace=False)) if count > 1 else np.zeros(0, int)
    edges = np.concatenate([[-1], cuts, [free + count - 1]])
    return np.diff(edges) - 1 + least


class SpanCorruption(Objective):
    """Runs of tokens are cut out, each leaving one sentinel behind; the decoder writes them, each behind its sentinel.

    The encoder reads `a b <0> e <1>` of `a b c d e f`, and the decoder writes `<0> c d <1> f`, then the stop token.
    A row loses a share of `rate` of its tokens in runs of `mean_length` on average (the number of runs is rounded to
    one or the other neighbour by chance). Runs never touch. Special tokens stay where they are.

    Source: Raffel et al. 2019, "Exploring the Limits of Transfer Learning" (T5), section 3.1.4
    (https://arxiv.org/abs/1910.10683).

    Args:
        sentinel_token_ids: ids of the sentinels in their order; T5's are 32099, 32098, ...
        start_token_id: what the decoder starts with; T5's is 0, the padding.
        stop_token_id: what ends both sides; T5's is 1.
        rate: share of the tokens that are cut out.
        mean_length: of a run, in tokens.
        special_token_ids: ids in the rows that are never cut out.
        pad_token_id, seed: as for `Objective`.

    Raises:
        ValueError: a row would need more sentinels than there are.

    Example: `inputs, labels, weights = SpanCorruption(range(32099, 31999, -1))(rows)`
    """

    labelled = "decoder_token_ids"

    def __init__(
        self,
        sentinel_token_ids,
        start_token_id=0,
        stop_token_id=1,
        rate=0.15,
        mean_length=3.0,
        special_token_ids=(),
        pad_token_id=0,
        seed=0,
    ):
        super().__init__(pad_token_id, seed)
        self.sentinels = [int(token_id) for token_id in sentinel_token_ids]
        if not self.sentinels or len(set(self.sentinels)) < len(self.sentinels):
            raise ValueError("`sentinel_token_ids` must be ids that differ, at least one.")
        check_id(start_token_id=start_token_id, stop_token_id=stop_token_id)
        check_share(rate=rate)
        check_positive_number(mean_length=mean_length)
        self.start_token_id, self.stop_token_id = start_token_id, stop_token_id
        self.rate, self.mean_length = rate, mean_length
        self.never = np.asarray(sorted({*special_token_ids, pad_token_id, *self.sentinels}))

    def example(self, row, number=0):
        ids = check_row(row)
        hidden = self.hidden(ids, self.random(number))
        source, target, last = [], [], 0
        for count, (begin, end) in enumerate(_runs(hidden)):
            if count == len(self.sentinels):
                raise ValueError(f"A row of {len(ids)} tokens needs more than the {count} sentinels that there are.")
            source += [*ids[last:begin].tolist(), self.sentinels[count]]
            target += [self.sentinels[count], *ids[begin:end].tolist()]
            last = end
        source += [*ids[last:].tolist(), self.stop_token_id]
        return teacher_forced(source, [*target, self.stop_token_id], self.start_token_id)

    def longest(self, row):
        """The source is longest with few tokens in many runs, the target with many."""
        is_special = np.isin(check_row(row), self.never)
        hidden = np.count_nonzero(~is_special) * self.rate

        def runs(number):  # a special token that stays in the middle of a run makes two of it
            return min(number, max(1, np.ceil(number / self.mean_length)) + np.count_nonzero(is_special))

        fewest, most = np.floor(hidden), np.ceil(hidden)
        source = len(row) + max(runs(number) - number for number in (fewest, most))
        return {"encoder_token_ids": int(source) + 1, "decoder_token_ids": int(most + runs(most)) + 1}

    def hidden(self, ids, random):
        """Which tokens (T,) are cut out."""
        mask = np.zeros(len(ids), bool)
        places = np.flatnonzero(~np.isin(ids, self.never))
        number = min(rounded(len(places) * self.rate, random), len(places))
        if not number:
            return mask
        runs = max(1, rounded(number / self.mean_length, random))
        runs = min(runs, number, len(places) - number + 1)  # between two runs one token must stay
        lengths = random_parts(number, runs, random)
        # The gaps in front of the first run and behind the last may be empty, those between may not.
        gaps = random_parts(len(places) - number + 2, runs + 1, random) - np.eye(runs + 1, dtype=int)[[0, -1]].sum(0)
        begins = np.cumsum(gaps[:-1]) + np.cumsum(lengths) - lengths
        for begin, length in zip(begins, lengths, strict=True):
            mask[places[begin : begin + length]] = True
        return mask


def _runs(mask):
    """(begin, end) of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int), [0]])))
    return edges.reshape(-1, 2).tolist()
