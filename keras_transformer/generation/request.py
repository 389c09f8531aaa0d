"""What a decoding loop is asked for: the rule by which it chooses tokens, and all else beside the rows."""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras_transformer.generation import processors

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


class Rule(NamedTuple):
    """How the next token is chosen: all that is fixed when a loop is compiled.

    sampler: "greedy", "sample", "beam" or "contrastive".
    filters, built_in: names of the filters and processors in use.
    ngram_size: n-grams of this size do not repeat; 0 for no limit.
    custom: the user's processors.
    with_log_probs: whether log-probabilities of the tokens are asked for.
    candidates: how many tokens contrastive search tries.
    """

    sampler: str = "greedy"
    filters: tuple = ()
    built_in: tuple = ()
    ngram_size: int = 0
    custom: tuple = ()
    with_log_probs: bool = False
    candidates: int = 0

    @property
    def counts_tokens(self):
        """Whether a processor asks how often a token occurred."""
        return bool(set(self.built_in) & set(PENALTIES))

    @property
    def reads_text(self):
        """Whether a processor looks at the text so far."""
        return bool(self.built_in or self.ngram_size or self.custom)

    def process(self, logits, text, parameters, stop):
        """Logits (B, V) after all processors: penalties, bans, then the user's own."""
        for name in self.built_in:
            arguments = (parameters[name], stop) if name == "min_new_tokens" else (parameters[name],)
            logits = getattr(processors, name)(logits, text, *arguments)
        if self.ngram_size:
            logits = processors.no_repeat_ngram(logits, text, self.ngram_size)
        for processor in self.custom:
            processed = processor(logits, text)
            if tuple(getattr(processed, "shape", ())) != tuple(logits.shape):
                raise ValueError(
                    f"The logits processor {getattr(processor, '__name__', processor)!r} must return logits of shape "
                    f"{tuple(logits.shape)}. Received: {getattr(processed, 'shape', processed)}"
                )
            logits = processed
        return logits


class Beams(NamedTuple):
    """How beams are searched, fixed when compiling; the numbers are of each prompt.

    covers: whether coverage of the source counts.
    """

    num_beams: int = 1
    num_groups: int = 1
    covers: bool = False


class Request(NamedTuple):
    """What is asked of a loop beside the rows.

    max_new_tokens: int, the most tokens for a row.
    stop_token_ids: list of int.
    rule: the `Rule` that chooses tokens; fixed when compiling.
    parameters: dict of NumPy values that the rule asks for.
    seeds: one for each row, for the noise of samplers.
    repeats: int, results for each row, which share its prefill.
    beams: the `Beams` of beam search.
    draft: `(number of drafted tokens, largest n-gram to look up)`, fixed when compiling; None without a draft.
    prefix_allowed_tokens_fn: function of the number of a row and its tokens, or None.
    before: `prefix.Before`, what was kept of the beginnings of the rows; None: they are read in whole.
    """

    max_new_tokens: int
    stop_token_ids: list
    rule: Rule
    parameters: dict
    seeds: list
    repeats: int = 1
    beams: Beams = Beams()
    draft: tuple | None = None
    prefix_allowed_tokens_fn: Callable | None = None
    before: Any = None
