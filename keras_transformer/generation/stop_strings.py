"""Strings that end a text, and texts that grow piece by piece: what only the tokenizer can tell."""

import numpy as np

from keras_transformer.generation.loop import Result


class StopStrings:
    """Finds where new texts first hold one of some strings.

    Args:
        strings: list of str, or one.
        tokenizer: object with `decode(list of id lists) -> list of str`.
    """

    def __init__(self, strings, tokenizer):
        self.strings = [strings] if isinstance(strings, str) else list(strings)
        if tokenizer is None or not all(isinstance(string, str) and string for string in self.strings):
            raise ValueError("`stop_strings` must be strings that are not empty, and need `tokenizer`.")
        self.decode = tokenizer.decode

    def end_all(self, results, stop_token_ids):
        """Whether every text holds one of the strings or ends with a stop token."""
        texts = self.decode([result.tokens.tolist() for result in results])
        return all(
            self._holds_one(text) or (len(result.tokens) and result.tokens[-1] in stop_token_ids)
            for text, result in zip(texts, results, strict=True)
        )

    def cut(self, results):
        """The results, each up to the token with which its text first holds one of the strings."""
        return [self._cut(result) for result in results]

    def _cut(self, result):
        tokens = result.tokens.tolist()
        if not self._holds_one(self.decode([tokens])[0]):
            return result
        low, high = 1, len(tokens)  # the first prefix that holds one: prefixes of texts hold no more than the text
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._holds_one(self.decode([tokens[:middle]])[0]) else (middle + 1, high)
        log_probs = None if result.log_probs is None else result.log_probs[:low]
        return Result(np.asarray(tokens[:low], "int32"), log_probs, result.score)

    def _holds_one(self, text):
        return any(string in text for string in self.strings)


def new_texts(tokenizer, results, told):
    """What of the texts has not been told yet, and what has then: two lists of str.

    A character whose bytes are not complete is held back: it decodes to the replacement character.
    """
    texts = [text.rstrip("\ufffd") for text in tokenizer.decode([result.tokens.tolist() for result in results])]
    return [text[len(before) :] for text, before in zip(texts, told, strict=True)], texts
