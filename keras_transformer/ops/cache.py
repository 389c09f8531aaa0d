"""The decoding scope: how a plain Keras model becomes one that decodes token by token.

    with DecodingScope(cache, positions) as scope:
        logits = model(token_ids)
    cache = scope.cache

While a scope is open, the layers of this library find their positions and their cached keys and values in it; the
model and the layers between them know nothing of it. So training, prefill and one-token steps run the same `call`,
on functional, subclassed and nested models, also on models loaded from a file.

A cache is a plain nested dict of tensors, made and updated by pure functions:

    {"index": ()          int32, the slot that the next token is written to, shared by all rows,
     "positions": (B, S)  int32, the position of the token in each slot; -1 where there is none,
     "hidden": {"0": (B, S)}  boolean, for each attention layer that is called with a mask, what this hides,
     "layers": {"0": {"key": (B, K, S, H), "value": (B, K, S, H)},                           grows with the text
                "1": {"key": (B, K, W, H), "value": (B, K, W, H), "positions": (B, W)},      a sliding window
                "2": {"encoder_key": (B, K, S, H), "encoder_value": (B, K, S, H), "encoder_positions": (B, S)},
                "3": {"state_0": (B, 1, W, U), "positions": (B, W)}}}                        a recurrent layer

`cache_entries` says what they are. An `encoder_` entry is frozen: cross-attention projects the encoder's states once.
Its positions are left out when no state is padding.

Slots are keyed by the order in which the model reaches these layers: names and paths are not unique across
nested models. Rows differ in length without a gather: every row writes to the same slot, and what a slot holds for a
row is said by its position alone.
"""

import keras
from keras import ops

from keras_transformer.ops import cache_entries as entries
from keras_transformer.ops.cache_entries import pad_slots
from keras_transformer.ops.masks import NOT_A_TOKEN
from keras_transformer.ops.scope import Scope
from keras_transformer.ops.update import update_slots


class CannotCache(ValueError):
    """The model cannot be decoded through a cache; the message says which layer and why."""


class LooksBothWays(ValueError):
    """The model is not causal, so it cannot be decoded at all."""


