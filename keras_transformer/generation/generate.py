"""`generate`, `stream` and `prefill`: texts from any Keras model."""

from keras_transformer.generation.job import Job


def generate(
    model,
    inputs,
    max_new_tokens,
    sampler="greedy",
    stop_token_id=None,
    start_token_id=None,
    pad_token_id=None,
    padding_mask=None,
    decoder_inputs=None,
    tokenizer=None,
    cache="auto",
    cache_dtype=None,
    prefix=None,
    batch_size=64,
    return_dict=False,
    return_prefix=False,
    verbose=0,
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
        sampler: `"greedy"`, always the most probable token, `"sample"`, `"beam"` or `"contrastive"`; an option of one
            of these asks for it as well.
        stop_token_id: int or list of ints that end a row when they are generated; in the prompt they mean nothing.
            None: what the model's card (`kt.layers.ModelCard`) or the tokenizer says; []: no token ends a row.
        start_token_id: the first decoder token of an encoder-decoder; None: what the card or the tokenizer says.
        pad_token_id: fills up the result on the right; None: what the model's card says, else the id that the model
            masks, else 0.
        padding_mask: boolean (B, T), True = real token, for arrays. Without it, the id that the model itself masks is
            padding where it stands at either end of a row.
        decoder_inputs: what the targets of an encoder-decoder begin with, behind the start token: ragged id lists, an
            array, or with `tokenizer` strings, one for each source; one id list or string is the same for all.
        tokenizer: of this library, `tokenizers`, `transformers` or keras-hub, or any object with
            `encode(list of str) -> list of id lists` and `decode(list of id lists) -> list of str`; strings go in and
            come out.
        cache: `"auto"`, True insists on the cache (a `ValueError` says why it cannot be), False forbids it.
        cache_dtype: "int8" keeps keys and values in 8 bits with one scale for each token and head: a quarter of
            the memory of float32, or little more, for logits that differ by a few percent of the largest at most. None
            keeps them in the compute dtype.
        prefix: texts that `prefill` has read, which the inputs continue: one for each, or one for all. The result is
            that of the whole texts. Inputs may then be empty; those of an encoder-decoder continue its targets.
        batch_size: rows decoded together, rounded up to a power of two, times `num_beams` or
            `num_return_sequences`; longer lists are sorted by length and cut.
        return_dict: return a dict with `token_ids`, `lengths` (the number of new tokens of each row, its stop token
            included), `log_probs` (for each row an array with the model's log-probability of each new token; not of
            beams), `scores` (of beams), `num_accepted_tokens` (of drafts, for each row) and `texts` (with `tokenizer`).
        return_prefix: a dict, without `log_probs` unless `return_dict` is given too, that also holds `prefix`: the
            whole results as a prefix, for the next turn of a conversation. Their new tokens are read at once.
        verbose: 1 shows a progress bar.
        **options: of the samplers, spelled as in `transformers`. Other values compile nothing; other options than at
            the call before do, and so do other sizes: `num_beams`, `num_beam_groups`, `num_return_sequences`,
            `no_repeat_ngram_size`, the number of `bad_words_ids` and the length of the longest, `num_assistant_tokens`,
            `prompt_lookup_num_tokens`, `max_matching_ngram_size`, `top_k` of contrastive search, a new processor, and
            where the next power of two is another one, the number of stop or allowed tokens and, of beams,
            `max_new_tokens`.

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
        early_stopping: True: stop when there are `num_beams` finished texts; False, the default: when no running one
            can beat them at its present length; "never": when none can at any length.
        num_return_sequences: how many of the best texts.
        num_beam_groups: the beams are searched in so many groups, which choose in turn; their number divides
            `num_beams`. With several, each beam of an earlier group that goes on with a token takes
            diversity_penalty, 0.5 by default, off the log-probability of this token, for good: scores include it
            (Vijayakumar et al. 2016, https://arxiv.org/abs/1610.02424). One group is plain beam search.
        coverage_penalty: for encoder-decoders with a cache. So many times the sum over the source tokens of
            log(min(attention, 1)) is added to a score, and to the score by which running texts are compared; attention
            is what a source token got from all target tokens in the last cross-attention, the mean of its heads (Wu
            et al. 2016, equation 14, https://arxiv.org/abs/1609.08144).

    Options of contrastive search (Su et al. 2022, https://arxiv.org/abs/2202.06417), which takes the candidate of the
    highest (1 - penalty_alpha) * probability - penalty_alpha * largest cosine of its hidden state to those of the text:
        penalty_alpha: between 0 and 1; 0 is greedy decoding. Needs a functional model that ends with `Dense` or a tied
            embedding.
        top_k: how many candidates, the most probable ones.

    Options of drafts, for greedy decoding and sampling, which change the time and not the distribution of the texts
    (Leviathan et al. 2023, https://arxiv.org/abs/2211.17192):
        assistant_model: a model of the same vocabulary that drafts tokens, which the model verifies in one forward; an
            encoder-decoder may have another one or a decoder-only model.
        num_assistant_tokens: how many at a time, 5 by default.
        prompt_lookup_num_tokens: how many tokens to draft at a time without a second model: those that followed where
            the last tokens of the text occur before, in the source or in the text.
        max_matching_ngram_size: the most last tokens to look up, 2 by default.

    Options of all samplers:
        repetition_penalty: logits of ids that occur are divided by it if positive, else multiplied.
        presence_penalty, frequency_penalty: taken off the logits of ids that occur, once or for every time.
        no_repeat_ngram_size: no sequence of so many tokens occurs twice.
        bad_words_ids: list of ids and id lists that must not be written.
        allowed_token_ids: list of ids, or boolean mask (V,), of what may be written at all.
        prefix_allowed_tokens_fn: function of the index of a row in `inputs` and its tokens so far (an int32 array, the
            prompt included, of an encoder-decoder the start token) that returns the list of ids that may come next;
            it is asked after every token, so chunks are of one token.
        min_new_tokens: no stop token before.
        stop_strings: strings that end a row once its new text holds one of them; needs `tokenizer`, not for beams.
        logits_processors: functions of logits (B, V) and a `Text` to logits, see `kt.generation.processors`; all
            beams are rows.

    Returns:
        int32 array. Decoder-only: prompt, new tokens, stop token, then padding on the right; arrays keep their own
        padding in place. Encoder-decoders: the target without the start token, `decoder_inputs` included. With
        `tokenizer`: list of strings.

    Raises:
        ValueError: ids that the model does not have, an empty prompt, more tokens than learned positions, a model that
            looks both ways, at other rows or at the length of what it is given, an unknown sampler, a missing start
            token.

    Example:
    ```python
    generate(model, [[5, 6, 7], [8, 9]], max_new_tokens=20, stop_token_id=2)
    generate(model, [[5, 6, 7]], 20, temperature=0.8, top_p=0.95, seed=1, num_return_sequences=3)
    generate(model, [[5, 6, 7]], 20, temperature=0.8, assistant_model=smaller_model, num_assistant_tokens=4)
    generate(model, [[5, 6, 7]], 20, penalty_alpha=0.6, top_k=4)
    ```
    """
    ids = {"stop": stop_token_id, "start": start_token_id, "pad": pad_token_id}
    through = {"cache": cache, "cache_dtype": cache_dtype, "prefix": prefix, "decoder_inputs": decoder_inputs}
    wanted = {"with_log_probs": return_dict, "return_prefix": return_prefix}
    job = Job(model, inputs, max_new_tokens, sampler, ids, padding_mask, tokenizer, options, **through, **wanted)
    results = job.run(batch_size, verbose)
    found = job.found(results)
    if return_prefix:
        found["prefix"] = job.read(results)
    if return_dict or return_prefix:
        return found
    return found["token_ids"] if tokenizer is None else found["texts"]


def stream(
    model,
    inputs,
    max_new_tokens,
    sampler="greedy",
    stop_token_id=None,
    start_token_id=None,
    pad_token_id=None,
    padding_mask=None,
    decoder_inputs=None,
    tokenizer=None,
    cache="auto",
    cache_dtype=None,
    prefix=None,
    chunk_size=8,
    **options,
):
    """As `generate`, but yields what is new as it comes.

    Args:
        model, inputs, max_new_tokens, sampler, stop_token_id, start_token_id, pad_token_id, padding_mask,
            decoder_inputs, tokenizer, cache, cache_dtype, prefix, **options: as for `generate`, with all rows in one
            batch; beams cannot be streamed, as the best one is known at the end only.
        chunk_size: the most tokens at a time; the first pieces are of 1, 1, 2, 4, ... tokens. With drafts pieces are
            of one round at least, in which rows get different numbers of tokens.

    Yields:
        A list with an entry for each row (and sample): the list of its new token ids, its stop token included, empty
        once the row has ended; with `tokenizer` the new text.

    Example:
    ```python
    for (piece,) in stream(model, "Once upon a time", 200, tokenizer=tokenizer, temperature=0.8):
        print(piece, end="", flush=True)
    ```
    """
    ids = {"stop": stop_token_id, "start": start_token_id, "pad": pad_token_id}
    through = {"cache": cache, "cache_dtype": cache_dtype, "prefix": prefix, "decoder_inputs": decoder_inputs}
    others = sorted({"batch_size", "return_dict", "return_prefix", "verbose"} & set(options))
    if others:
        raise ValueError(f"`{others[0]}` is of `generate`: `stream` yields what is new of all rows at once.")
    job = Job(model, inputs, max_new_tokens, sampler, ids, padding_mask, tokenizer, options, **through)
    return job.stream(chunk_size)


def prefill(
    model,
    inputs,
    start_token_id=None,
    padding_mask=None,
    tokenizer=None,
    cache="auto",
    cache_dtype=None,
    prefix=None,
):
    """Read texts once, to continue them any number of times.

    Args:
        model, inputs, start_token_id, padding_mask, tokenizer, cache, cache_dtype: as for `generate`.
            Encoder-decoders read the sources and the start token.
        prefix: texts read before, which the inputs continue.

    Returns:
        A `Prefix`, for the argument `prefix` of `generate`, `stream` and `prefill`, which do not change it. It serves
        as long as the model's weights stay as they are: the same model with other weights refuses it.

    Raises:
        ValueError: as `generate`.

    Example:
    ```python
    prefix = prefill(model, [[5, 6, 7]])
    generate(model, [[8], [9, 10]], max_new_tokens=20, prefix=prefix)  # [5, 6, 7, 8, ...] and [5, 6, 7, 9, 10, ...]
    ```
    """
    ids = {"stop": [], "start": start_token_id, "pad": None}
    through = {"cache": cache, "cache_dtype": cache_dtype, "prefix": prefix}
    return Job(model, inputs, 0, "greedy", ids, padding_mask, tokenizer, {}, **through).read()
