"""`generate`: texts from any Keras model."""

import itertools
import numbers
import warnings

import numpy as np

from keras_transformer.arguments import check_id
from keras_transformer.generation import anatomy
from keras_transformer.generation.choice import build, choose_loop, full_loop
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
    seed=None,
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
        cache: `"auto"`, True insists on the cache (a `ValueError` says why it cannot be), False forbids it.
        batch_size: rows decoded together; longer lists are sorted by length and cut.
        return_dict: return a dict with `token_ids` and `lengths`, the number of new tokens of each row, its stop
            token included; with `tokenizer` also `texts`.
        seed: of samplers that draw; `"greedy"` draws nothing.

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
    _check_arguments(sampler, max_new_tokens, cache, batch_size)
    card, known = read_card(model), _known(model)
    stop = _token_ids("stop_token_id", card.get("stop_token_id") if stop_token_id is None else stop_token_id)
    pad_token_id = card.get("pad_token_id") or 0 if pad_token_id is None else pad_token_id
    check_id(pad_token_id=pad_token_id)
    if tokenizer is not None:
        inputs = tokenizer.encode([inputs] if isinstance(inputs, str) else list(inputs))
    prompts = Prompts(inputs, padding_mask, (known.source or known.target).masked_token_id)
    prompts.check(known.source or known.target)
    build(model, prompts.rows[0])
    rows, sources = prompts.rows, None
    if known.source is not None:
        start = _start_token_id(card.get("start_token_id") if start_token_id is None else start_token_id, known.target)
        rows, sources = [[start]] * len(prompts.rows), prompts.rows
    _check_length(known.target, anatomy.fixed_length(model), max(len(row) for row in rows), max_new_tokens)

    options = rows, sources, batch_size, int(max_new_tokens), stop
    try:
        if cache not in known.loops:
            _keep(known, cache, model, *choose_loop(model, known.source, known.target, cache))
        new_tokens = _in_batches(known.loops[cache], *options)
    except CannotCache as error:
        if cache is True:
            raise
        _keep(known, cache, model, full_loop(model, known.source, known.target), str(error))
        new_tokens = _in_batches(known.loops[cache], *options)
    if known.source is None:
        token_ids = prompts.join(new_tokens, pad_token_id)
    else:
        token_ids = pad_rows(new_tokens, pad_token_id)
    result = {"token_ids": token_ids, "lengths": [len(new) for new in new_tokens]}
    if tokenizer is not None:
        texts = new_tokens if known.source else [[*row, *new] for row, new in zip(rows, new_tokens, strict=True)]
        result["texts"] = tokenizer.decode([list(map(int, text)) for text in texts])
    if return_dict:
        return result
    return token_ids if tokenizer is None else result["texts"]


def _check_arguments(sampler, max_new_tokens, cache, batch_size):
    if sampler not in SAMPLERS:
        raise ValueError(f"`sampler` must be one of {SAMPLERS}. Received: sampler={sampler!r}")
    if cache not in ("auto", True, False):
        raise ValueError(f'`cache` must be "auto", True or False. Received: cache={cache!r}')
    for name, value, least in (("max_new_tokens", max_new_tokens, 0), ("batch_size", batch_size, 1)):
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
            raise ValueError(f"`{name}` must be an integer of {least} or more. Received: {name}={value!r}")


def _start_token_id(start, target):
    if start is None:
        raise ValueError("An encoder-decoder needs `start_token_id`, the first token of every target.")
    limit = target.vocabulary_size
    if not isinstance(start, numbers.Integral) or start < 0 or (limit is not None and start >= limit):
        raise ValueError(f"`start_token_id` must be a token id below {limit}. Received: start_token_id={start!r}")
    return int(start)


def _in_batches(loop, rows, sources, batch_size, *options):
    lengths = [len(row) for row in (rows if sources is None else sources)]
    results = [None] * len(rows)
    for chosen in _batches(lengths, batch_size, of_equal_length=not loop.decoder.pads_source):
        batch_sources = None if sources is None else [sources[i] for i in chosen]
        for i, new in zip(chosen, loop.run([rows[i] for i in chosen], batch_sources, *options), strict=True):
            results[i] = new
    return results


def _batches(lengths, batch_size, of_equal_length):
    """Indices of rows of like length, the longest first."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    groups = [list(same) for _, same in itertools.groupby(order, lengths.__getitem__)] if of_equal_length else [order]
    for group in groups:
        for begin in range(0, len(group), batch_size):
            yield group[begin : begin + batch_size]


def _token_ids(name, ids):
    """One id or several as a list of ints."""
    ids = np.atleast_1d(np.asarray([] if ids is None else ids))
    if ids.ndim > 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise ValueError(f"`{name}` must be an integer token id, or several. Received: {name}={ids.tolist()}")
    return ids.tolist()


def _check_length(target, fixed_length, longest, max_new_tokens):
    fed = longest + max(max_new_tokens - 1, 0)  # nothing follows the last token
    limits = {"learned positions": target.max_sequence_length, "places in its fixed-length input": fixed_length}
    for what, limit in limits.items():
        if limit is not None and fed > limit:
            raise ValueError(
                f"The longest prompt has {longest} tokens and `max_new_tokens` is {max_new_tokens}, "
                f"but the model has {limit} {what}."
            )


class _Known:
    """What was found out about a model, and its compiled loops by the argument `cache`.

    A class of its own, into which Keras does not look when it saves the model.
    """

    def __init__(self, model, variables):
        self.variables = variables
        self.source, self.target = anatomy.sides(model)
        self.loops = {}


def _known(model):
    """What is kept about the model, begun anew when its variables are others (after LoRA, int8)."""
    variables = tuple(getattr(model, "variables", ()))
    known = getattr(model, "_decoding", None)
    same = known is not None and len(known.variables) == len(variables)
    if not same or any(a is not b for a, b in zip(known.variables, variables, strict=True)):
        known = _Known(model, variables)
        # Past Keras' and torch's attribute tracking: this is no part of the model.
        object.__setattr__(model, "_decoding", known)
    return known


def _keep(known, cache, model, loop, reason):
    known.loops[cache] = loop
    if reason is not None:
        warnings.warn(
            f"generate() runs the model {getattr(model, 'name', model)!r} in full for every token: {reason}. "
            "The result is the same, but slower.",
            stacklevel=3,
        )
