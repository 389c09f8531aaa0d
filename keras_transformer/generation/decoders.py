"""How a model is stepped: through a cache, with its encoder run once, or by the full forward.

Each decoder offers the same pure functions of tensors, compiled once per shape:

    start(batch, length=...)          -> logits (B, V) after the prompt, and a state
    prefill(batch, length=...)        -> the same with the logits of every token
    step(state, token, position)      -> logits (B, V) after one more token, and the new state
    feed(state, tokens, positions)    -> logits (B, T, V) after each of several, and the new state
    take_back(state, fed, kept)       -> the state after only the first `kept` (B,) of the `fed` tokens fed last

`pads_source` says whether sources of different lengths may share a batch, `longest(length)` how many tokens, up to that
many, the model takes.

Letters: B batch, T prompt length, S source length, V vocabulary.
"""

import keras
from keras import ops

from keras_transformer.generation.processors import write_runs
from keras_transformer.models import decoder_from_ids, encoder_from_ids
from keras_transformer.ops.cache import DecodingScope, extend_cache
from keras_transformer.ops.masks import NOT_A_TOKEN


class CachedDecoder:
    """A decoder-only model, one token per step through the cache."""

    pads_source = True

    def __init__(self, model):
        self.model = model

    def start(self, batch, length):
        """Run the prompts: `token_ids` and `positions` (B, T), `last` (B,), the index of each last token."""
        logits, state = self.prefill(batch, length)
        return at(logits, batch["last"]), state

    def prefill(self, batch, length):
        """As `start`, but the logits are those of all tokens, (B, T, V)."""
        with DecodingScope(None, batch["positions"], length) as scope:
            logits = self._forward(batch["token_ids"], {})
        return logits, {"cache": scope.cache}

    def step(self, state, token, position):
        """Feed one token (B,) at its position (B,)."""
        logits, state = self.feed(state, ops.expand_dims(token, -1), ops.expand_dims(position, -1))
        return logits[:, -1], state

    def feed(self, state, tokens, positions):
        """Feed tokens (B, T) at positions (B, T); one at -1 is not there."""
        with DecodingScope(state["cache"], positions) as scope:
            logits = self._forward(tokens, state)
        return logits, {**state, "cache": scope.cache}

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

    def _forward(self, token_ids, state):
        return _logits(self.model(token_ids, training=False))

    @staticmethod
    def longest(length):
        """What is not seen in the model's layers has no limit."""
        return length

    @staticmethod
    def slots_taken(prompt_length, longest_row):
        """Slots in use after the prompt: padding takes them too."""
        return prompt_length

    @staticmethod
    def extend(state, length):
        """The same state with room for `length` tokens."""
        return {**state, "cache": extend_cache(state["cache"], length)}

    @staticmethod
    def move(state, rows):
        """The state with the rows in another order; what came from the prompt is the same in all rows that swap."""
        layers = {
            slot: entry if "encoder_key" in entry else {name: ops.take(x, rows, axis=0) for name, x in entry.items()}
            for slot, entry in state["cache"]["layers"].items()
        }
        return {**state, "cache": {**state["cache"], "layers": layers}}


class CachedEncoderDecoder(CachedDecoder):
    """An encoder-decoder whose graph has the sub-models `encoder` and `decoder`: the encoder runs once."""

    def __init__(self, model):
        super().__init__(model)
        self.encoder = encoder_from_ids(model)
        self.decoder = decoder_from_ids(model)

    def prefill(self, batch, length):
        """As `CachedDecoder.prefill`; `batch` also holds `source_ids` and `source_positions` (B, S)."""
        source_positions = batch["source_positions"]
        with DecodingScope(False, source_positions):
            state = {"states": self.encoder(batch["source_ids"], training=False)}
        with DecodingScope(None, batch["positions"], length, encoder_positions=source_positions) as scope:
            logits = self._forward(batch["token_ids"], state)
        return logits, {**state, "cache": scope.cache}

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

    def __init__(self, model, is_encoder_decoder, pads_source=True):
        self.model = model
        self.is_encoder_decoder = is_encoder_decoder
        self.pads_source = pads_source
        self.longest = lambda length: length

    def start(self, batch, length):
        """As `CachedDecoder.start`; rows are padded on the right, where a causal model never looks."""
        logits, state = self.prefill(batch, length)
        return at(logits, state["last"]), state

    def prefill(self, batch, length):
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
        index = ops.expand_dims(state["last"], -1) + ops.arange(1 - tokens.shape[1], 1, dtype="int32")
        index = ops.expand_dims(ops.minimum(index, state["token_ids"].shape[1] - 1), -1)
        return ops.take_along_axis(self._logits(state), index, axis=1), state

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
        return _logits(self.model(inputs, **options))

    @staticmethod
    def slots_taken(prompt_length, longest_row):
        """Columns in use after the prompt: every row is written right behind its own last token."""
        return longest_row

    @staticmethod
    def extend(state, length):
        """The same state with room for `length` tokens."""
        room = length - state["token_ids"].shape[1]
        return {**state, "token_ids": ops.pad(state["token_ids"], [(0, 0), (0, room)])}

    @staticmethod
    def move(state, rows):
        """The state with the rows in another order."""
        return {**state, "token_ids": ops.take(state["token_ids"], rows, axis=0)}


def _logits(outputs):
    """The model's outputs, if they are logits for each token."""
    outputs = outputs if isinstance(outputs, dict) else ops.convert_to_tensor(outputs)
    if isinstance(outputs, dict) or len(outputs.shape) != 3:
        found = f"the keys {sorted(outputs)}" if isinstance(outputs, dict) else f"shape {tuple(outputs.shape)}"
        raise ValueError(f"The model must return logits of shape (batch, length, vocabulary). Received: {found}")
    return outputs


def at(x, index):
    """x (B, T, ...) at each row's own index (B,): (B, ...)."""
    return ops.take_along_axis(x, ops.reshape(index, (-1, *[1] * (len(x.shape) - 1))), axis=1)[:, 0]
