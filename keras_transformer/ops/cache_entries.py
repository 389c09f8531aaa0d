"""What a cache keeps for one layer, and how new tokens get into it: pure functions of dicts of tensors.

    growing   {"key": (B, K, S, H), "value": (B, K, S, H)}            the slots are those of the whole cache
    ring      {..., "positions": (B, W)}                              has slots of its own: the last W tokens of a row
    frozen    {"encoder_key": ..., "encoder_value": ...}              cross-attention, never written again
    int8      {"key": int8, "key_scale": (B, K, S, 1), ...}           how any of them keeps keys and values
    state     {"state_0": (B, 1, W, U), ..., "positions": (B, W)}     a recurrent layer: the last W states, see `recall`

The heads come before the slots, so that the products of one token with all slots read each head's keys in one piece:
with the slots first, XLA transposes the whole cache for every token (10 times slower at 8 rows of 1024 slots).

The slot of a token in a ring is its position modulo the number of slots. So rows of different lengths need no pointer
of their own, a token that is fed again overwrites itself, and what has left the window is overwritten first. While the
cache has less than W slots, so has the ring; its positions have W columns from the start, to know how far it may grow.

Letters: B batch, T new tokens, S slots of the cache, R slots of a ring, K key/value heads, H head dim, U units.
"""

from keras import ops

from keras_transformer.ops.masks import NOT_A_TOKEN
from keras_transformer.ops.rows import repeat_rows
from keras_transformer.ops.update import update_slots

CACHE_DTYPES = (None, "int8")
LARGEST = 127  # of int8, on both sides of zero
LAST_POSITION = 2**31 - 1


def pack(key, value, dtype=None):
    """Keys and values (B, T, K, H) as an entry keeps them.

    In int8 the largest number of a token's head is 127, and what one means is its scale, in the dtype of the keys.
    """
    packed = {"key": ops.swapaxes(key, 1, 2), "value": ops.swapaxes(value, 1, 2)}  # (B, K, T, H)
    if dtype is None:
        return packed
    for name, x in list(packed.items()):
        scale = ops.max(ops.abs(x), axis=-1, keepdims=True) / LARGEST
        scale = ops.where(scale > 0, scale, ops.ones_like(scale))
        numbers = ops.round(ops.cast(x, "float32") / ops.cast(scale, "float32"))
        packed |= {name: ops.cast(ops.clip(numbers, -LARGEST, LARGEST), "int8"), f"{name}_scale": scale}
    return packed


def dtype_of(entry):
    """The string "int8", or None for an entry whose keys are as they came."""
    return "int8" if "key_scale" in entry else None


def unpack(entry):
    """Keys and values (B, S, K, H) as they are attended to."""
    return tuple(ops.swapaxes(_unpacked(entry, name), 1, 2) for name in ("key", "value"))


def _unpacked(entry, name):
    scale = entry.get(f"{name}_scale")
    return entry[name] if scale is None else ops.cast(entry[name], scale.dtype) * scale


def freeze(entry, positions):
    """An entry of an encoder's states, of which positions (B, S), or None for all, say what is real."""
    frozen = {f"encoder_{name}": x for name, x in entry.items()}
    return frozen if positions is None else {**frozen, "encoder_positions": positions}


def thaw(entry):
    """Keys, values and positions of a frozen entry."""
    bare = {name.removeprefix("encoder_"): x for name, x in entry.items()}
    return *unpack(bare), bare.get("positions")


def is_frozen(entry):
    """Whether an entry is one of an encoder's states."""
    return "encoder_key" in entry


def grow(old, new, index, length):
    """A growing entry of `length` slots with the new tokens at `index`; `old` is None at the start."""
    if old is None:
        return {name: pad_slots(x, length) for name, x in new.items()}
    return {name: update_slots(x, index, new[name], axis=2) for name, x in old.items()}


def roll(old, new, positions, fed, length, window):
    """A ring with the new tokens, whose positions are (B, T), and what these see: an entry with `positions`.

    `fed` are the same positions, those of masked tokens included.

    One token takes the place of the oldest. Several are attended to together with what was there before them: the
    first ones may need what the last ones overwrite.
    """
    if old is None:
        return _ring(new, positions, min(length, window), window), {**new, "positions": positions}
    # What was fed and taken back stands at or behind the first new position of its row, be a token there or not.
    old = {**old, "positions": ops.where(old["positions"] < _first(fed), old["positions"], NOT_A_TOKEN)}
    if positions.shape[1] == 1:
        ring = _replace(old, new, positions)
        return ring, {**ring, "positions": _ring_positions(ring)}
    before = _ring_positions(old)
    seen = {name: ops.concatenate([old[name], x], axis=2) for name, x in new.items()}
    positions = ops.concatenate([before, positions], axis=1)
    return _ring(seen, positions, num_slots(old), old["positions"].shape[1]), {**seen, "positions": positions}


def first_state(states, spare):
    """An entry of the states (B, U) of a recurrent layer before its first token.

    It is a ring: a state cannot be rewound, so that for each token that may be taken back one more is kept. `positions`
    says of each state at which position the next token stands, 0 for the first one.
    """
    entry = {f"state_{i}": ops.expand_dims(x, (1, 2)) for i, x in enumerate(states)}
    entry = {name: pad_slots(x, 1 + spare) for name, x in entry.items()}
    nothing_read = ops.zeros((states[0].shape[0], 1), "int32")
    return {**entry, "positions": pad_slots(nothing_read, 1 + spare, fill=NOT_A_TOKEN, axis=1)}