class DecodingScope(Scope):
    """Gives the attention and recurrent layers called inside it their positions and their cache.

    Args:
        cache: None to start one (prefill), the `cache` of an earlier scope to go on, or False to only supply
            positions, for instance while an encoder runs over padded rows.
        positions: int32 (B, T), the position of each token that is fed now; -1 where there is none (padding).
        length: number of slots of a new cache, at least T. Default T. Grow a cache with `extend_cache`.
        encoder_positions: int32 (B, S), needed when a new cache starts and cross-attention has padded keys.
        dtype: "int8" stores the keys and values of a new cache in 8 bits, with one scale for each token and head; None
            stores them as they are.
        spare: how many of the tokens fed to a new cache may be taken back later: sliding windows and recurrent layers
            keep as many more keys or states.

    Raises:
        ValueError: the tokens do not fit into the cache.
    """

    def __init__(self, cache=None, positions=None, length=None, encoder_positions=None, dtype=None, spare=0):
        if positions is None or len(positions.shape) != 2:
            shape = None if positions is None else tuple(positions.shape)
            raise ValueError(f"`positions` must be an int32 array of shape (batch, length). Received shape: {shape}")
        self.positions = ops.cast(positions, "int32")
        self.encoder_positions = encoder_positions
        if dtype not in entries.CACHE_DTYPES:
            raise ValueError(f"The dtype of a cache must be one of {entries.CACHE_DTYPES}. Received: {dtype!r}")
        self._given = cache
        self._dtype, self._spare = dtype, spare
        self._reached = 0
        self._layers, self._hidden = {}, {}
        num_new = self.positions.shape[1]
        if cache is False:
            self.key_positions = self.positions
        elif cache is None:
            length = num_new if length is None else length
            if length < num_new:
                raise ValueError(f"`length` must hold the {num_new} tokens that are fed. Received: length={length}")
            self._index, self._length = 0, length
            self.key_positions = pad_slots(self.positions, length, fill=NOT_A_TOKEN, axis=1)
        else:
            self._index, self._length = cache["index"], cache["positions"].shape[1]
            self._check_room(num_new)
            self.key_positions = update_slots(cache["positions"], self._index, self.positions, axis=1)

    @property
    def caches(self):
        """Whether keys and values are kept; False when the scope only supplies positions."""
        return self._given is not False

    @property
    def seen_positions(self):
        """Positions (B, S) of all that the tokens fed now may attend to, what masks hide and windows leave included."""
        return self.positions if self._given in (None, False) else self.key_positions

    @property
    def begins(self):
        """Whether a new cache starts here."""
        return self._given is None

    @property
    def cache(self):
        """The cache after the calls made inside the scope."""
        if not self.caches:
            raise ValueError("A scope with `cache=False` supplies positions only and has no cache.")
        index = ops.cast(self._index + self.positions.shape[1], "int32")
        return {"index": index, "positions": self.key_positions, "hidden": self._hidden, "layers": self._layers}

    def write(self, key, value, key_mask=None, sliding_window=None):
        """Append keys and values (B, T, K, H) of a causal self-attention, which sees the last `sliding_window` ones.

        Returns:
            `(key, value, positions)` of all that the tokens fed now may attend to: (B, S, K, H) twice and (B, S).
        """
        slot = self._next_slot()
        fed, seen = self._visible(slot, key_mask)
        old = None if self._given is None else self._entry(slot)
        new = entries.pack(key, value, self._dtype if old is None else entries.dtype_of(old))
        if sliding_window is None:
            self._layers[slot] = entries.grow(old, new, self._index, self._length)
            if old is None:
                return *entries.unpack(new), fed
            return *entries.unpack(self._layers[slot]), seen
        window = sliding_window + self._spare
        self._layers[slot], seen = entries.roll(old, new, fed, self.positions, self._length, window)
        return *entries.unpack(seen), seen["positions"]

    def freeze(self, project, key_mask=None):
        """Keys and values that do not change while decoding (cross-attention): projected once, then kept.

        Args:
            project: function without arguments that returns key and value (B, S, K, H).
            key_mask: boolean (B, S), which of them are real; `encoder_positions` may hide more.

        Returns:
            `(key, value, positions)`, positions int32 (B, S) or None when all are real.
        """
        slot = self._next_slot()
        if self._given is None:
            positions = self.encoder_positions
            if key_mask is not None:
                positions = 0 if positions is None else positions
                positions = ops.where(ops.cast(key_mask, "bool"), positions, NOT_A_TOKEN)
            positions = None if positions is None else ops.cast(positions, "int32")
            entry = entries.freeze(entries.pack(*project(), self._dtype), positions)
        else:
            entry = self._entry(slot)
        self._layers[slot] = entry
        return entries.thaw(entry)

    def recur(self, start, run, mask=None):
        """Run a recurrent layer over the tokens fed now, from the state in which the tokens before them left it.

        Args:
            start: function without arguments that returns the states before the first token, a list of (B, U).
            run: function of these states, of `is_token`, boolean (B, T), and of whether to return all states: gives
                the outputs (B, T, U), and the states after every token (B, T, U) or after the last one (B, 1, U). What
                is no token leaves the state as it is.
            mask: boolean (B, T), which of the tokens are real.

        Returns:
            The outputs and the last states.
        """
        slot, positions = self._next_slot(), self.positions
        is_token = positions > NOT_A_TOKEN
        if mask is not None:
            is_token = ops.logical_and(is_token, ops.cast(mask, "bool"))
        entry = entries.first_state(start(), self._spare) if self._given is None else self._entry(slot)
        all_of_them = positions.shape[1] <= entries.num_slots(entry)  # else those that may be returned to come later
        outputs, states = run(entries.recall(entry, positions), is_token, all_of_them)
        # A token that the model masks has a position, behind which the state is what it was before it.
        self._layers[slot] = entries.remember(entry, states, positions)
        return outputs, [x[:, -1] for x in states]

    def _next_slot(self):
        slot = str(self._reached)
        self._reached += 1
        return slot

    def _entry(self, slot):
        try:
            return self._given["layers"][slot]
        except KeyError:
            raise ValueError(
                f"The model reached its layer number {slot} with a cache, which has {len(self._given['layers'])}: "
                "the cache belongs to another model, or the model calls other layers than before."
            ) from None

    def _visible(self, slot, mask):
        """Positions (B, T) of the tokens fed now and (B, S) of all, -1 where the mask (B, T) hides one for good.

        An id that the model masks may stand in the middle of a text. What stands between layers may drop the mask, and
        a layer may have one of its own, so each keeps what was hidden from it.
        """
        before = None if self._given is None else self._given.get("hidden", {}).get(slot)
        if mask is None and before is None:
            return self.positions, self.key_positions
        if self._given is not None and before is None:
            raise CannotCache(
                f"The layer number {slot} is called with a mask now and was not when the cache began: this is one of "
                "another model, or something between the layers makes masks of single tokens."
            )
        hides = ops.zeros(self.positions.shape, "bool") if mask is None else ops.logical_not(ops.cast(mask, "bool"))
        fed = ops.broadcast_to(hides, self.positions.shape)
        if before is None:
            of_all = pad_slots(fed, self._length, fill=False, axis=1)
        else:
            of_all = update_slots(before, self._index, fed, axis=1)
        self._hidden[slot] = of_all
        pairs = (fed, self.positions), (of_all, self.key_positions)
        return tuple(ops.where(hidden, NOT_A_TOKEN, positions) for hidden, positions in pairs)

    def _check_room(self, num_new):
        index = concrete(self._index)
        if index is not None and int(index) + num_new > self._length:
            raise ValueError(
                f"The cache has {self._length} slots, {int(index)} are taken and {num_new} tokens were fed. "
                "Grow it first: `extend_cache(cache, length)`."
            )


def current_scope():
    """The innermost open `DecodingScope`, or None."""
    return DecodingScope.current()


def extend_cache(cache, length, spare=0):
    """The same cache with room for `length` slots; frozen entries, states and full windows stay as they are.

    Windows and recurrent layers keep `spare` more tokens from now on: so many may be taken back at once.
    """
    return {
        "index": cache["index"],
        "positions": pad_slots(cache["positions"], length, fill=NOT_A_TOKEN, axis=1),
        "hidden": {slot: pad_slots(x, length, fill=False, axis=1) for slot, x in cache.get("hidden", {}).items()},
        "layers": {slot: entries.extend(entry, length, spare) for slot, entry in cache["layers"].items()},
    }


def concrete(x):
    """The value of `x` as a NumPy array, or None while it is traced or symbolic."""
    if isinstance(x, keras.KerasTensor):
        return None
    try:
        return ops.convert_to_numpy(x)
    except Exception:  # every backend has its own error for a value that does not exist yet
        return None
