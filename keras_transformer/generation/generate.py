"""`generate`: texts from any Keras model."""

import itertools
import numbers
import warnings

import numpy as np

from keras_transformer.arguments import check_count, check_id
from keras_transformer.generation import anatomy
from keras_transformer.generation.beam import BeamLoop
from keras_transformer.generation.choice import build, choose_decoder, full_decoder
from keras_transformer.generation.loop import Loop, Result
from keras_transformer.generation.options import Options
from keras_transformer.generation.prompts import Prompts, pad_rows
from keras_transformer.layers import read_card
from keras_transformer.ops.cache import CannotCache


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
    **options,
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
        sampler: `"greedy"`, always the most probable token, `"sample"` or `"beam"`; an option of one of these two asks
            for it as well.
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
        return_dict: return a dict with `token_ids`, `lengths` (the number of new tokens of each row, its stop token
            included), `log_probs` (for each row an array with the model's log-probability of each new token; not of
            beams), `scores` (of beams) and `texts` (with `tokenizer`).
        **options: of the samplers, spelled as in `transformers`. Numbers may change from call to call without
            compiling anything; which options are used may not.

    Options of sampling, applied in this order:
        temperature: above 0; the logits are divided by it.
        top_k: only the so many most probable tokens.
        top_p: only the most probable tokens, as long as the mass before a token is below this.
        min_p: only tokens of at least this share of the probability of the most probable one.
        typical_p: only the tokens whose surprise is nearest to the expected one, up to this mass.
        seed: int; the same seed draws the same texts, whatever the batches. None: others at every call.
        num_return_sequences: results for each row, which share its prefill and lie next to each other.

    Options of beam search:
        num_beams: 4 by default.
        length_penalty: the score is the sum of log-probabilities over the length to the power of this; 1 by default.
        early_stopping: True: stop when there are `num_beams` finished texts; False: when no running one can beat them
            at its present length; "never": when none can at any length.
        num_return_sequences: how many of the best texts.

    Options of all samplers:
        repetition_penalty: logits of ids that occur are divided by it if positive, else multiplied.
        presence_penalty, frequency_penalty: taken off the logits of ids that occur, once or for every time.
        no_repeat_ngram_size: no sequence of so many tokens occurs twice.
        bad_words_ids: list of ids and id lists that must not be written.
        allowed_token_ids: list of ids, or boolean mask (V,), of what may be written at all.
        min_new_tokens: no stop token before.
        logits_processors: functions of logits (B, V) and a `Text` to logits, see `kt.generation.processors`.

    Returns:
        int32 array. Decoder-only: prompt, new tokens, stop token, then padding on the right; arrays keep their own
        padding in place. Encoder-decoders: the target without the start token. With `tokenizer`: list of strings.

    Raises:
        ValueError: ids that the model does not have, an empty prompt, more tokens than learned positions, a model that
            looks both ways, an unknown sampler, a missing start token.

    Example:
    ```python
    generate(model, [[5, 6, 7], [8, 9]], max_new_tokens=20, stop_token_id=2)
    generate(model, [[5, 6, 7]], 20, temperature=0.8, top_p=0.95, seed=1, num_return_sequences=3)
    ```
    """
    options = _options(sampler, options)
    _check_arguments(max_new_tokens, cache, batch_size)
    card, known = read_card(model), _known(model)
    stop = _token_ids("stop_token_id", card.get("stop_token_id") if stop_token_id is None else stop_token_id)
    pad_token_id = card.get("pad_token_id") or 0 if pad_token_id is None else pad_token_id
    check_id(pad_token_id=pad_token_id)
    if tokenizer is not None:
        inputs = tokenizer.encode([inputs] if isinstance(inputs, str) else list(inputs))
    prompts = Prompts(inputs, padding_mask, (known.source or known.target).masked_token_id)
    prompts.check(known.source or known.target)
    if build(model, prompts.rows[0]):
        known = _known(model)
    rows, sources = prompts.rows, None
    if known.source is not None:
        start = _start_token_id(card.get("start_token_id") if start_token_id is None else start_token_id, known.target)
        rows, sources = [[start]] * len(prompts.rows), prompts.rows
    _check_length(known.target, anatomy.fixed_length(model), max(len(row) for row in rows), max_new_tokens)

    request = options.request(int(max_new_tokens), stop, pad_token_id, known.target.vocabulary_size, return_dict)
    batches = rows, sources, batch_size, request
    try:
        if cache not in known.decoders:
            _keep(known, cache, model, *choose_decoder(model, known.source, known.target, cache))
        results = _in_batches(known.loop(model, cache, request), *batches)
    except CannotCache as error:
        if cache is True:
            raise
        _keep(known, cache, model, full_decoder(model, known.source, known.target), str(error))
        results = _in_batches(known.loop(model, cache, request), *batches)
    found = _found(results, prompts if known.source is None else None, pad_token_id, options)
    if tokenizer is not None:
        prompt_of = rows if known.source is None else [()] * len(rows)
        texts = [[*prompt_of[i // request.repeats], *result.tokens] for i, result in enumerate(results)]
        found["texts"] = tokenizer.decode([list(map(int, text)) for text in texts])
    if return_dict:
        return found
    return found["token_ids"] if tokenizer is None else found["texts"]


def _options(sampler, options):
    unknown = set(options) - set(Options.names())
    if unknown:
        raise ValueError(f"`generate` has no option {sorted(unknown)[0]!r}. There are: {', '.join(Options.names())}")
    return Options(sampler, **options)


def _found(results, prompts, pad_token_id, options):
    """What `return_dict` gives; `prompts` are put in front where there are such."""
    new_tokens = [result.tokens for result in results]
    if prompts is None:
        token_ids = pad_rows(new_tokens, pad_token_id)
    else:
        token_ids = prompts.join(new_tokens, pad_token_id)
    found = {"token_ids": token_ids, "lengths": [len(new) for new in new_tokens]}
    if options.sampler == "beam":
        found["scores"] = np.asarray([result.score for result in results], "float32")
    elif results[0].log_probs is not None:
        found["log_probs"] = [result.log_probs for result in results]
    return found


def _check_arguments(max_new_tokens, cache, batch_size):
    if cache not in ("auto", True, False):
        raise ValueError(f'`cache` must be "auto", True or False. Received: cache={cache!r}')
    check_count(0, max_new_tokens=max_new_tokens)
    check_count(1, batch_size=batch_size)


def _start_token_id(start, target):
    if start is None:
        raise ValueError("An encoder-decoder needs `start_token_id`, the first token of every target.")
    limit = target.vocabulary_size
    if not isinstance(start, numbers.Integral) or start < 0 or (limit is not None and start >= limit):
        raise ValueError(f"`start_token_id` must be a token id below {limit}. Received: start_token_id={start!r}")
    return int(start)


def _in_batches(loop, rows, sources, batch_size, request):
    """The results of all rows, those of one row next to each other."""
    if request.max_new_tokens == 0:
        return [Result(np.zeros(0, "int32"), np.zeros(0, "float32"), 0.0)] * (len(rows) * request.repeats)
    lengths = [len(row) for row in (rows if sources is None else sources)]
    results = [None] * len(rows)
    for chosen in _batches(lengths, batch_size, of_equal_length=not loop.decoder.pads_source):
        batch_sources = None if sources is None else [sources[i] for i in chosen]
        seeds = [[*request.seeds, i] for i in chosen]
        found = loop.run([rows[i] for i in chosen], batch_sources, request._replace(seeds=seeds))
        for place, i in enumerate(chosen):
            results[i] = found[place * request.repeats : (place + 1) * request.repeats]
    return [result for row in results for result in row]


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
    """What was found out about a model, its decoders by the argument `cache`, and its compiled loops.

    A class of its own, into which Keras does not look when it saves the model.
    """

    def __init__(self, model, variables):
        self.variables = variables
        self.source, self.target = anatomy.sides(model)
        self.decoders, self.loops = {}, {}

    def loop(self, model, cache, request):
        """The loop that serves the request."""
        kind = BeamLoop if request.rule.sampler == "beam" else Loop
        decoder = self.decoders[cache]
        if (decoder, kind) not in self.loops:
            loop = kind(decoder, model, self.source, self.target, anatomy.fixed_length(model))
            self.loops[decoder, kind] = loop
        return self.loops[decoder, kind]


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


def _keep(known, cache, model, decoder, reason):
    known.decoders[cache] = decoder
    if reason is not None:
        warnings.warn(
            f"generate() runs the model {getattr(model, 'name', model)!r} in full for every token: {reason}. "
            "The result is the same, but slower.",
            stacklevel=3,
        )
