"""One call of `generate` or `stream`: its arguments checked, its prompts read, its loop chosen and run."""

import keras
import numpy as np

from keras_transformer import weights
from keras_transformer.arguments import check_count, check_id, check_size
from keras_transformer.generation import anatomy
from keras_transformer.generation.beam import BeamLoop
from keras_transformer.generation.choice import build, known_of
from keras_transformer.generation.drafters import check_vocabulary
from keras_transformer.generation.loops import Loops, Sizes, check_length
from keras_transformer.generation.new_text import NewText, StopStrings, check_stop_strings
from keras_transformer.generation.options import Options
from keras_transformer.generation.prefix import Prefix, check_prefix
from keras_transformer.generation.prompts import Prompts, as_ids, bare, batches_of, join_rows, targets
from keras_transformer.generation.results import Result, join
from keras_transformer.generation.text_codec import TextCodec
from keras_transformer.layers import read_card
from keras_transformer.ops.cache import CannotCache
from keras_transformer.ops.cache_entries import CACHE_DTYPES


class Job:
    """See `generate` for the arguments; `ids` holds those of the stop, start and pad tokens."""

    def __init__(
        self,
        model,
        inputs,
        max_new_tokens,
        sampler,
        ids,
        padding_mask,
        tokenizer,
        options,
        cache="auto",
        cache_dtype=None,
        prefix=None,
        decoder_inputs=None,
        with_log_probs=False,
        return_prefix=False,
    ):
        if not callable(model):
            raise ValueError(f"`model` must be a Keras model, or a function of token ids. Received: {model!r}")
        options = Options.of(sampler, options)
        if not (isinstance(cache, bool) or cache == "auto"):
            raise ValueError(f'`cache` must be "auto", True or False. Received: cache={cache!r}')
        if cache_dtype not in CACHE_DTYPES:
            raise ValueError(f"`cache_dtype` must be one of {CACHE_DTYPES}. Received: cache_dtype={cache_dtype!r}")
        if cache is False and cache_dtype is not None:
            raise ValueError(f"`cache_dtype` has no meaning with cache=False. Received: cache_dtype={cache_dtype!r}")
        check_count(0, max_new_tokens=max_new_tokens)
        tokenizer = None if tokenizer is None else TextCodec(tokenizer)
        weights.bring_back(model)
        self.model, self.tokenizer, self.sampler = model, tokenizer, options.sampler
        self.prefix, self.cache_dtype = prefix, cache_dtype
        if prefix is not None:
            check_prefix(prefix, model, cache_dtype)
            self.cache_dtype = prefix.cache_dtype
        card = read_card(model)
        for name in ("start", "stop"):  # what the call says, or the model's card, or the tokenizer
            sources = (ids[name], card.get(f"{name}_token_id"), getattr(tokenizer, f"{name}_token_id", None))
            ids[name] = next((token_id for token_id in sources if token_id is not None), None)
        if tokenizer is not None:
            inputs = tokenizer.encode(inputs)
            if prefix is not None and prefix.sources is not None:  # they go on in the middle of a target
                inputs = [bare(row, tokenizer, ids["start"], ids["stop"]) for row in inputs]
        inputs = list(inputs) if hasattr(inputs, "__next__") else inputs
        if prefix is None and not known_of(model).decoders:  # what a model masks may be known once it is built
            some = Prompts(inputs, padding_mask)
            some.check(known_of(model).source or known_of(model).target)
            build(model, some.rows[0])
        self.known = known_of(model)
        stop = as_ids("stop_token_id", ids["stop"], self.known.target.vocabulary_size).tolist()
        pads = (ids["pad"], card.get("pad_token_id"), self.known.target.masked_token_id, 0)
        self.pad_token_id = next(token_id for token_id in pads if token_id is not None)
        check_id(pad_token_id=self.pad_token_id)
        self.stop_strings = check_stop_strings(options.stop_strings, tokenizer)
        target = self._read_inputs(inputs, padding_mask, decoder_inputs, ids["start"], stop)
        # Contrastive search feeds the last token as well, to choose it; so does what reads the whole text.
        feeds_last = max_new_tokens > 0 and (options.sampler == "contrastive" or return_prefix)
        sizes = Sizes(max(map(len, self.rows)), int(max_new_tokens), feeds_last)
        check_length(target, sizes)
        self.assistant = options.assistant_model
        if self.assistant is not None:
            self._check_assistant(sizes)
        self.request = options.request(int(max_new_tokens), stop, target.vocabulary_size, with_log_probs)
        self.loops = Loops(model, self.assistant, self.request, cache, self.cache_dtype, sizes)

    def _check_assistant(self, sizes):
        """Refuse a model that cannot draft for this one."""
        if not isinstance(self.assistant, keras.Model):
            raise ValueError(f"`assistant_model` must be a Keras model. Received: {self.assistant!r}")
        weights.bring_back(self.assistant)
        build(self.assistant, self.rows[0])
        source, target = anatomy.sides(self.assistant)
        if source is not None and self.sources is None:
            raise ValueError("`assistant_model` is an encoder-decoder, but the model has no sources to give to it.")
        check_vocabulary(anatomy.num_logits(self.model), anatomy.num_logits(self.assistant))
        if source is not None:
            Prompts(self.sources).check(source, "`assistant_model`")
        check_length(target, sizes._replace(feeds_last=False), "`assistant_model`")

    def _read_inputs(self, inputs, padding_mask, decoder_inputs, start_token_id, stop_token_ids):
        """Find the rows, from their first token on, and an encoder-decoder's sources; returns the `Side` written."""
        prefix, reads_sources = self.prefix, self.known.source is not None and self.prefix is None
        side = self.known.source if reads_sources else self.known.target
        prompts = Prompts(inputs, padding_mask, side.masked_token_id, may_be_empty=prefix is not None)
        prompts.check(side)
        target, self.sources = self.known.target, None
        if reads_sources:
            self.sources, start = prompts.rows, _start_token_id(start_token_id, target)
            num_rows = len(self.sources)
            prompts = targets(decoder_inputs, num_rows, target, self.tokenizer, start, stop_token_ids)
            prompts.put_behind([np.asarray([start], "int32")] * num_rows)
        elif decoder_inputs is not None:
            raise ValueError(
                "`decoder_inputs` are of encoder-decoders without `prefix`: here texts begin with their `inputs`."
            )
        elif prefix is not None:
            begun = prefix.rows_for(len(prompts.rows))
            prompts.put_behind([prefix.rows[i] for i in begun])
            self.sources = prefix.sources and [prefix.sources[i] for i in begun]
        self.rows, self.given = prompts.rows, prompts.given
        return target

    def run(self, batch_size, verbose=0):
        """The `Result`s of all rows, those of one row next to each other."""
        check_size(batch_size=batch_size)
        try:
            return self._run(self.loops.writer(), batch_size, verbose)
        except CannotCache as error:
            self.loops.give_up_cache(error)
            return self._run(self.loops.writer(), batch_size, verbose)

    def read(self, results=None):
        """A `Prefix` of the texts, or of the results, which begin with them."""
        rows, parents = self.rows, range(len(self.rows))
        if results is not None:
            parents = [i // self.request.repeats for i in range(len(results))]
            rows = [np.concatenate([rows[i], result.tokens]) for i, result in zip(parents, results, strict=True)]
        sources = None if self.sources is None else [self.sources[i] for i in parents]

        def read():
            reader = self.loops.reader()
            return reader.read(rows, sources, self._before(reader, parents))

        try:
            kept = read()
        except CannotCache as error:
            self.loops.give_up_cache(error)
            kept = read()
        return Prefix(self.model, rows, sources, kept, self.cache_dtype)

    def _run(self, loop, batch_size, verbose):
        request, results = self.request, [None] * len(self.rows)
        if request.max_new_tokens == 0:
            return [Result(np.zeros(0, "int32"), np.zeros(0, "float32"), 0.0)] * (len(self.rows) * request.repeats)
        batches = list(batches_of(self._lengths(), batch_size, of_equal_length=not loop.pads_source))
        progress = keras.utils.Progbar(len(batches) * request.max_new_tokens, unit_name="token") if verbose else None
        for number, chosen in enumerate(batches):
            tell = progress and (lambda done, before=number * request.max_new_tokens: progress.update(before + done))
            found = self._run_batch(loop, chosen, tell)
            for place, i in enumerate(chosen):
                results[i] = found[place * request.repeats : (place + 1) * request.repeats]
        return [result for row in results for result in row]

    def _run_batch(self, loop, chosen, tell):
        batch, stop = self._batch(loop, chosen), self.request.stop_token_ids
        stop_strings = self._stop_strings(chosen)
        if isinstance(loop, BeamLoop):
            results = loop.run(*batch)
        else:
            parts, done = [], 0
            for part in loop.stream(*batch, largest_chunk=8 if stop_strings else None):
                parts.append(part)
                done += max(map(len, part["tokens"]))
                if tell:
                    tell(min(done, self.request.max_new_tokens))
                if stop_strings and stop_strings.end_all(join(parts, stop), stop):
                    break
            results = join(parts, stop)
        if tell:
            tell(self.request.max_new_tokens)
        return stop_strings.cut(results) if stop_strings else results

    def stream(self, chunk_size):
        """A generator of the new ids, or texts, of every row in chunks."""
        check_size(chunk_size=chunk_size)
        if self.sampler == "beam":
            raise ValueError("Beam search cannot be streamed: which text is the best is known at its end.")
        return self._pieces(chunk_size) if self.request.max_new_tokens else iter(())

    def _parts(self, chunk_size):
        """What the loop gives; where it turns out that there can be no cache, None and then all of it once more."""
        try:
            yield from self._stream_of(self.loops.writer(), chunk_size)
        except CannotCache as error:
            self.loops.give_up_cache(error)
            yield None
            yield from self._stream_of(self.loops.writer(), chunk_size)

    def _stream_of(self, loop, chunk_size):
        if not loop.pads_source and len(set(self._lengths())) > 1:
            raise ValueError("This model does not mask the padding of sources: stream sources of one length at a time.")
        return loop.stream(*self._batch(loop, range(len(self.rows))), largest_chunk=chunk_size, grows=True)

    def _pieces(self, chunk_size):
        everything = range(len(self.rows))
        stop_strings = self._stop_strings(everything)
        new_text = None if self.tokenizer is None else NewText(self.tokenizer, self._in_front(everything))
        parts, yielded = [], ["" if new_text else []] * (len(self.rows) * self.request.repeats)
        comes_again = False
        for part in self._parts(chunk_size):
            if part is None:
                parts, comes_again = [], True
                continue
            parts.append(part)
            results = join(parts, self.request.stop_token_ids)
            is_over = stop_strings and stop_strings.end_all(results, self.request.stop_token_ids)
            results = stop_strings.cut(results) if stop_strings else results
            # A character whose bytes are not complete decodes to the replacement character and is held back.
            whole = [text.rstrip("\ufffd") for text in new_text.of_all(results)] if new_text else _lists(results)
            if comes_again:
                whole = [max(old, new, key=len) for old, new in zip(yielded, whole, strict=True)]
                comes_again = whole == yielded
            if not comes_again:
                yield [new[len(old) :] for new, old in zip(whole, yielded, strict=True)]
            yielded = whole
            if is_over:
                break
        whole = new_text.of_all(results) if new_text else yielded
        if whole != yielded:
            yield [new[len(old) :] for new, old in zip(whole, yielded, strict=True)]

    def _stop_strings(self, chosen):
        if not self.stop_strings:
            return None
        return StopStrings(self.stop_strings, NewText(self.tokenizer, self._in_front(chosen)))

    def _in_front(self, chosen):
        """What stands in front of the new tokens of each result."""
        return [self._shown(self.rows[i]) for i in chosen for _ in range(self.request.repeats)]

    def _shown(self, row):
        """What a result shows of a row: all but the start token of an encoder-decoder."""
        return row if self.sources is None else row[1:]

    def found(self, results):
        """What `return_dict` gives."""
        new_tokens = [result.tokens for result in results]
        token_ids = join_rows([self._shown(row) for row in self.given], new_tokens, self.pad_token_id)
        found = {"token_ids": token_ids, "lengths": [len(new) for new in new_tokens]}
        if self.sampler == "beam":
            found["scores"] = np.asarray([result.score for result in results], "float32")
        elif results[0].log_probs is not None:
            found["log_probs"] = [result.log_probs for result in results]
        if self.request.draft is not None:
            accepted = [0 if result.drafted is None else result.drafted.sum() for result in results]
            found["num_accepted_tokens"] = np.asarray(accepted, "int32")
        if self.tokenizer is not None:
            prompts = self._in_front(range(len(self.rows)))
            texts = [[*prompt, *new] for prompt, new in zip(prompts, new_tokens, strict=True)]
            found["texts"] = self.tokenizer.decode(texts)
        return found

    def _lengths(self):
        return [len(row) for row in (self.rows if self.sources is None else self.sources)]

    def _batch(self, loop, chosen):
        """Rows, sources and request for some of the rows, which keep their seeds and their index in all of them."""
        sources = None if self.sources is None else [self.sources[i] for i in chosen]
        seeds = [[*self.request.seeds, i] for i in chosen]
        # To know how far a source is covered takes the attention of the whole target.
        before = None if self.request.beams.covers else self._before(loop, chosen)
        request = self.request._replace(seeds=seeds, before=before)
        if function := request.prefix_allowed_tokens_fn:
            request = request._replace(prefix_allowed_tokens_fn=lambda number, tokens: function(chosen[number], tokens))
        return [self.rows[i] for i in chosen], sources, request

    def _before(self, loop, chosen):
        """What was kept of the beginnings of some of the rows, if the loop has a use for it."""
        return self.prefix.before(chosen) if self.prefix is not None and loop.decoder.keeps else None


def _lists(results):
    return [result.tokens.tolist() for result in results]


def _start_token_id(start, target):
    if start is None:
        raise ValueError("An encoder-decoder needs `start_token_id`, the first token of every target.")
    check_id(start_token_id=start)
    return int(as_ids("start_token_id", start, target.vocabulary_size)[0])
