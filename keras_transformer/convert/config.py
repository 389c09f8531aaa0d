"""What a checkpoint's config says, as the arguments of a builder."""

from typing import Any, NamedTuple


class Field(NamedTuple):
    """One entry of a config.

    Attributes:
        theirs: its key; "a.b" is the entry "b" of the dict "a". None: there is none, and `default` always holds.
        ours: the argument of the builder; None if the builder can only do one thing.
        values: their value -> ours, where they differ; another value is an error. None: the same for both.
        default: their value where the key is missing.
        power, times, plus: ours is theirs to this power, times this number, plus this one.
        unless: a key in whose presence the field says nothing.
        counted: whether what counts is how many entries their value has.
        filled: `(entry, key, types)`: where their value is a dict of one of the `rope_type`s without the entry, or
            of the dynamic one, that is what stands at the key.
    """

    theirs: str | None
    ours: str | None
    values: dict | None = None
    default: Any = None
    power: float = 1
    times: float = 1
    plus: int = 0
    unless: str | None = None
    counted: bool = False
    filled: tuple | None = None


def same(**names):
    """Fields whose values need no change: `same(hidden_size="hidden_dim")`."""
    return [Field(theirs, ours) for theirs, ours in names.items()]


def always(**arguments):
    """Fields of a builder's arguments that no config mentions: `always(norm_placement="sandwich")`."""
    return [Field(None, ours, default=value) for ours, value in arguments.items()]


def builder_arguments(config, fields):
    """Keyword arguments of the family's builder.

    Args:
        config: dict, as in `config.json`.
        fields: the family's `Field`s; where two give the same argument, the last one that says something counts.

    Raises:
        ValueError: a value that the builder cannot follow.
    """
    arguments = {}
    for field in fields:
        if field.unless is not None and _entry(config, field.unless, None) is not None:
            continue
        value = _entry(config, field.theirs, field.default)
        value = len(value) if field.counted else value
        if field.filled is not None and isinstance(value, dict):
            entry, key, types = field.filled
            rope_type = value.get("rope_type", value.get("type"))
            # Of the dynamic kind `transformers` looks at the key in any case.
            if rope_type in types and key in config and (entry not in value or rope_type == "dynamic"):
                value = {**value, entry: config[key]}
        if field.values is not None:
            if isinstance(value, (list, dict)) or value not in field.values:
                known = ", ".join(map(repr, field.values))
                raise ValueError(f"`{field.theirs}` of the config must be one of {known}. Received: {value!r}")
            value = field.values[value]
        if (field.power, field.times, field.plus) != (1, 1, 0) and value is not None:
            value = value**field.power * field.times + field.plus
        if field.ours is not None and value is not None:
            arguments[field.ours] = value
    return arguments


def _entry(config, path, default):
    """What stands at "a.b" in nested dicts; the default where it is missing or None on the way."""
    if path is None:
        return default
    *folders, name = path.split(".")
    for folder in folders:
        config = config.get(folder)
        if not isinstance(config, dict):
            return default
    return config.get(name, default)
