"""A subword (or character) tokenizer trained on the user's own text: a thin layer over the `tokenizers` library."""

import itertools
import numbers
import os
from collections import Counter

import numpy as np

from keras_transformer.arguments import check_count, check_size
from keras_transformer.data.padding import check_in_vocabulary
from keras_transformer.files import written_whole

SPECIAL_TOKENS = ("<pad>", "<start>", "<stop>", "<unknown>")
_EXTRA_TOKEN = "<extra_{}>"

# A piece never crosses these borders. A word carries the space before it; digits stand alone, so that numbers never
# seen in training are spelled from known pieces and can be copied digit by digit.
_WORDS = r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"


class Tokenizer:
    """Text to token ids and back, without loss.

    Made by `train_tokenizer` or `Tokenizer.load`. Ids 0 to 3 are padding, start, stop and unknown. Nothing is
    normalised: letter case, white space and Unicode composition stay as they are, so
    `decode(encode([text])) == [text]` (at the level `"character"`: for texts of known characters). Special tokens are
    ids only: a text that contains `<stop>` is encoded like any other text.

    Attributes:
        pad_token_id, start_token_id, stop_token_id, unknown_token_id: 0, 1, 2, 3.
        extra_token_ids: list of int, the ids after these that no text is encoded to, for masks and sentinels.

    Example:

    >>> tokenizer = train_tokenizer(["good morning", "good night"] * 5, vocabulary_size=280)
    >>> token_ids = tokenizer.encode(["good morning", "good"])
    >>> len(token_ids[1]), tokenizer.decode(token_ids)
    (1, ['good morning', 'good'])
    """

    pad_token_id, start_token_id, stop_token_id, unknown_token_id = range(4)

    def __init__(self, backend):
        """Wrap a `tokenizers.Tokenizer` whose first four tokens are `SPECIAL_TOKENS`."""
        found = tuple(backend.id_to_token(token_id) for token_id in range(len(SPECIAL_TOKENS)))
        if found != SPECIAL_TOKENS:
            raise ValueError(f"The first tokens must be {SPECIAL_TOKENS}. Received: {found}")
        backend.no_padding()
        backend.no_truncation()
        backend.encode_special_tokens = True  # "<stop>" typed by a user is text, not the end of it
        self._backend = backend

    @property
    def vocabulary_size(self):
        """int, the number of ids, special tokens included."""
        return self._backend.get_vocab_size()

    @property
    def extra_token_ids(self):
        """List of int, ids that no text is encoded to; as many as `train_tokenizer` was asked for."""
        names = map(_EXTRA_TOKEN.format, range(self.vocabulary_size))
        found = itertools.takewhile(lambda token_id: token_id is not None, map(self._backend.token_to_id, names))
        return list(found)

    def encode(self, texts, add_special_tokens=False):
        """Turn texts into ragged lists of ids, neither padded nor truncated.

        Args:
            texts: list of str; a single str is a list of one.
            add_special_tokens: whether to put `start_token_id` before and `stop_token_id` after each text.

        Returns:
            A list of lists of int, one for each text; the empty text gives the empty list.

        Raises:
            ValueError: if a text is not a str or cannot be written as UTF-8.
        """
        texts = _check_texts([texts] if isinstance(texts, str) else texts)
        token_ids = [encoding.ids for encoding in self._backend.encode_batch(texts, add_special_tokens=False)]
        if add_special_tokens:
            token_ids = [[self.start_token_id, *row, self.stop_token_id] for row in token_ids]
        return token_ids

    def decode(self, token_ids, skip_special_tokens=True):
        """Turn ids back into texts.

        Args:
            token_ids: a batch of ids, ragged lists or an array `(B, T)`; a single sequence is a batch of one.
            skip_special_tokens: whether to leave out padding, start and stop; `<unknown>` and extra tokens always show.

        Returns:
            A list of str, one for each sequence.

        Raises:
            ValueError: if an id is not an integer in `[0, vocabulary_size)`.
        """
        rows = _as_rows(token_ids)
        check_in_vocabulary(rows, self.vocabulary_size)
        skipped = {self.pad_token_id, self.start_token_id, self.stop_token_id} if skip_special_tokens else ()
        rows = [[token_id for token_id in map(int, row) if token_id not in skipped] for row in rows]
        return self._backend.decode_batch(rows, skip_special_tokens=False)

    def pieces(self, token_ids):
        """The text of each id of one sequence by itself, for labels of a picture; specials show as `<stop>`.

        Example:

        >>> tokenizer = train_tokenizer(["good morning"] * 5, vocabulary_size=280)
        >>> tokenizer.pieces(tokenizer.encode("good morning", add_special_tokens=True)[0])
        ['<start>', 'good', 'morning', '<stop>']
        """
        return self.decode([[token_id] for token_id in token_ids], skip_special_tokens=False)

    def save(self, path):
        """Write the tokenizer as a `tokenizer.json`, which other users of the `tokenizers` library read as well.

        The file appears whole or not at all.
        """
        with written_whole(path) as unfinished:
            unfinished.write_text(self._backend.to_str(), encoding="utf-8")

    @classmethod
    def load(cls, path):
        """Read a tokenizer that `save` wrote.

        Raises:
            ValueError: naming the path, if the file is missing, damaged or another kind of tokenizer.
        """
        tokenizers = _import_tokenizers()
        path = os.fspath(path)
        try:
            with open(path, encoding="utf-8") as file:
                return cls(tokenizers.Tokenizer.from_str(file.read()))
        except Exception as error:  # the library raises bare `Exception` for damaged files
            raise ValueError(f"Cannot read a tokenizer from {path!r}: {error}") from error

    def __repr__(self):
        return f"<Tokenizer vocabulary_size={self.vocabulary_size}>"


