"""`generate`: texts from any Keras model."""

import warnings

import keras

from keras_transformer.generation import anatomy
from keras_transformer.generation.decoders import CachedDecoder, CachedEncoderDecoder, FullForward
from keras_transformer.generation.loop import Loop
from keras_transformer.generation.probe import reason_against_cache
from keras_transformer.generation.prompts import Prompts, pad_rows
from keras_transformer.layers import read_card
from keras_transformer.ops.cache import CannotCache

SAMPLERS = ("greedy",)


def generate(
    model,
    inputs,
    max_new_tokens,
    sampler="greedy",
    stop_token_id=None,
    start_token_id=None,
    pad_token_id=None,
    padding_mask=None,
    tokenizer=None,
    cache="auto",
    batch_size=64,
    return_dict=False,
):
    """Continue texts, or answer sources, with any causal Keras model.

    Decoder-only models continue their prompts. Encoder-decoders, recognised by their inputs `encoder_token_ids` and
    `decoder_token_ids`, write a target for each source; the encoder runs once if the model's graph has sub-models
    called "encoder" and "decoder".

    Models whose sequence mixing is done by this library's attention layers are decoded token by token through a cache,
    whoever stacked them and also after loading. Other models are decoded by their full forward: right, but slower; it
    is said once, with the reason.

    Args:
        model: a functional, sequential or subclassed Keras model from token ids (B, T) to logits (B, T, V).
        inputs: list of ragged id lists, one id list, or an int array (B, T); with `tokenizer`, a string or a list of
            strings.
        max_new_tokens: the most tokens to add to a row.
        sampler: `"greedy"`: always the most probable token.
        stop_token_id: int or list of ints that end a row when they are generated; in the prompt they mean nothing.
            None: what the model's card says; []: no token ends a row.
        start_token_id: the first decoder token of an encoder-decoder; None: what the model's card says.
        pad_token_id: fills up the result on the right; None: what the model's card says, else 0.
        padding_mask: boolean (B, T), True = real token, for arrays. Without it, the id that the model itself masks is
            padding where it stands at either end of a row.
        tokenizer: object with `encode(list of str) -> list of id lists` and `decode(list of id lists) -> list of str`;
            strings go in and come out.
        cache: True insists on the cache (a `ValueError` says why it cannot be), False forbids it.
        batch_size: rows decoded together; longer lists are sorted by length and cut.
        return_dict: return a dict with `token_ids` and `lengths`, the number of new tokens of each row, its stop
            token included.

    Returns:
        int32 array. Decoder-only: prompt, new tokens, stop token, then padding on the right; arrays keep their own
        padding in place. Encoder-decoders: the target without the start token. With `tokenizer`: list of strings.

    Raises:
        ValueError: ids that the model does not have, an empty prompt, more tokens than learned positions, a model that
            looks both ways, an unknown sampler, a missing start token.

    Example:
    ```python
    generate(model, [[5, 6, 7], [8, 9]], max_new_tokens=20, stop_token_id=2)
    ```
    """
    if sampler not in SAMPLERS:
        raise ValueError(f"`sampler` must be one of {SAMPLERS}. Received: sampler={sampler!r}")
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 0:
        raise ValueError(f"`max_new_tokens` must be an integer of 0 or more. Received: {max_new_tokens!r}")
    card = read_card(model)
    stop = _as_list(card.get("stop_token_id") if stop_token_id is None else stop_token_id)
    if pad_token_id is None:
        pad_token_id = card.get("pad_token_id") or 0
    if tokenizer is not None:
        inputs = tokenizer.encode([inputs] if isinstance(inputs, str) else list(inputs))
    encoder_decoder = anatomy.is_encoder_decoder(model)
    prompts = Prompts(inputs, padding_mask, anatomy.masked_token_id(model))
    prompts.check(anatomy.vocabulary_size(model))
    if encoder_decoder:
        start = card.get("start_token_id") if start_token_id is None else start_token_id
        if start is None:
            raise ValueError("An encoder-decoder needs `start_token_id`, the first token of every target.")
        rows, sources = [[start]] * len(prompts.rows), prompts.rows
    else:
        rows, sources = prompts.rows, None
    _check_length(model, max(len(row) for row in rows), max_new_tokens)

    loops = _loops(model)
    options = rows, sources, batch_size, max_new_tokens, stop, pad_token_id
    try:
        if cache not in loops:
            loops[cache] = _make_loop(model, encoder_decoder, cache)
        new_tokens = _in_batches(loops[cache], *options)
    except CannotCache as error:
        if cache is True:
            raise
        loops[cache] = _full_loop(model, encoder_decoder, str(error))
        new_tokens = _in_batches(loops[cache], *options)
    if tokenizer is not None:
        texts = new_tokens if encoder_decoder else [[*row, *new] for row, new in zip(rows, new_tokens, strict=True)]
        return tokenizer.decode([list(map(int, text)) for text in texts])
    token_ids = pad_rows(new_tokens, pad_token_id) if encoder_decoder else prompts.join(new_tokens, pad_token_id)
    if return_dict:
        return {"token_ids": token_ids, "lengths": [len(new) for new in new_tokens]}
    return token_ids