def recall(entry, positions):
    """The states (B, U) from which tokens at positions (B, T) go on; NaN where more was taken back than was kept."""
    before = ops.where(entry["positions"] <= _first(positions), entry["positions"], NOT_A_TOKEN)
    newest = ops.expand_dims(ops.cast(ops.argmax(before, axis=1), "int32"), -1)
    is_kept = ops.any(before > NOT_A_TOKEN, axis=1, keepdims=True)
    states = [_take(x, newest)[:, 0, 0] for x in _without_positions(entry).values()]
    return [ops.where(is_kept, x, float("nan")) for x in states]


def remember(entry, states, positions):
    """The entry after tokens at positions (B, T): states (B, T, U), or (B, 1, U) after the last one alone."""
    before = ops.where(entry["positions"] <= _first(positions), entry["positions"], NOT_A_TOKEN)
    if states[0].shape[1] < positions.shape[1]:
        positions = ops.max(positions, axis=1, keepdims=True)
    behind = ops.where(positions > NOT_A_TOKEN, positions + 1, NOT_A_TOKEN)
    kept = _without_positions(entry)
    new = [ops.expand_dims(ops.cast(x, old.dtype), 1) for x, old in zip(states, kept.values(), strict=True)]
    seen = {name: ops.concatenate([x, y], axis=2) for (name, x), y in zip(kept.items(), new, strict=True)}
    return _ring(seen, ops.concatenate([before, behind], axis=1), num_slots(entry), num_slots(entry))


def is_state(entry):
    """Whether an entry is one of a recurrent layer."""
    return "state_0" in entry


def extend(entry, length, spare=0):
    """The same entry with room for `length` tokens, in a ring for `spare` more than before."""
    if is_frozen(entry):
        return entry
    if "positions" not in entry:
        return {name: pad_slots(x, length) for name, x in entry.items()}
    window = entry["positions"].shape[1] + spare
    room = window if is_state(entry) else min(length, window)
    if not spare and room <= num_slots(entry):
        return entry
    return _ring(_without_positions(entry), _ring_positions(entry), room, window)


def num_slots(entry):
    """How many tokens, or states, the entry has room for."""
    return entry["state_0" if is_state(entry) else "key"].shape[2]


def _without_positions(entry):
    return {name: x for name, x in entry.items() if name != "positions"}


def _first(positions):
    """The first of the new positions (B, T) of each row: (B, 1)."""
    return ops.min(ops.where(positions > NOT_A_TOKEN, positions, LAST_POSITION), axis=1, keepdims=True)


def _ring_positions(ring):
    """Positions (B, R) of the slots that there are so far."""
    return ring["positions"][:, : num_slots(ring)]


def _ring(seen, positions, length, window):
    """A ring of `length` slots for the last tokens of an entry, whose positions are (B, S)."""
    last = ops.max(positions, axis=1, keepdims=True)  # (B, 1)
    due = last - ops.mod(last - ops.arange(length, dtype="int32"), length)  # (B, R), what each slot is to hold
    matches = ops.equal(ops.expand_dims(due, -1), ops.expand_dims(positions, 1))  # (B, R, S)
    index = ops.cast(ops.argmax(ops.cast(matches, "int8"), axis=-1), "int32")
    due = ops.where(ops.any(matches, axis=-1), due, NOT_A_TOKEN)
    ring = {name: _take(x, index) for name, x in seen.items()}
    return {**ring, "positions": pad_slots(due, window, fill=NOT_A_TOKEN, axis=1)}


def _replace(ring, new, position):
    """A ring with one more token, of position (B, 1), in each row that has one."""
    slot = ops.mod(ops.maximum(position, 0), num_slots(ring))
    is_token = position > NOT_A_TOKEN

    def replace(old, token):
        token = ops.where(ops.reshape(is_token, (-1, 1, 1, 1)), token, _take(old, slot))
        index = ops.reshape(_flat_index(old, slot), (-1, 1))
        return ops.reshape(ops.scatter_update(_flat(old), index, _flat(token)), old.shape)

    here = ops.logical_and(is_token, ops.equal(ops.arange(ring["positions"].shape[1], dtype="int32"), slot))
    positions = ops.where(here, position, ring["positions"])
    return {**{name: replace(ring[name], x) for name, x in new.items()}, "positions": positions}


def _take(x, index):
    """The slots (B, R) of each row of x (B, K, S, H): (B, K, R, H)."""
    taken = ops.take(_flat(x), _flat_index(x, index), axis=0)
    return ops.reshape(taken, (*x.shape[:2], index.shape[1], x.shape[3]))


def _flat(x):
    """The slots of all rows and heads behind each other: (B * K * S, H)."""
    return ops.reshape(x, (-1, x.shape[-1]))


def _flat_index(x, index):
    """Where the slots (B, R) of each row are there: (B * K, R)."""
    batch, heads, slots, _ = x.shape
    first = ops.expand_dims(ops.arange(batch * heads, dtype="int32") * slots, -1)
    return first + repeat_rows(index, heads)


def pad_slots(x, length, fill=0, axis=2):
    """The tensor with `length` slots, the new ones filled."""
    room = length - x.shape[axis]
    if room == 0:
        return x
    return ops.pad(x, [(0, room if i == axis else 0) for i in range(len(x.shape))], constant_values=fill)
