"""The options of `generate`, split into what a compiled loop is made of and what it is told anew at every call."""

import math
import numbers
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.arguments import check_count
from keras_transformer.generation import processors
from keras_transformer.generation.prompts import as_ids, bucket, pad_rows

SAMPLERS = ("greedy", "sample", "beam", "contrastive")
FILTERS = ("temperature", "top_k", "top_p", "min_p", "typical_p")
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
            logits = processor(logits, text)
        return logits


class Request(NamedTuple):
    """What is asked of a loop beside the rows.

    max_new_tokens: int, the most tokens for a row.
    stop_token_ids: list of int.
    rule: the `Rule` that chooses tokens; fixed when compiling.
    parameters: dict of NumPy values that the rule asks for.
    seeds: one for each row, for the noise of samplers.
    repeats: int, results for each row, which share its prefill.
    beams: `(num_beams, early_stopping)` of beam search, fixed when compiling.
    draft: `(number of drafted tokens, largest n-gram to look up)`, fixed when compiling; None without a draft.
    before: `prefix.Before`, what was kept of the beginnings of the rows; None: they are read in whole.
    """

    max_new_tokens: int
    stop_token_ids: list
    rule: Rule
    parameters: dict
    seeds: list
    repeats: int = 1
    beams: tuple = (1, False)
    draft: tuple | None = None
    before: Any = None


