"""Next-token prediction, for decoders and, behind a prefix, for encoder-decoders."""

from keras_transformer.arguments import check_id
from keras_transformer.objectives.base import Objective, check_row, teacher_forced


class CausalLM(Objective):
    """Each token predicts the next one.

    Source: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training"
    (https://openai.com/research/language-unsupervised).

    Args:
        start_token_id, stop_token_id: put around every row; None: nothing is.
        pad_token_id, seed: as for `Objective`.

    Example:

    >>> inputs, labels, weights = CausalLM(stop_token_id=2)([[5, 6, 7], [8]])
    >>> inputs.tolist(), labels.tolist(), weights.tolist()
    ([[5, 6, 7], [8, 0, 0]], [[6, 7, 2], [2, 0, 0]], [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    """

    def __init__(self, start_token_id=None, stop_token_id=None, pad_token_id=0, seed=0):
        super().__init__(pad_token_id, seed)
        given = {"start_token_id": start_token_id, "stop_token_id": stop_token_id}
        check_id(**{name: value for name, value in given.items() if value is not None})
        self.front = [] if start_token_id is None else [start_token_id]
        self.end = [] if stop_token_id is None else [stop_token_id]

    def example(self, row, number=0):
        ids = [*self.front, *check_row(row).tolist(), *self.end]
        if len(ids) < 2:
            raise ValueError(f"A row must have two tokens at least, start and stop included. Received: {ids}")
        return {"token_ids": ids[:-1], "labels": ids[1:], "weights": [1] * (len(ids) - 1)}


class PrefixLM(Objective):
    """An encoder reads the beginning of a text, which ends at a random place, and a decoder writes the rest.

    Source: Raffel et al. 2019, "Exploring the Limits of Transfer Learning" (T5), section 3.2.1
    (https://arxiv.org/abs/1910.10683).

    Args:
        start_token_id: what the decoder starts with.
        stop_token_id: what ends the rest.
        pad_token_id, seed: as for `Objective`.

    Example: `inputs, labels, weights = PrefixLM(start_token_id=0, stop_token_id=1)(rows)`
    """

    labelled = "decoder_token_ids"

    def __init__(self, start_token_id, stop_token_id, pad_token_id=0, seed=0):
        super().__init__(pad_token_id, seed)
        check_id(start_token_id=start_token_id, stop_token_id=stop_token_id)
        self.start_token_id, self.stop_token_id = start_token_id, stop_token_id

    def example(self, row, number=0):
        ids = self._to_be_cut(row)
        cut = int(self.random(number).integers(1, len(ids)))
        return teacher_forced(ids[:cut], [*ids[cut:], self.stop_token_id], self.start_token_id)

    def longest(self, row):
        """A row is cut behind its first token, before its last one, or between."""
        length = len(self._to_be_cut(row))
        return {"encoder_token_ids": length - 1, "decoder_token_ids": length}

    @staticmethod
    def _to_be_cut(row):
        ids = check_row(row).tolist()
        if len(ids) < 2:
            raise ValueError(f"A row must have two tokens at least, to be cut. Received: {ids}")
        return ids
