"""What has been written as text: only the tokenizer can tell, and not always from the new tokens alone."""


class NewText:
    """The new text of results, which is what their text has more than their prompt's.

    Args:
        tokenizer: object with `decode(list of id lists) -> list of str`.
        prompts: list of id lists, those in front of each result.
    """

    def __init__(self, tokenizer, prompts):
        self.decode, self.prompts = tokenizer.decode, prompts
        self.begin = [len(text) for text in self.decode(self.prompts)]

    def of_all(self, results):
        """The new texts of all results, a list of str."""
        whole = [[*prompt, *result.tokens] for prompt, result in zip(self.prompts, results, strict=True)]
        return [text[begin:] for text, begin in zip(self.decode(whole), self.begin, strict=True)]

    def of_tokens(self, index, tokens):
        """The text that some tokens make behind one of the prompts."""
        return self.decode([[*self.prompts[index], *tokens]])[0][self.begin[index] :]


class StopStrings:
    """Finds where new texts first hold one of some strings."""

    def __init__(self, strings, new_text):
        self.strings, self.new_text = strings, new_text

    def end_all(self, results, stop_token_ids):
        """Whether every text holds one of the strings or ends with a stop token."""
        return all(
            self._holds_one(text) or (len(result.tokens) and result.tokens[-1] in stop_token_ids)
            for text, result in zip(self.new_text.of_all(results), results, strict=True)
        )

    def cut(self, results):
        """The results, each up to the token with which its text first holds one of the strings."""
        return [self._cut(index, result) for index, result in enumerate(results)]

    def _cut(self, index, result):
        tokens = result.tokens.tolist()

        def holds_one(length):
            return self._holds_one(self.new_text.of_tokens(index, tokens[:length]))

        if not holds_one(len(tokens)):
            return result
        low, high = 0, len(tokens)  # a text holds all that its beginnings hold
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds_one(middle) else (middle, high)
        return result.shortened(high)

    def _holds_one(self, text):
        return any(string in text for string in self.strings)


def check_stop_strings(strings, tokenizer):
    """The strings as a list."""
    strings = [strings] if isinstance(strings, str) else strings or ()
    is_list = isinstance(strings, (list, tuple)) and all(isinstance(string, str) and string for string in strings)
    if not is_list or (strings and tokenizer is None):
        raise ValueError("`stop_strings` must be strings that are not empty, and need `tokenizer`.")
    return list(strings)
