"""The config of a model that is no longer, or never was, quite what its folder says."""

from keras_transformer.convert.config import builder_arguments

# Options that a config need not say for the weights to mean the same.
OF_USE = ("name", "seed", "dropout", "feed_forward_dropout", "stochastic_depth", "with_segments")
OF_USE += ("pad_token_id", "start_token_id", "stop_token_id")
OF_TRAINING = ("_initializer", "_regularizer", "_constraint")


def config_with(options, config, fields):
    """The config of a model that was built with options beside it, and the names of those it has no word for."""
    found, untold = dict(config), []
    for name, value in options.items():
        arguments = builder_arguments(found, fields)
        if name == "pad_token_id" and all(field.ours != name for field in fields):
            found[name] = value  # which a reader needs to find a text's last token
        if name in OF_USE or name.endswith(OF_TRAINING) or (name in arguments and arguments[name] == value):
            continue
        entries = (
            (field.theirs, theirs)
            for field in fields
            if field.ours == name and field.theirs is not None
            for theirs in ([value] if field.values is None else field.values)
        )
        for theirs, entry in entries:
            try:
                says = builder_arguments({**found, theirs: entry}, fields)
            except (ValueError, TypeError):
                continue
            if says == {**arguments, name: value}:
                found[theirs] = entry
                break
        else:
            untold.append(name)
    return found, untold


def up_to_date(config, fields, elsewhere, card):
    """The config of a model whose card says something else by now, such as images of another size."""
    arguments, found = builder_arguments(config, fields) | elsewhere, dict(config)
    for field in fields:
        is_plain = field.values is None and not field.counted and (field.power, field.times, field.plus) == (1, 1, 0)
        if is_plain and field.theirs in config and field.ours in arguments and field.ours in card:
            value = _unpaired(card[field.ours])
            if value != _unpaired(arguments[field.ours]):
                found[field.theirs] = value
    return found


def _unpaired(value):
    """One number for a pair of equal ones."""
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2 and value[0] == value[1]
    return value[0] if is_pair else list(value) if isinstance(value, tuple) else value
