"""How a model is stepped: through a cache, with its encoder run once, or by the full forward.

Each decoder offers the same pure functions of tensors, compiled once per shape:

    start(batch, length=...)          -> logits (B, V) after the prompt, and a state
    prefill(batch, length=...)        -> the same with the logits of every token
    step(state, token, position)      -> logits (B, V) after one more token, and the new state
    feed(state, tokens, positions)    -> logits (B, T, V) after each of several, and the new state
    take_back(state, fed, kept)       -> the state after only the first `kept` (B,) of the `fed` tokens fed last

`keeps` says whether the state spares reading a text again that goes on, `pads_source` whether sources of different
lengths may share a batch, `longest(length)` how many tokens, up to that many, the model takes.

Letters: B batch, T prompt length, S source length, V vocabulary.
"""

import keras
from keras import ops

from keras_transformer.generation.processors import write_runs
from keras_transformer.models import decoder_from_ids, encoder_from_ids
from keras_transformer.ops.cache import DecodingScope, extend_cache
from keras_transformer.ops.cache_entries import is_frozen
from keras_transformer.ops.masks import NOT_A_TOKEN
from keras_transformer.ops.rows import at


class CachedDecoder:
    """A decoder-only model, one token per step through the cache, which is stored in `cache_dtype`."""

    keeps = pads_source = True

    def __init__(self, model, cache_dtype=None):
        self.model, self.cache_dtype = model, cache_dtype

    def start(self, batch, length, spare=0):
        """Run the prompts: `token_ids` and `positions` (B, T), `last` (B,), the index of each last token.

        With `before`, they continue texts that were run already: of `state` and `logits` as these were left, each row
        takes the one in `rows` (B,). Then a row may have nothing to add; its `last` is -1.

        So many tokens as `spare` may be taken back at once.
        """
        if "before" in batch:
            return self._continue(batch["before"], batch, length, spare)
        logits, state = self.prefill(batch, length, spare)
        return at(logits, batch["last"]), state

    def _continue(self, before, batch, length, spare):
        logits, state = take_rows((before["logits"], before["state"]), before["rows"])
        state = {**state, "cache": extend_cache(state["cache"], length, spare)}
        if not batch["token_ids"].shape[1]:
            return logits, state
        taken = state["cache"]["index"]
        new_logits, state = self.feed(state, batch["token_ids"], batch["positions"])
        adds = ops.expand_dims(batch["last"] >= 0, -1)
        logits = ops.where(adds, at(new_logits, ops.maximum(batch["last"], 0)), logits)
        return logits, _without_padding(state, taken, batch["last"])

    def prefill(self, batch, length, spare=0):
        """As `start` without `before`, but the logits are those of all tokens, (B, T, V)."""
        positions = batch["positions"], length, batch.get("source_positions")
        scope = DecodingScope(None, *positions, dtype=self.cache_dtype, spare=spare)
        logits, state = self._run(scope, batch["token_ids"], self._encode(batch))
        return logits, _without_padding(state, 0, batch["last"])

    def step(self, state, token, position):
        """Feed one token (B,) at its position (B,)."""
        logits, state = self.feed(state, ops.expand_dims(token, -1), ops.expand_dims(position, -1))
        return logits[:, -1], state

    def feed(self, state, tokens, positions):
        """Feed tokens (B, T) at positions (B, T); one at -1 is not there."""
        return self._run(DecodingScope(state["cache"], positions), tokens, state)

    @staticmethod
    def take_back(state, fed, kept):
        """Hide the slots of tokens that a row does not keep; those that no row keeps are written anew."""
        cache = state["cache"]
        begin = cache["index"] - fed
        is_behind = ops.arange(cache["positions"].shape[1], dtype="int32") >= begin + ops.expand_dims(kept, -1)
        positions = ops.where(is_behind, NOT_A_TOKEN, cache["positions"])
        return {**state, "cache": {**cache, "positions": positions, "index": begin + ops.max(kept)}}

    @staticmethod
    def slots_used(state):
        """Slots in use, a scalar tensor."""
        return state["cache"]["index"]

    def _run(self, scope, token_ids, state):
        with scope:
            logits = self._forward(token_ids, state)
        return logits, {**state, "cache": scope.cache}

    def _encode(self, batch):
        """What is made of the sources."""
        return {}

    def _forward(self, token_ids, state):
        return _logits(self.model(token_ids, training=False))

    @staticmethod
    def longest(length):
        """What is not seen in the model's layers has no limit."""
        return length

    @staticmethod
    def extend(state, length):
        """The same state with room for `length` tokens."""
        return {**state, "cache": extend_cache(state["cache"], length)}

    @staticmethod
    def move(state, rows):
        """The state with the rows in another order; what came from a source is the same in all rows that swap."""
        cache = state["cache"]
        layers = {
            slot: entry if is_frozen(entry) else take_rows(entry, rows) for slot, entry in cache["layers"].items()
        }
        # A row that wrote an id that the model masks has a hole of its own.
        moved = {name: take_rows(cache[name], rows) for name in ("positions", "hidden")}
        return {**state, "cache": {**cache, **moved, "layers": layers}}


