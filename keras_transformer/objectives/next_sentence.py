"""Next-sentence prediction: pairs of sentences, of which half belong together."""

from typing import NamedTuple

import numpy as np

from keras_transformer.arguments import check_count, check_id, check_size
from keras_transformer.objectives.base import check_row, check_share


class SentencePair(NamedTuple):
    """`token_ids` and `segment_ids`, lists of one length, and `is_next`, 1 if the second sentence follows the first."""

    token_ids: list
    segment_ids: list
    is_next: int


def next_sentence_pairs(
    documents, start_token_id, separator_token_id, max_length=None, next_share=0.5, seed=0, epoch=0
):
    """Pairs `start A separator B separator`, of which B follows A, or comes from another document.

    Every sentence but the last of each document is A once. Its segment ids are 0 up to and with the first separator,
    then 1. A pair above `max_length` loses tokens at the end of its longer sentence.

    Source: Devlin et al. 2018, "BERT", section 3.1 (https://arxiv.org/abs/1810.04805).

    Args:
        documents: list of documents, lists of sentences, lists of ids.
        start_token_id, separator_token_id: BERT's `[CLS]` and `[SEP]`.
        max_length: tokens of a pair at most, the three special ones included; None: any.
        next_share: probability with which B follows A.
        seed, epoch: what is drawn depends on these two and the number of the pair alone.

    Returns:
        list of `SentencePair`.

    Raises:
        ValueError: fewer than two documents, where another one is needed, or a `max_length` without room.

    Example:

    >>> pairs = next_sentence_pairs([[[5], [6]], [[7], [8]]], start_token_id=1, separator_token_id=2, next_share=1)
    >>> pairs[0]
    SentencePair(token_ids=[1, 5, 2, 6, 2], segment_ids=[0, 0, 0, 1, 1], is_next=1)
    """
    check_id(start_token_id=start_token_id, separator_token_id=separator_token_id)
    check_count(0, seed=seed, epoch=epoch)
    check_share(next_share=next_share)
    if max_length is not None:
        check_size(max_length=max_length)
        if max_length < 5:
            raise ValueError(f"`max_length` must be 5 or more, for two tokens and three special ones. Got {max_length}")
    documents = [[sentence for sentence in map(check_row, document) if len(sentence)] for document in documents]
    documents = [document for document in documents if document]
    if len(documents) < 2 and next_share < 1:
        raise ValueError(f"`documents` must be two or more, to draw from another. Received: {len(documents)}")
    pairs = []
    for number, document in enumerate(documents):
        for first, following in zip(document, document[1:]):
            random = np.random.default_rng((seed, epoch, len(pairs)))
            is_next = random.random() < next_share
            if not is_next:
                other = documents[(number + int(random.integers(1, len(documents)))) % len(documents)]
                following = other[int(random.integers(len(other)))]
            pairs.append(_pair(first, following, is_next, start_token_id, separator_token_id, max_length))
    return pairs


def _pair(first, second, is_next, start, separator, max_length):
    first, second = first.tolist(), second.tolist()
    while max_length is not None and len(first) + len(second) + 3 > max_length:
        (first if len(first) > len(second) else second).pop()
    token_ids = [start, *first, separator, *second, separator]
    return SentencePair(token_ids, [0] * (len(first) + 2) + [1] * (len(second) + 1), int(is_next))
