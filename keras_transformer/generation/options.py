"""The options of `generate`, checked, and made into what a loop is asked for."""

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from keras_transformer.arguments import check_count
from keras_transformer.generation import constraints
from keras_transformer.generation.prompts import as_ids, bucket, pad_rows
from keras_transformer.generation.request import PENALTIES, Beams, Request, Rule

SAMPLERS = ("greedy", "sample", "beam", "contrastive")
FILTERS = ("temperature", "top_k", "top_p", "min_p", "typical_p")
TINY = float(np.finfo("float32").tiny)  # below it float32 is 0 where it is fast
OF_BEAMS = ("length_penalty", "early_stopping", "diversity_penalty", "coverage_penalty")


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
    prefix_allowed_tokens_fn: Callable | None = None
    min_new_tokens: int | None = None
    logits_processors: tuple = ()
    stop_strings: list | str | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    num_beam_groups: int | None = None
    diversity_penalty: float | None = None
    coverage_penalty: float | None = None
    num_return_sequences: int = 1
    seed: int | None = None
    penalty_alpha: float | None = None
    assistant_model: Any = None
    num_assistant_tokens: int | None = None
    prompt_lookup_num_tokens: int | None = None
    max_matching_ngram_size: int | None = None

    def __post_init__(self):
        self.logits_processors = _functions(self.logits_processors)
        if not isinstance(self.bad_words_ids, (list, tuple, type(None))):
            raise ValueError(f"`bad_words_ids` must be a list of id lists. Received: {self.bad_words_ids!r}")
        self._settle_sampler()
        for name in ("temperature", "repetition_penalty"):
            self._check(name, lambda x: TINY <= x < math.inf, "above 0")
        for name in ("top_p", "typical_p"):
            self._check(name, lambda x: TINY <= x <= 1, "above 0 and at most 1")
        for name in ("min_p", "penalty_alpha"):
            self._check(name, lambda x: 0 <= x <= 1, "between 0 and 1")
        for name in ("presence_penalty", "frequency_penalty", "length_penalty"):
            self._check(name, math.isfinite, "finite")
        for name in ("diversity_penalty", "coverage_penalty"):
            self._check(name, lambda x: 0 <= x < math.inf, "0 or more")
        counts = {"top_k": 1, "no_repeat_ngram_size": 0, "min_new_tokens": 0, "seed": 0}
        for name, least in counts.items():
            if getattr(self, name) is not None:
                check_count(least, **{name: getattr(self, name)})
        check_count(1, num_return_sequences=self.num_return_sequences)
        if not (self.early_stopping is None or isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise ValueError(f'`early_stopping` must be True, False or "never". Received: {self.early_stopping!r}')
        if not (self.prefix_allowed_tokens_fn is None or callable(self.prefix_allowed_tokens_fn)):
            raise ValueError(
                "`prefix_allowed_tokens_fn` must be a function of a row's index and its tokens. "
                f"Received: {self.prefix_allowed_tokens_fn!r}"
            )
        self._check_sequences()
        self._check_groups()
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
        for name in ("num_beams", "num_beam_groups"):
            if getattr(self, name) is not None:
                check_count(1, **{name: getattr(self, name)})
        beams = [name for name in OF_BEAMS if getattr(self, name) is not None]
        beams += [name for name in ("num_beams", "num_beam_groups") if (getattr(self, name) or 1) > 1]
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

    def _check_groups(self):
        groups = self.num_beam_groups or 1
        if groups > 1 and self.num_beams % groups:
            raise ValueError(
                "`num_beams` must be a multiple of `num_beam_groups`. "
                f"Received: num_beams={self.num_beams}, num_beam_groups={groups}"
            )
        if groups == 1 and self.diversity_penalty:
            raise ValueError(
                "`diversity_penalty` keeps groups of beams apart: it needs `num_beam_groups` above 1. "
                f"Received: diversity_penalty={self.diversity_penalty}, num_beam_groups={self.num_beam_groups}"
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
        if drafts and self.prefix_allowed_tokens_fn is not None:
            raise ValueError(
                f"`prefix_allowed_tokens_fn` is asked after every token, so it does not go with `{drafts[0]}`, which "
                "drafts several at a time; a function among `logits_processors` does."
            )
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
        built_in += [constraints.NAME] if self.prefix_allowed_tokens_fn is not None else []
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
            defaults = {"length_penalty": 1.0, "diversity_penalty": 0.5, "coverage_penalty": 0.0}
            for name, default in defaults.items():
                value = getattr(self, name)
                parameters[name] = np.float32(default if value is None else value)
            parameters["stops_early"] = np.bool_(self.early_stopping is True)
            parameters["stops_when_sure"] = np.bool_(self.early_stopping == "never")
        return Request(
            max_new_tokens,
            stop_token_ids,
            self.rule(with_log_probs and self.sampler != "beam"),
            parameters,
            seeds=[seed],
            repeats=self.num_return_sequences,
            beams=Beams(
                self.num_beams or 1,
                self.num_beam_groups or 1,
                covers=self.coverage_penalty is not None,
            ),
            draft=self.draft,
            prefix_allowed_tokens_fn=self.prefix_allowed_tokens_fn,
        )

    @classmethod
    def of(cls, sampler, options):
        """The options by name; one that there is not is refused."""
        unknown = set(options) - set(cls.names())
        if unknown:
            raise ValueError(f"`generate` has no option {sorted(unknown)[0]!r}. There are: {', '.join(cls.names())}")
        return cls(sampler, **options)

    @classmethod
    def names(cls):
        """All option names."""
        return tuple(field.name for field in fields(cls))


def _functions(processors):
    """The processors as a tuple, of one function or none as well."""
    found = (processors,) if callable(processors) else processors or ()
    if not isinstance(found, (list, tuple)) or not all(map(callable, found)):
        raise ValueError(f"`logits_processors` must be functions of logits and text. Received: {processors!r}")
    for function in found:
        try:
            hash(function)
        except TypeError as error:
            raise ValueError(
                f"A logits processor is known again by its hash, which {function!r} lacks: a dataclass needs "
                "`eq=False`, or `frozen=True`."
            ) from error
    return tuple(found)