@dataclass
class Options:
    """Options of `generate` beside its main arguments; their meaning is told there."""

    sampler: str = "greedy"
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    bad_words_ids: list | None = None
    allowed_token_ids: list | None = None
    min_new_tokens: int | None = None
    logits_processors: tuple = ()
    stop_strings: list | str | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    num_return_sequences: int = 1
    seed: int | None = None
    penalty_alpha: float | None = None
    assistant_model: Any = None
    num_assistant_tokens: int | None = None
    prompt_lookup_num_tokens: int | None = None
    max_matching_ngram_size: int | None = None

    def __post_init__(self):
        self._settle_sampler()
        for name in ("temperature", "repetition_penalty"):
            self._check(name, lambda x: 0 < x < math.inf, "above 0")
        for name in ("top_p", "typical_p"):
            self._check(name, lambda x: 0 < x <= 1, "above 0 and at most 1")
        for name in ("min_p", "penalty_alpha"):
            self._check(name, lambda x: 0 <= x <= 1, "between 0 and 1")
        for name in ("presence_penalty", "frequency_penalty", "length_penalty"):
            self._check(name, math.isfinite, "finite")
        counts = {"top_k": 1, "num_beams": 1, "no_repeat_ngram_size": 0, "min_new_tokens": 0, "seed": 0}
        for name, least in counts.items():
            if getattr(self, name) is not None:
                check_count(least, **{name: getattr(self, name)})
        check_count(1, num_return_sequences=self.num_return_sequences)
        if not (self.early_stopping is None or isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise ValueError(f'`early_stopping` must be True, False or "never". Received: {self.early_stopping!r}')
        self._check_sequences()
        self._check_draft()

    def _check(self, name, holds, expected):
        value = getattr(self, name)
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if value is not None and not (is_number and holds(value)):
            raise ValueError(f"`{name}` must be a number, {expected}. Received: {name}={value!r}")

    def _settle_sampler(self):
        """An option of another sampler asks for it."""
        if self.sampler not in SAMPLERS:
            raise ValueError(f"`sampler` must be one of {SAMPLERS}. Received: sampler={self.sampler!r}")
        filters = [name for name in FILTERS if getattr(self, name) is not None]
        beams = [name for name in ("length_penalty", "early_stopping") if getattr(self, name) is not None]
        beams += ["num_beams"] if (self.num_beams or 1) > 1 else []
        if self.penalty_alpha is not None or self.sampler == "contrastive":
            return self._settle_contrastive(filters, beams)
        if filters and beams:
            raise ValueError(f"{filters[0]!r} is of sampling and {beams[0]!r} of beam search: they do not go together.")
        if self.sampler == "greedy" and (filters or beams):
            self.sampler = "sample" if filters else "beam"
        if (self.sampler == "beam" and filters) or (self.sampler == "sample" and beams):
            raise ValueError(f"`{(filters or beams)[0]}` does not go with sampler={self.sampler!r}.")
        if self.sampler == "beam" and self.num_beams is None:
            self.num_beams = 4

    def _settle_contrastive(self, filters, beams):
        others = [name for name in (*filters, *beams) if name != "top_k"]
        if self.sampler not in ("greedy", "contrastive") or others:
            raise ValueError(
                "`penalty_alpha` asks for contrastive search, which takes `top_k` and none of the options of other "
                f"samplers. Received: {others[0] if others else f'sampler={self.sampler!r}'}"
            )
        if self.penalty_alpha is None or self.top_k is None:
            raise ValueError(
                "Contrastive search needs both `penalty_alpha` and `top_k`, for instance 0.6 and 4. "
                f"Received: penalty_alpha={self.penalty_alpha}, top_k={self.top_k}"
            )
        self.sampler = "contrastive"

    def _check_sequences(self):
        if self.sampler in ("greedy", "contrastive") and self.num_return_sequences > 1:
            raise ValueError(
                f"{self.sampler.capitalize()} decoding has one result for each prompt: give `num_beams`, or options of "
                "sampling. "
                f"Received: num_return_sequences={self.num_return_sequences}"
            )
        if self.sampler == "beam" and self.stop_strings:
            raise ValueError("`stop_strings` do not go with beam search, whose scores are those of whole texts.")
        if self.sampler == "beam" and self.num_return_sequences > self.num_beams:
            raise ValueError(
                "`num_return_sequences` must not be above `num_beams`. "
                f"Received: num_return_sequences={self.num_return_sequences}, num_beams={self.num_beams}"
            )

    def _check_draft(self):
        names = {"num_assistant_tokens": "assistant_model", "max_matching_ngram_size": "prompt_lookup_num_tokens"}
        for name, needed in names.items():
            if getattr(self, name) is not None and getattr(self, needed) is None:
                raise ValueError(f"`{name}` goes with `{needed}`. Received: {name}={getattr(self, name)} without it.")
        for name in (*names, "prompt_lookup_num_tokens"):
            if getattr(self, name) is not None:
                check_count(1, **{name: getattr(self, name)})
        drafts = [name for name in names.values() if getattr(self, name) is not None]
        if len(drafts) > 1:
            raise ValueError("`assistant_model` and `prompt_lookup_num_tokens` both draft tokens: give one of them.")
        if drafts and self.sampler not in ("greedy", "sample"):
            raise ValueError(
                f"`{drafts[0]}` goes with sampler='greedy' and 'sample', in which one text follows from the draft that "
                f"is accepted. Received: sampler={self.sampler!r}"
            )

    @property
    def draft(self):
        """The number of drafted tokens and the largest n-gram to look up, None without a draft."""
        if self.assistant_model is not None:
            return self.num_assistant_tokens or 5, 0
        if self.prompt_lookup_num_tokens is not None:
            return self.prompt_lookup_num_tokens, self.max_matching_ngram_size or 2
        return None

    def rule(self, with_log_probs):
        """The `Rule` of a loop for these options."""
        names = FILTERS if self.sampler == "sample" else ()
        built_in = [name for name in (*PENALTIES, "min_new_tokens") if getattr(self, name)]
        built_in += ["bad_words"] if self.bad_words_ids else []
        built_in += ["allowed_token_ids"] if self.allowed_token_ids is not None else []
        return Rule(
            self.sampler,
            tuple(name for name in names if getattr(self, name) is not None),
            tuple(built_in),
            self.no_repeat_ngram_size or 0,
            tuple(self.logits_processors),
            with_log_probs,
            self.top_k if self.sampler == "contrastive" else 0,
        )

    def parameters(self, vocabulary_size):
        """NumPy values of everything that a compiled loop is told at each call."""
        values = {}
        for name in ("temperature", "top_p", "min_p", "typical_p", "penalty_alpha", *PENALTIES):
            if getattr(self, name) is not None:
                values[name] = np.float32(getattr(self, name))
        for name in ("top_k", "min_new_tokens"):
            if getattr(self, name) is not None:
                values[name] = np.int32(getattr(self, name))
        if self.bad_words_ids:
            words = [as_ids("bad_words_ids", word, vocabulary_size) for word in self.bad_words_ids]
            if not all(map(len, words)):
                raise ValueError("`bad_words_ids` holds an empty sequence, which would ban everything.")
            width = max(map(len, words))
            values["bad_words"] = np.stack([np.pad(w, (width - len(w), 0), constant_values=-1) for w in words])
        if self.allowed_token_ids is not None:
            allowed = np.asarray(self.allowed_token_ids)
            allowed = np.flatnonzero(allowed) if allowed.dtype == bool else allowed
            allowed = as_ids("allowed_token_ids", allowed, vocabulary_size)
            if not len(allowed):
                raise ValueError("`allowed_token_ids` is empty: no token may be written.")
            values["allowed_token_ids"] = pad_rows([allowed], -1, bucket(len(allowed), 16))[0]
        return values

    def request(self, max_new_tokens, stop_token_ids, vocabulary_size, with_log_probs):
        """What a loop is asked for; `seeds` holds that of the call, to which each row adds its own."""
        seed = np.random.SeedSequence().entropy if self.seed is None else self.seed
        parameters = self.parameters(vocabulary_size)
        if self.sampler == "beam":
            parameters["length_penalty"] = np.float32(1.0 if self.length_penalty is None else self.length_penalty)
        return Request(
            max_new_tokens,
            stop_token_ids,
            self.rule(with_log_probs and self.sampler != "beam"),
            parameters,
            seeds=[seed],
            repeats=self.num_return_sequences,
            beams=(self.num_beams or 1, self.early_stopping or False),
            draft=self.draft,
        )

    @classmethod
    def names(cls):
        """All option names."""
        return tuple(field.name for field in fields(cls))
