"""Which loop, with which decoder, serves a request; both are kept with the model for the next one."""

import warnings
from typing import NamedTuple

from keras_transformer.generation import anatomy
from keras_transformer.generation.beam import BeamLoop
from keras_transformer.generation.choice import choose_decoder, full_decoder, known_of
from keras_transformer.generation.contrastive import ContrastiveLoop
from keras_transformer.generation.drafters import DraftCannotCache, LookupDrafter, ModelDrafter, cannot_draft
from keras_transformer.generation.loop import Loop
from keras_transformer.generation.prefix import Reader
from keras_transformer.generation.speculative import SpeculativeLoop
from keras_transformer.ops.cache import LooksBothWays

KINDS = {"greedy": Loop, "sample": Loop, "beam": BeamLoop, "contrastive": ContrastiveLoop}


class Sizes(NamedTuple):
    """How much a model has to take.

    Attributes:
        longest: int, tokens of the longest row.
        max_new_tokens: int, as for `generate`.
        feeds_last: whether the last token is fed to the model as well.
    """

    longest: int
    max_new_tokens: int
    feeds_last: bool = False

    @property
    def fed(self):
        """Tokens that the model is fed at most: nothing follows the last one."""
        return self.longest + max(self.max_new_tokens - 1, 0) + self.feeds_last


class Loops:
    """Finds the loops of one call.

    Args:
        model: the model that writes.
        assistant: the model that drafts for it, or None.
        request: the `Request`.
        cache, cache_dtype: as for `generate`.
        sizes: `Sizes` of the rows.
    """

    def __init__(self, model, assistant, request, cache, cache_dtype, sizes):
        self.model, self.assistant, self.request = model, assistant, request
        self.cache, self.cache_dtype, self.sizes = cache, cache_dtype, sizes
        self.known = known_of(model)

    def writer(self):
        """The loop that writes what the request asks for."""
        decoder, draft = self._decoder(self.model), None
        if self.request.draft is None:
            return self._kept(KINDS[self.request.rule.sampler], decoder)
        if self.assistant is not None:
            try:
                draft = self._decoder(self.assistant)
            except LooksBothWays as error:
                raise cannot_draft(error) from error
        return self.known.loop((decoder, SpeculativeLoop, draft), lambda: self._speculative(decoder, draft))

    def reader(self):
        """The loop that only reads."""
        return self._kept(Reader, self._decoder(self.model))

    def give_up_cache(self, error):
        """Decode without a cache from now on, because of an error that said that there can be none."""
        is_of_draft = isinstance(error, DraftCannotCache)
        if self.cache is True and not is_of_draft:
            raise error
        self._decoder(self.assistant if is_of_draft else self.model, error)

    def _kept(self, kind, decoder):
        known = self.known
        return known.loop((decoder, kind), lambda: kind(decoder, self.model, known.source, known.target))

    def _speculative(self, decoder, draft):
        source, target = self.known.source, self.known.target
        if draft is None:
            reads_source = source is not None and source.vocabulary_size == target.vocabulary_size
            return SpeculativeLoop(LookupDrafter(reads_source), decoder, self.model, source, target)
        drafter = ModelDrafter(draft, self.assistant, *anatomy.sides(self.assistant))
        return SpeculativeLoop(drafter, decoder, (self.model, self.assistant), source, target)

    def _decoder(self, model, error=None):
        """The decoder of a model, chosen at its first use; after an error of its cache the full forward."""
        known, reason = known_of(model), None
        key = ("auto" if self.cache is True and model is not self.model else self.cache), self.cache_dtype
        if error is not None:
            known.decoders[key], reason = full_decoder(model, known.source, known.target), str(error)
        elif key not in known.decoders:
            known.decoders[key], reason = choose_decoder(model, known.source, known.target, *key)
        if reason is not None:
            warnings.warn(
                f"generate() runs the model {getattr(model, 'name', model)!r} in full for every token: {reason}. The "
                "result is the same, but slower.",
                stacklevel=5,
            )
        limit = known.decoders[key].longest(self.sizes.fed)
        whose = "the model" if model is self.model else "`assistant_model`"
        _check_limit(limit, "positions, as trying it shows", self.sizes, whose)
        return known.decoders[key]


def check_length(target, sizes, model="the model"):
    """Refuse more tokens than the model has places for."""
    _check_limit(target.max_sequence_length, "learned positions", sizes, model)
    _check_limit(target.fixed_length, "places in its fixed-length input", sizes, model)


def _check_limit(limit, what, sizes, model):
    if limit is not None and sizes.fed > limit:
        also = ", of which the last one is fed to it as well" if sizes.feeds_last else ""
        raise ValueError(
            f"The longest prompt has {sizes.longest} tokens and `max_new_tokens` is {sizes.max_new_tokens}{also}, "
            f"but {model} has {limit} {what}."
        )