def _in_batches(loop, rows, sources, batch_size, *options):
    lengths = [len(row) for row in (rows if sources is None else sources)]
    order = sorted(range(len(rows)), key=lambda i: -lengths[i])
    results = [None] * len(rows)
    for begin in range(0, len(rows), batch_size):
        chosen = order[begin : begin + batch_size]
        batch_sources = None if sources is None else [sources[i] for i in chosen]
        for i, new in zip(chosen, loop.run([rows[i] for i in chosen], batch_sources, *options), strict=True):
            results[i] = new
    return results


def _as_list(ids):
    if ids is None:
        return []
    return [int(i) for i in ids] if hasattr(ids, "__len__") else [int(ids)]


def _check_length(model, longest, max_new_tokens):
    limits = {
        "learned positions": anatomy.max_sequence_length(model),
        "places in its fixed-length input": anatomy.fixed_length(model),
    }
    for what, limit in limits.items():
        if limit is not None and longest + max_new_tokens > limit:
            raise ValueError(
                f"The longest prompt has {longest} tokens and `max_new_tokens` is {max_new_tokens}, "
                f"but the model has {limit} {what}."
            )


class _Loops:
    """The compiled loops of a model by `cache`; a class of its own, into which Keras does not look when it saves."""

    def __init__(self, variables):
        self.variables = variables
        self.by_cache = {}


def _loops(model):
    """The model's compiled loops, begun anew when its variables are others (after LoRA, int8)."""
    variables = tuple(id(variable) for variable in getattr(model, "variables", ()))
    kept = getattr(model, "_decoding_loops", None)
    if kept is None or kept.variables != variables:
        kept = _Loops(variables)
        # Past Keras' and torch's attribute tracking: this is no part of the model.
        object.__setattr__(model, "_decoding_loops", kept)
    return kept.by_cache


def _make_loop(model, encoder_decoder, cache):
    if cache is False:
        return _full_loop(model, encoder_decoder)
    cached, reason = _cached_decoder(model, encoder_decoder)
    if reason is None:
        return Loop(cached, model)
    if cache is True:
        raise ValueError(f"The model cannot be decoded through a cache: {reason}.")
    return _full_loop(model, encoder_decoder, reason)


def _full_loop(model, encoder_decoder, reason=None):
    if reason is not None:
        warnings.warn(
            f"generate() runs the model {getattr(model, 'name', model)!r} in full for every token: {reason}. "
            "The result is the same, but slower.",
            stacklevel=4,
        )
    full = FullForward(model, encoder_decoder)
    return Loop(full, model, anatomy.max_sequence_length(model), anatomy.fixed_length(model))


def _cached_decoder(model, encoder_decoder):
    """A decoder with a cache and None, or None and why it cannot be."""
    if not isinstance(model, keras.layers.Layer):
        return None, "it is not a Keras model"
    if anatomy.fixed_length(model) is not None:
        return None, f"its input has the fixed length {anatomy.fixed_length(model)}; declare `keras.Input((None,))`"
    if encoder_decoder and not anatomy.has_sub_models(model):
        return None, 'its graph has no sub-models called "encoder" and "decoder"'
    cached = (CachedEncoderDecoder if encoder_decoder else CachedDecoder)(model)
    foreign = anatomy.foreign_layers(model)
    if not foreign:
        return cached, None
    full = FullForward(model, encoder_decoder)
    ids = anatomy.real_token_ids(model) or [0, 1]
    reason = reason_against_cache(cached, full, ids, encoder_decoder, model.compute_dtype == "float32")
    if reason is None:
        return cached, None
    names = ", ".join(sorted({f"{layer.name} ({type(layer).__name__})" for layer in foreign}))
    return None, f"{reason}; not of this library and maybe mixing positions: {names}"