def train_tokenizer(texts, vocabulary_size=8000, level="subword", min_frequency=2, extra_tokens=0):
    """Train a tokenizer; the same texts always give the same one.

    For translation, give it the texts of both languages: one joint vocabulary lets names and numbers be copied and the
    embeddings be shared.

    Args:
        texts: iterable of str.
        vocabulary_size: int, the largest number of ids, special tokens included; little text gives fewer.
        level: `"subword"`, byte-level byte-pair encoding (Sennrich et al., 2016, https://arxiv.org/abs/1508.07909),
            which knows every text, or `"character"`, a token for each of the most frequent characters, for toy tasks;
            other characters become `<unknown>`.
        min_frequency: int, how often two pieces (or a character) must occur to become one token.
        extra_tokens: int, number of further ids that no text is encoded to, such as the mask of a `MaskedLM` or the
            sentinels of a `SpanCorruption`; see `Tokenizer.extra_token_ids`.

    Returns:
        A `Tokenizer`.

    Raises:
        ValueError: if `vocabulary_size` cannot hold the special tokens and (for subwords) the 256 bytes, or there is
            no text.
        ImportError: if the `tokenizers` library is missing.

    Example:

    >>> tokenizer = train_tokenizer(["zwei", "drei"], level="character", min_frequency=1)
    >>> tokenizer.encode(["drei"]), tokenizer.vocabulary_size
    ([[6, 7, 4, 5]], 10)
    """
    if level not in _TRAINERS:
        raise ValueError(f"`level` must be one of {sorted(_TRAINERS)}. Received: level={level!r}")
    check_count(0, extra_tokens=extra_tokens)
    check_size(min_frequency=min_frequency)
    special = [*SPECIAL_TOKENS, *map(_EXTRA_TOKEN.format, range(extra_tokens))]
    smallest = len(special) + (256 if level == "subword" else 1)
    if not isinstance(vocabulary_size, numbers.Integral) or vocabulary_size < smallest:
        raise ValueError(
            f"`vocabulary_size` must be an int of at least {smallest} at the level {level!r}: {len(special)} tokens "
            "that are no text, and "
            + ('the 256 bytes (level="character" needs none of them). ' if level == "subword" else "one character. ")
            + f"Received: vocabulary_size={vocabulary_size!r}"
        )
    texts = _check_texts([texts] if isinstance(texts, str) else texts)
    if not any(texts):
        raise ValueError("`texts` holds no text to train on.")
    return Tokenizer(_TRAINERS[level](texts, int(vocabulary_size), min_frequency, special))


def _train_subwords(texts, vocabulary_size, min_frequency, special):
    tokenizers = _import_tokenizers()
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    # Every text gets one space in front and loses it when decoded: a word is the same piece at the start and inside.
    backend.normalizer = tokenizers.normalizers.Prepend(" ")
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(_WORDS), "isolated"),
            byte_level(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteLevel(), tokenizers.decoders.Strip(" ", 1, 0)]
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=min_frequency,
        special_tokens=special,
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _train_characters(texts, vocabulary_size, min_frequency, special):
    tokenizers = _import_tokenizers()
    counts = Counter(character for text in texts for character in text)
    frequent = [character for character, count in counts.items() if count >= min_frequency]
    frequent.sort(key=lambda character: (-counts[character], character))
    tokens = [*special, *frequent[: vocabulary_size - len(special)]]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[-1]))
    backend.add_special_tokens(special)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    backend.decoder = tokenizers.decoders.Fuse()
    return backend


_TRAINERS = {"subword": _train_subwords, "character": _train_characters}


def _import_tokenizers():
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            'Tokenizers need the `tokenizers` library: pip install "keras-transformer-kit[text]"'
        ) from error
    return tokenizers


def _check_texts(texts):
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"`texts` must hold strings. Received at {index}: {text!r} of type {type(text).__name__}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"`texts` must be valid Unicode. Received at {index}: {text!r}") from error
    return texts


def _as_rows(token_ids):
    """A batch as a list of rows; one sequence of ids becomes a batch of one."""
    rows = list(token_ids)
    return [rows] if rows and np.ndim(rows[0]) == 0 else rows
