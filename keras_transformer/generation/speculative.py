"""Speculative decoding: several tokens are drafted cheaply and verified by the model in one forward.

The texts have exactly the distribution that they have without a draft. With p what the model gives a token and q the
probability with which the draft drew it, a drafted token stays with probability min(1, p / q); the first that does not
is replaced by one drawn from max(0, p - q), normalised; behind a draft that stays as a whole there is one more, drawn
from p. Both p and q are what processors and filters leave.

Letters: B batch, V vocabulary, N drafted tokens per round.

Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding"
(https://arxiv.org/abs/2211.17192).
"""

import numpy as np
from keras import ops

from keras_transformer.generation.broken import note_broken, note_processed, refuse_broken
from keras_transformer.generation.loop import Loop, Noise, is_stop
from keras_transformer.generation.processors import Text, write_runs
from keras_transformer.generation.prompts import bucket
from keras_transformer.generation.sampling import draw, most_probable, normalised
from keras_transformer.ops.masks import NOT_A_TOKEN
from keras_transformer.ops.rows import at


class SpeculativeLoop(Loop):
    """Writes as `Loop` does, in rounds: N tokens are drafted, verified together, and each row keeps what it accepts.

    Rejected tokens keep their slot of the cache as long as another row needs it, but lose their position.

    Args:
        drafter: a `ModelDrafter` or `LookupDrafter`.
        decoder, source, target: as for `Loop`.
        model: the model, or a tuple of it and the drafter's.
    """

    def __init__(self, drafter, decoder, model, source, target):
        super().__init__(decoder, model, source, target)
        self.drafter = drafter

    @property
    def pads_source(self):
        return self.decoder.pads_source and self.drafter.pads_source

    def stream(self, rows, source_rows, request, largest_chunk=None, grows=False):
        """As `Loop.stream`, but the rows differ in how many tokens are new: dicts of lists of arrays.

        A chunk is of whole rounds, so a round may exceed `largest_chunk`.
        """
        batch_size, (num_drafts, _) = bucket(len(rows), 1), request.draft
        batch, length = self._batch(rows, source_rows, batch_size, request.before)
        prompts, draft_length = self.drafter.prompts(rows, source_rows, batch_size)
        told = self._told(request, max_new_tokens=np.int32(request.max_new_tokens))
        noise, draws = Noise(request, batch_size), 2 * num_drafts + 1  # drafts, their acceptance, one more token
        done = ops.convert_to_tensor(np.arange(batch_size) >= len(rows))
        static, num_results = {"rule": request.rule}, len(rows) * request.repeats
        drafting = {**static, "draft": request.draft}
        options = {"length": length, "repeats": request.repeats, "spare": num_drafts}  # all drafts may be rejected
        loop, written = self._start(batch, done, told, noise.draw(1, 1), **options, **static)
        draft = self._repeated(self.drafter.start(prompts, draft_length, num_drafts), request.repeats)
        loop, written, count = self._with_draft(loop, written, draft, told)
        used = self._used(loop)
        chunk = 1 if grows else largest_chunk

        def is_full(used, length, room):
            return used + num_drafts + 1 > length < room(2 * length)

        while True:
            refuse_broken(loop)
            yield _as_rows(written, count, num_results)
            if ops.convert_to_numpy(loop["done"]).all():
                return
            used, draft_used = (int(ops.convert_to_numpy(x)) for x in used)
            while is_full(used, length, self._room) or is_full(draft_used, draft_length, self.drafter.room):
                # Both at once, so that fewer pairs of sizes are compiled.
                length, draft_length = self._room(2 * length), self.drafter.room(2 * draft_length)
                loop = self._extend(loop, length)
                loop["draft"] = self.drafter.extend(loop["draft"], draft_length)
            # As many rounds as surely fit; the full forward at the end of its room leaves out what does not.
            rounds = max(1, min(length - used, draft_length - draft_used) // (num_drafts + 1))
            if chunk is not None:
                rounds = min(rounds, max(1, chunk // (num_drafts + 1)))
                chunk = min(2 * chunk, largest_chunk)
            numbers = noise.draw(rounds * draws, max(1, length // (num_drafts + 1)) * draws)
            limit = ops.convert_to_tensor(np.int32(rounds))
            loop, written, count, used = self._chunk(loop, told, limit, numbers, size=length, **drafting)

    def _with_draft(self, loop, written, draft, told):
        """What a loop holds of drafts, and tells of them, after its first token."""
        count = ops.ones_like(loop["token"])
        done = ops.logical_or(loop["done"], told["max_new_tokens"] <= 1)
        draft = self.drafter.accept(draft, None, written["tokens"], count)
        written = {**written, "drafted": ops.zeros_like(written["tokens"], "bool")}
        return {**loop, "draft": draft, "num_new": count, "done": done}, written, count

    def _chunk_function(self, loop, told, limit, noise, size, rule, draft):
        (num_drafts, _), batch_size = draft, loop["token"].shape[0]
        draws = 2 * num_drafts + 1
        written = self._nothing_written(batch_size, size, rule)
        written["drafted"] = ops.zeros((batch_size, size), "bool")

        def proceed(number, loop, written, count):
            return ops.logical_and(number < limit, ops.logical_not(ops.all(loop["done"])))

        def body(number, loop, written, count):
            now = ops.slice(noise, (0, number * draws), (batch_size, draws)) if rule.sampler == "sample" else None
            loop, new, how_many = self._round(loop, told, now, rule, draft)
            written = {name: write_runs(x, new[name], count, how_many) for name, x in written.items()}
            return number + 1, loop, written, count + how_many

        start = ops.zeros((), "int32"), loop, written, ops.zeros((batch_size,), "int32")
        _, loop, written, count = self._while_loop(proceed, body, start)
        return loop, written, count, self._used(loop)

    def _used(self, loop):
        return self.decoder.slots_used(loop["state"]), self.drafter.slots_used(loop["draft"])

    def _round(self, loop, told, noise, rule, draft):
        """The loop after one round, what is told of the tokens (B, N + 1), and how many of them count (B,)."""
        num_drafts, _ = draft
        room = ops.where(loop["done"], 0, told["max_new_tokens"] - loop["num_new"])
        drafts, shares, draft_state = self.drafter.propose(loop, room, told, noise, rule, draft)
        fed = ops.concatenate([ops.expand_dims(loop["token"], -1), ops.maximum(drafts, 0)], axis=1)
        positions = self._positions(loop["position"], fed)
        logits, state = self.decoder.feed(loop["state"], fed, ops.where(_is_fed(drafts, room), positions, NOT_A_TOKEN))

        self.drafter.check_vocabulary(logits.shape[-1])
        logits = ops.cast(logits, "float32")
        allowed = self._allowed(loop, logits, drafts, told, rule)
        if rule.sampler == "sample":
            flat = ops.reshape(allowed, (-1, allowed.shape[-1]))
            probabilities = ops.reshape(normalised(flat, rule.filters, told), allowed.shape)
            tokens, num_accepted = verify(drafts, shares, probabilities, noise[:, num_drafts:])
        else:
            tokens = most_probable(allowed)
            num_accepted = _leading(ops.equal(drafts, tokens[:, :-1]))

        steps = ops.arange(num_drafts + 1, dtype="int32")
        ends = is_stop(tokens, told["stop"])
        new = {"tokens": tokens, "drafted": steps < ops.expand_dims(num_accepted, -1)}
        if rule.reads_text:
            new["banned"] = ops.logical_not(ops.any(allowed > float("-inf"), axis=-1))
            ends = ops.logical_or(ends, new["banned"])
        if rule.with_log_probs:
            log_probs = ops.log_softmax(logits, axis=-1)
            new["log_probs"] = _of_tokens(log_probs, tokens)

        how_many = ops.minimum(num_accepted + 1, room)
        ends = ops.logical_and(ends, steps < ops.expand_dims(how_many, -1))
        has_ended = ops.any(ends, axis=-1)
        how_many = ops.where(has_ended, ops.cast(ops.argmax(ends, axis=-1), "int32") + 1, how_many)
        is_written = steps < ops.expand_dims(how_many, -1)
        loop = note_processed(note_broken(loop, logits, is_written), allowed, is_written, rule)
        num_new = loop["num_new"] + how_many
        done = ops.logical_or(loop["done"], ops.logical_or(has_ended, num_new >= told["max_new_tokens"]))

        kept = ops.where(done, 0, how_many)  # rows that are done hold nobody back
        if "text" in loop:
            loop = {**loop, "text": Text(**loop["text"]).extend(tokens, kept).tensors()}
        last = ops.maximum(kept - 1, 0)
        loop = {**loop, "done": done, "num_new": num_new}
        loop |= {"token": at(tokens, last), "position": at(positions, last) + 1}
        loop["state"] = self.decoder.take_back(state, num_drafts + 1, kept)
        loop["draft"] = self.drafter.accept(draft_state, fed, tokens, kept)
        return loop, new, how_many

    @staticmethod
    def _allowed(loop, logits, drafts, told, rule):
        """Logits (B, N + 1, V) after the processors, which see the text as it is at each token."""
        if not rule.reads_text:
            return logits
        flat = ops.reshape(logits, (-1, logits.shape[-1]))
        text = Text(**loop["text"]).ahead(drafts)
        return ops.reshape(rule.process(flat, text, told, told["stop"]), logits.shape)


def verify(drafts, shares, probabilities, noise):
    """Tokens of which the first so many are accepted drafts, and one more behind them.

    Args:
        drafts: int32 (B, N), -1 where none was made; then none is behind it.
        shares: (B, N, V), the distribution that each was drawn from; None: each was certain.
        probabilities: (B, N + 1, V), the distribution that the tokens are to have, given the drafts before them; zeros
            where every token is banned.
        noise: uniform (B, N + 1), for the acceptance of each draft and the one more token.

    Returns:
        tokens int32 (B, N + 1), those behind the first one that was not drafted mean nothing, and the number of
        accepted drafts (B,).
    """
    shares = ops.one_hot(drafts, probabilities.shape[-1]) if shares is None else shares
    shares = ops.pad(shares, [(0, 0), (0, 1), (0, 0)])
    drafts = ops.pad(drafts, [(0, 0), (0, 1)], constant_values=-1)
    wanted, drawn = (_of_tokens(x, ops.maximum(drafts, 0)) for x in (probabilities, shares))
    # The column of noise behind the drafts is that of the token to draw: there is nothing to accept there.
    # A share of 0 is that of a draft whose logits are no numbers.
    is_drawn = ops.logical_and(drafts >= 0, drawn > 0)
    num_accepted = _leading(ops.logical_and(noise * drawn < wanted, is_drawn))
    wanted, drawn = (at(x, num_accepted) for x in (probabilities, shares))  # (B, V)
    left = ops.maximum(wanted - drawn, 0.0)
    # Where both are the same, nothing is rejected but by rounding.
    left = ops.where(ops.any(left > 0, axis=-1, keepdims=True), left, wanted)
    is_accepted = ops.arange(drafts.shape[1], dtype="int32") < ops.expand_dims(num_accepted, -1)
    return ops.where(is_accepted, drafts, ops.expand_dims(draw(left, noise[:, -1]), -1)), num_accepted


def _of_tokens(values, tokens):
    """Of values (B, N, V) those of tokens (B, N): (B, N)."""
    flat = ops.reshape(values, (-1, values.shape[-1]))
    return ops.reshape(at(flat, ops.reshape(tokens, (-1,))), tokens.shape)


def _leading(flags):
    """How many flags (B, N) are True before the first that is not: int32 (B,)."""
    return ops.sum(ops.cumprod(ops.cast(flags, "int32"), axis=1), axis=1)


def _is_fed(drafts, room):
    """Whether the last token and the drafts behind it (B, N + 1) are of use: no more than a row may still write."""
    is_fed = ops.pad(drafts >= 0, [(0, 0), (1, 0)], constant_values=True)
    return ops.logical_and(is_fed, ops.arange(is_fed.shape[1], dtype="int32") < ops.expand_dims(room, -1))


def _as_rows(written, count, num_results):
    count = ops.convert_to_numpy(count)[:num_results]
    arrays = {name: ops.convert_to_numpy(x) for name, x in written.items()}
    return {name: [row[:n] for row, n in zip(x, count, strict=False)] for name, x in arrays.items()}
