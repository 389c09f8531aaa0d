"""BART's denoising: a text is damaged in one of several ways, and the decoder writes it as it was."""

import numpy as np

from keras_transformer.arguments import check_id, check_positive_number
from keras_transformer.objectives.base import Objective, check_row, check_share, rounded, teacher_forced
from keras_transformer.objectives.spans import random_parts


class Denoising(Objective):
    """The encoder reads a damaged row, the decoder writes the original.

    The kinds of damage are done in this order, each if its rate is above 0: sentences change places, runs of tokens
    become one mask each (of Poisson length; where that is 0, a mask is put between two tokens), single tokens become
    masks, single tokens go, and the row is turned to begin at another token. Special tokens keep their places, and
    what lies between two of them is damaged by itself.

    Source: Lewis et al. 2019, "BART", section 2.2 (https://arxiv.org/abs/1910.13461); its checkpoints were trained
    with `infill_rate=0.3` and `permute_rate=1`.

    Args:
        mask_token_id: id of the mask.
        start_token_id: what the decoder starts with.
        stop_token_id: what ends the target.
        infill_rate: share of the tokens that lie in masked runs.
        mean_length: of such a run before it is cut to the share, in tokens.
        mask_rate, delete_rate: probabilities with which a token becomes a mask, or goes.
        permute_rate, rotate_rate: probabilities with which a row's sentences change places, or the row is turned.
        sentence_end_ids: ids that end a sentence; needed for `permute_rate`.
        special_token_ids: ids in the rows that stay as they are.
        pad_token_id, seed: as for `Objective`.

    Example: `inputs, labels, weights = Denoising(50264, start_token_id=2, stop_token_id=2, pad_token_id=1)(rows)`
    """

    labelled = "decoder_token_ids"

    def __init__(
        self,
        mask_token_id,
        start_token_id,
        stop_token_id,
        infill_rate=0.3,
        mean_length=3.0,
        mask_rate=0.0,
        delete_rate=0.0,
        permute_rate=0.0,
        rotate_rate=0.0,
        sentence_end_ids=(),
        special_token_ids=(),
        pad_token_id=0,
        seed=0,
    ):
        super().__init__(pad_token_id, seed)
        check_id(mask_token_id=mask_token_id, start_token_id=start_token_id, stop_token_id=stop_token_id)
        rates = {"infill_rate": infill_rate, "mask_rate": mask_rate, "delete_rate": delete_rate}
        check_share(**rates, permute_rate=permute_rate, rotate_rate=rotate_rate)
        check_positive_number(mean_length=mean_length)
        if permute_rate and not len(sentence_end_ids):
            raise ValueError("`permute_rate` needs `sentence_end_ids`, the ids that end a sentence.")
        self.mask_token_id = mask_token_id
        self.start_token_id, self.stop_token_id = start_token_id, stop_token_id
        self.infill_rate, self.mean_length = infill_rate, mean_length
        self.mask_rate, self.delete_rate = mask_rate, delete_rate
        self.permute_rate, self.rotate_rate = permute_rate, rotate_rate
        self.sentence_end_ids = np.asarray(sentence_end_ids, "int64")
        self.never = np.asarray(sorted({*special_token_ids, pad_token_id}))

    def example(self, row, number=0):
        ids, random = check_row(row), self.random(number)
        source, last = [], 0
        for place in [*np.flatnonzero(np.isin(ids, self.never)).tolist(), len(ids)]:
            source += [*self._damaged(ids[last:place], random).tolist(), *ids[place : place + 1].tolist()]
            last = place + 1
        return teacher_forced(source, [*ids.tolist(), self.stop_token_id], self.start_token_id)

    def longest(self, row):
        """The source has more tokens than the row at most by the masks between two tokens, one range at a time."""
        ids, inserted, last = check_row(row), 0, 0
        for place in [*np.flatnonzero(np.isin(ids, self.never)).tolist(), len(ids)]:
            inserted += self._most_inserted(int(np.ceil((place - last) * self.infill_rate)))
            last = place + 1
        return {"encoder_token_ids": len(ids) + inserted, "decoder_token_ids": len(ids) + 1}

    def _most_inserted(self, number):
        """How many masks are put between two tokens at most, where so many tokens are hidden.

        Without a limit there might be any number of them. This one is out of reach by chance: over six standard
        deviations above the mean.
        """
        if not number:
            return 0
        mean = number / self.mean_length * np.exp(-self.mean_length)
        return int(np.ceil(4 + mean + 6 * mean**0.5))

    def _damaged(self, ids, random):
        if len(ids) and random.random() < self.permute_rate:
            ends = np.flatnonzero(np.isin(ids[:-1], self.sentence_end_ids)) + 1
            sentences = np.split(ids, ends)
            ids = np.concatenate([sentences[i] for i in random.permutation(len(sentences))])
        if self.infill_rate:
            ids = self._infilled(ids, random)
        if self.mask_rate:
            ids = np.where(random.random(len(ids)) < self.mask_rate, self.mask_token_id, ids)
        if self.delete_rate:
            ids = ids[random.random(len(ids)) >= self.delete_rate]
        if len(ids) and random.random() < self.rotate_rate:
            ids = np.roll(ids, -random.integers(len(ids)))
        return ids

    def _infilled(self, ids, random):
        number = min(rounded(len(ids) * self.infill_rate, random), len(ids))
        lengths, left, inserted = [], number, self._most_inserted(number)
        while left:
            length = min(int(random.poisson(self.mean_length)), left)
            inserted -= length == 0
            lengths.append(length if inserted >= 0 else max(length, 1))
            left -= lengths[-1]
        # So many masks, with all other tokens in their order around them: every arrangement is as likely as another.
        kept = len(ids) - number
        gaps = random_parts(kept, len(lengths) + 1, random, least=0)
        pieces, begin = [], 0
        for gap, length in zip(gaps, [*lengths, None], strict=True):
            pieces.append(ids[begin : begin + gap])
            begin += gap
            if length is not None:
                pieces.append([self.mask_token_id])
                begin += length
        return np.concatenate(pieces).astype("int64")