class CachedEncoderDecoder(CachedDecoder):
    """An encoder-decoder whose graph has the sub-models `encoder` and `decoder`: the encoder runs once."""

    def __init__(self, model, cache_dtype=None):
        super().__init__(model, cache_dtype)
        self.encoder = encoder_from_ids(model)
        self.decoder = decoder_from_ids(model)

    def _encode(self, batch):
        """`batch` also holds `source_ids` and `source_positions` (B, S)."""
        with DecodingScope(False, batch["source_positions"]):
            return {"states": self.encoder(batch["source_ids"], training=False)}

    def _forward(self, token_ids, state):
        inputs = {"decoder_token_ids": token_ids, "encoder_states": state["states"]}
        return _logits(self.decoder(inputs, training=False))


class FullForward:
    """Any causal model: the whole text is run again for every token. Right for all, fast for none.

    Args:
        model: any callable from ids (B, T), or the two inputs of an encoder-decoder, to logits (B, T, V).
        is_encoder_decoder: whether it has two inputs.
        pads_source: whether the model sees to it that padding behind a source changes nothing.
    """

    keeps = False

    def __init__(self, model, is_encoder_decoder, pads_source=True):
        self.model = model
        self.is_encoder_decoder = is_encoder_decoder
        self.pads_source = pads_source
        # Whether the model looks at how long a row is, so that it must know what is padding.
        self.tells_lengths = False
        self.longest = lambda length: length

    def start(self, batch, length, spare=0):
        """As `CachedDecoder.start`; rows are padded on the right, where a causal model never looks."""
        logits, state = self.prefill(batch, length)
        return at(logits, state["last"]), state

    def prefill(self, batch, length, spare=0):
        """As `start`, but the logits are those of the whole room, (B, length, V)."""
        state = {name: batch[name] for name in ("token_ids", "last", "source_ids") if name in batch}
        state = self.extend(state, length)
        return self._logits(state), state

    def step(self, state, token, position):
        """Write one token (B,) behind each row and run everything; the model finds positions by itself."""
        state = self._write(state, ops.expand_dims(token, -1))
        return at(self._logits(state), state["last"]), state

    def feed(self, state, tokens, positions):
        """Write tokens (B, T) behind each row; what does not fit into the room is not there."""
        state = self._write(state, tokens)
        if self.tells_lengths:  # each token is read in a text that ends with it
            ends = [state["last"] - i for i in reversed(range(tokens.shape[1]))]
            ends = [ops.minimum(end, state["token_ids"].shape[1] - 1) for end in ends]
            return ops.stack([at(self._logits({**state, "last": end}), end) for end in ends], axis=1), state
        index = ops.expand_dims(state["last"], -1) + ops.arange(1 - tokens.shape[1], 1, dtype="int32")
        index = ops.clip(index, 0, state["token_ids"].shape[1] - 1)
        return at(self._logits(state), index), state

    @staticmethod
    def take_back(state, fed, kept):
        """What stands behind a row is never looked at, so its end alone moves."""
        return {**state, "last": state["last"] - fed + kept}

    @staticmethod
    def slots_used(state):
        """Columns in use, a scalar tensor."""
        return ops.max(state["last"]) + 1

    @staticmethod
    def _write(state, tokens):
        token_ids = write_runs(state["token_ids"], tokens, state["last"] + 1)
        return {**state, "token_ids": token_ids, "last": state["last"] + tokens.shape[1]}

    def _logits(self, state):
        inputs = state["token_ids"]
        if self.is_encoder_decoder:
            inputs = {"encoder_token_ids": state["source_ids"], "decoder_token_ids": inputs}
        # Dropout is off for a Keras model whatever its `call` takes for granted; any other callable sees to it itself.
        options = {"training": False} if isinstance(self.model, keras.layers.Layer) else {}
        if not self.tells_lengths:
            return _logits(self.model(inputs, **options))
        index = ops.expand_dims(ops.arange(inputs.shape[1], dtype="int32"), 0)
        positions = ops.where(index <= ops.expand_dims(state["last"], -1), index, NOT_A_TOKEN)
        with DecodingScope(False, positions):
            return _logits(self.model(inputs, **options))

    @staticmethod
    def extend(state, length):
        """The same state with room for `length` tokens."""
        room = length - state["token_ids"].shape[1]
        return {**state, "token_ids": ops.pad(state["token_ids"], [(0, 0), (0, room)])}

    @staticmethod
    def move(state, rows):
        """The state with the rows in another order."""
        return {**state, "token_ids": ops.take(state["token_ids"], rows, axis=0)}


def _without_padding(state, index, last):
    """The state after prompts whose common padding on the right takes no slots; `index` was the first of theirs."""
    return {**state, "cache": {**state["cache"], "index": index + ops.max(last) + 1}}


def take_rows(tree, rows):
    """The given rows of every tensor; scalars stay."""
    return keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0) if len(x.shape) else x, tree)


def _logits(outputs):
    """The model's outputs, if they are logits for each token."""
    found = None
    if isinstance(outputs, dict):
        found = f"the keys {sorted(outputs)}"
    elif isinstance(outputs, (list, tuple)) and any(hasattr(x, "shape") for x in outputs):
        found = f"{len(outputs)} outputs"
    else:
        outputs = ops.convert_to_tensor(outputs)
    if found or len(outputs.shape) != 3:
        found = found or f"shape {tuple(outputs.shape)}"
        raise ValueError(f"The model must return logits of shape (batch, length, vocabulary). Received: {found}")
    return outputs
