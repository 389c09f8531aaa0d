"""Where the keys and values of an attention layer come from: the call's own tokens, or the cache of a decoding scope.

Letters: B batch, T query length, S key length, K key/value heads, H head dim.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.ops.cache import CannotCache, LooksBothWays
from keras_transformer.ops.masks import NOT_A_TOKEN, attention_mask, index_positions, indices


class KeySource(NamedTuple):
    """Keys and values of one call, not projected yet.

    Attributes:
        layer: name of the attention layer, for errors.
        project: function of the keys' positions (B, S), None for those of the call's own tokens, that returns key and
            value (B, S, K, H).
        length: S, None if unknown.
        mask: boolean (B, S), which of them are real, or None.
        are_queries: whether the keys are those of the very tokens that ask.
        are_encoders: whether they are known to be an encoder's states.
        fixed: call arguments by name that are fixed to the tokens of one call, None where not given.
        sliding_window: how many of the last keys a query sees; None: all.
        relates_positions: whether what is done to queries and keys takes them for places of one sequence.
        reason_against_cache: why its keys cannot be kept while the text grows, or None.
    """

    layer: str
    project: Callable
    length: int | None
    mask: Any
    are_queries: bool
    are_encoders: bool
    fixed: dict
    sliding_window: Any = None
    relates_positions: bool = False
    reason_against_cache: str | None = None


class Keys(NamedTuple):
    """Keys and values (B, S, K, H) with the positions that masks are made of; None: queries and keys from 0 on."""

    key: Any
    value: Any
    query_positions: Any = None  # (B, T)
    key_positions: Any = None  # (B, S)

    def mask(self, query, causal, sliding_window):
        """Which keys the query (B, T, N, H) may see, (B, 1, T, S); None if "causal" says it all."""
        if self.key_positions is None and sliding_window is None:
            return None
        query_positions, key_positions = (
            indices(ops.shape(x)[1]) if positions is None else positions
            for x, positions in ((query, self.query_positions), (self.key, self.key_positions))
        )
        return ops.expand_dims(attention_mask(query_positions, key_positions, causal, sliding_window), 1)

    def places(self, query):
        """Positions of the query and of the keys, (B or 1, T) and (B or 1, S), to take distances between."""
        if self.query_positions is None:  # then positions of keys only tell which of them are padding
            return tuple(indices(ops.shape(x)[1]) for x in (query, self.key))
        return self.query_positions, self.key_positions


def find_keys(source, scope, causal):
    """Project the keys or get them from the open `DecodingScope`, or None, that `scope` is."""
    if scope is None:
        return _without_scope(source)
    if not scope.caches:
        return _with_positions_of(scope, source, causal)
    if causal:
        return _appended_to(scope, source)
    return _frozen_in(scope, source)


def _without_scope(source):
    return Keys(*source.project(None), key_positions=None if source.mask is None else index_positions(source.mask))


def _with_positions_of(scope, source, causal):
    """The scope keeps no cache: an encoder runs, and its rows may be padded."""
    if _has_length_of(scope.positions, source) and not _is_memory(scope, source, causal):
        positions = scope.positions
        if source.mask is not None:
            positions = ops.where(ops.cast(source.mask, "bool"), positions, NOT_A_TOKEN)
        return Keys(*source.project(scope.positions), scope.positions, positions)
    keys = _without_scope(source)
    if keys.key_positions is None and _has_length_of(scope.encoder_positions, source):
        return keys._replace(key_positions=scope.encoder_positions)
    return keys


def _is_memory(scope, source, causal):
    if source.are_encoders:
        return True
    return not (source.are_queries or causal) and _has_length_of(scope.encoder_positions, source)


def _appended_to(scope, source):
    """Causal self-attention: the new keys join those of the text so far."""
    _refuse(source.fixed, "attention_mask", layer=source.layer)
    if source.reason_against_cache is not None:
        raise CannotCache(f"The attention layer {source.layer} {source.reason_against_cache}.")
    if source.fixed["position_bias"] is not None and source.sliding_window is not None:
        # A window's keys lie in a ring, in another order than that of the bias, which follows the whole text.
        raise CannotCache(
            f"The attention layer {source.layer} has a `sliding_window` and was called with a `position_bias`. Through "
            "the cache it needs its own: give it `position_bias` at construction."
        )
    fed = scope.positions.shape[1]
    if source.length not in (None, fed):
        raise CannotCache(
            f"The attention layer {source.layer} was called with `use_causal_mask=True` and {source.length} keys for "
            f"{fed} tokens: what is not the tokens' own keys cannot join them in the cache."
        )
    projected = source.project(scope.positions)
    key, value, positions = scope.write(*projected, source.mask, source.sliding_window)
    _check_bias(source, fed, key.shape[1])
    return Keys(key, value, scope.positions, positions)


def _frozen_in(scope, source):
    """Cross-attention: the keys are projected when the cache starts and stay as they are.

    That the keys are an encoder's states is known from a `DecoderBlock`, or from their number: the states do not
    grow with the text. As many keys as tokens may be either; `encoder_positions` of the scope decide then.
    """
    fed = scope.positions.shape[1]
    if source.are_queries:
        if source.length in (None, fed):
            raise _looks_both_ways(source)
        raise CannotCache(
            f"The attention layer {source.layer} attends from {source.length} positions to themselves, while {fed} "
            "tokens are decoded: it belongs outside of the decoding scope."
        )
    _refuse(source.fixed, *source.fixed, layer=source.layer)
    if source.relates_positions or source.sliding_window is not None:
        relation = "rotary positions or a position bias" if source.relates_positions else "a `sliding_window`"
        raise CannotCache(
            f"The attention layer {source.layer} has {relation} and attends to keys that are "
            "not the tokens' own: how far a token is from these is not known while it is decoded through a cache."
        )

    def project():  # only called where the cache starts
        encoder_positions = scope.encoder_positions
        if not source.are_encoders and encoder_positions is None and source.length == fed:
            raise _looks_both_ways(source)
        if encoder_positions is not None and source.length not in (None, encoder_positions.shape[1]):
            if source.length == fed and not source.are_encoders:
                raise _looks_both_ways(source)
            raise CannotCache(
                f"The attention layer {source.layer} attends to {source.length} keys, but `encoder_positions` are "
                f"those of {encoder_positions.shape[1]}."
            )
        return source.project(None)

    key, value, positions = scope.freeze(project, source.mask)
    if source.length not in (None, key.shape[1]):
        if source.length == fed:
            raise _looks_both_ways(source)
        raise CannotCache(
            f"The attention layer {source.layer} attends to {source.length} keys, but to {key.shape[1]} when the "
            "cache started: keys that change with the text cannot be kept."
        )
    return Keys(key, value, None, positions)


def _has_length_of(positions, source):
    return positions is not None and source.length in (None, positions.shape[1])


def _looks_both_ways(source):
    return LooksBothWays(
        f"The attention layer {source.layer} looks both ways, so earlier tokens change with every new one: "
        "the model cannot write texts. Decode with a causal model (`use_causal_mask=True`). If its keys are an "
        "encoder's states, say so by `DecodingScope(..., encoder_positions=...)`."
    )


def _check_bias(source, num_queries, num_keys):
    """Refuse a bias that was made for other tokens than those that the cache gives back."""
    bias = source.fixed["position_bias"]
    if bias is None:
        return
    of_queries, of_keys = (1, *bias.shape)[-2:]
    if of_keys != num_keys or of_queries not in (1, num_queries):
        raise CannotCache(
            f"The attention layer {source.layer} was called with a `position_bias` of shape {tuple(bias.shape)}, but "
            f"{num_queries} tokens attend to {num_keys} keys through the cache. `RelativePositionBias` and `AlibiBias` "
            "follow it; where layers differ in their `sliding_window`, each needs its own, given at construction."
        )


def _refuse(arguments, *names, layer):
    for name in names:
        if arguments[name] is not None:
            raise CannotCache(
                f"The attention layer {layer} was called with `{name}`, which is fixed to the tokens of one "
                "call; while decoding through a cache the keys are those of the whole text."
            )
