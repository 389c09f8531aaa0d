"""Masked language modelling."""

import numpy as np

from keras_transformer.arguments import check_id, check_size
from keras_transformer.objectives.base import Objective, check_row, check_share


class MaskedLM(Objective):
    """Some tokens are hidden, and the model says what they were.

    A token is chosen with probability `rate`. Of the chosen ones a share of `mask_share` becomes the mask, one of
    `random_share` a random token, and the rest stays as it is. Labels are the original ids; weights are 1 at the
    chosen places alone. Special tokens are never chosen and never put in place of another.

    Source: Devlin et al. 2018, "BERT", section 3.1 (https://arxiv.org/abs/1810.04805); whole words: the same authors'
    later checkpoints (https://github.com/google-research/bert).

    Args:
        vocabulary_size: number of ids.
        mask_token_id: id of the mask.
        special_token_ids: ids that are never chosen, for instance start, separator and padding. `mask_token_id` and
            `pad_token_id` always are among them.
        rate, mask_share, random_share: probabilities.
        continues_word: boolean array (vocabulary_size,), whether an id goes on with the word before it, for instance
            pieces that begin with `##`: then words are chosen as wholes. None: every token is a word.
        pad_token_id, seed: as for `Objective`.

    Example:

    >>> objective = MaskedLM(vocabulary_size=100, mask_token_id=4, special_token_ids=[1, 2])
    >>> inputs, labels, weights = objective([[1, 50, 51, 52, 53, 2]])
    >>> labels.tolist()
    [[1, 50, 51, 52, 53, 2]]
    """

    def __init__(
        self,
        vocabulary_size,
        mask_token_id,
        special_token_ids=(),
        rate=0.15,
        mask_share=0.8,
        random_share=0.1,
        continues_word=None,
        pad_token_id=0,
        seed=0,
    ):
        super().__init__(pad_token_id, seed)
        check_size(vocabulary_size=vocabulary_size)
        check_id(mask_token_id=mask_token_id)
        check_share(rate=rate, mask_share=mask_share, random_share=random_share)
        if mask_share + random_share > 1:
            raise ValueError(
                "`mask_share` and `random_share` must be at most 1 together. "
                f"Received: mask_share={mask_share}, random_share={random_share}"
            )
        special = sorted({*special_token_ids, mask_token_id, pad_token_id})
        outside = [token_id for token_id in special if token_id not in range(vocabulary_size)]
        if outside:
            raise ValueError(f"Special ids must be below vocabulary_size={vocabulary_size}. Received: {outside}")
        self.is_special = np.zeros(vocabulary_size, bool)
        self.is_special[special] = True
        self.ordinary = np.flatnonzero(~self.is_special)
        self.continues_word = None if continues_word is None else np.asarray(continues_word, bool)
        if self.continues_word is not None and self.continues_word.shape != (vocabulary_size,):
            raise ValueError(
                f"`continues_word` must have shape ({vocabulary_size},). Received: {self.continues_word.shape}"
            )
        self.mask_token_id, self.rate = mask_token_id, rate
        self.mask_share, self.random_share = mask_share, random_share

    def example(self, row, number=0):
        ids, random = check_row(row), self.random(number)
        if ids.size and ids.max() >= len(self.is_special):
            raise ValueError(f"A row holds the id {ids.max()}, but vocabulary_size={len(self.is_special)}.")
        is_special = self.is_special[ids]
        word = np.arange(len(ids))
        if self.continues_word is not None:
            # A piece behind a special token begins a word whatever it looks like.
            begins = ~self.continues_word[ids] | is_special | np.concatenate([[True], is_special])[: len(ids)]
            word = np.cumsum(begins) - 1
        chosen = (random.random(len(ids)) < self.rate)[word] & ~is_special
        fate = random.random(len(ids))
        others = random.choice(self.ordinary, len(ids)) if len(self.ordinary) else ids
        hidden = np.where(fate < self.mask_share, self.mask_token_id, ids)
        hidden = np.where((fate >= self.mask_share) & (fate < self.mask_share + self.random_share), others, hidden)
        hidden = np.where(chosen, hidden, ids)
        return {"token_ids": hidden.tolist(), "labels": ids.tolist(), "weights": chosen.astype(int).tolist()}
