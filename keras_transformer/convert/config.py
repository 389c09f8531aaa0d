"""What a checkpoint's config says, as the arguments of a builder."""

from typing import Any, NamedTuple


class Field(NamedTuple):
    """One entry of a config.

    Attributes:
        theirs: its key.
        ours: the argument of the builder; None if the builder can only do one thing.
        values: their value -> ours, where they differ; another value is an error. None: the same for both.
        default: their value where the key is missing.
        counted: whether what counts is how many entries their value has.
    """

    theirs: str
    ours: str | None
    values: dict | None = None
    default: Any = None
    counted: bool = False


def same(**names):
    """Fields whose values need no change: `same(hidden_size="hidden_dim")`."""
    return [Field(theirs, ours) for theirs, ours in names.items()]


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
        value = config.get(field.theirs, field.default)
        value = len(value) if field.counted else value
        if field.values is not None:
            if value not in field.values:
                known = ", ".join(map(repr, field.values))
                raise ValueError(f"`{field.theirs}` of the config must be one of {known}. Received: {value!r}")
            value = field.values[value]
        if field.ours is not None and value is not None:
            arguments[field.ours] = value
    return arguments
