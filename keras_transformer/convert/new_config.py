"""The config of a model that a builder made and that no folder brought one along for."""

import importlib

import keras

from keras_transformer import models
from keras_transformer.convert.choose_head import class_name
from keras_transformer.convert.config import builder_arguments
from keras_transformer.convert.first_values import abandon
from keras_transformer.layers import DecoderBlock, EncoderBlock, ModelCard, PositionalEmbedding, read_card, read_head

OTHER_NAMES = ("xlm-roberta", "camembert", "mt5")  # types that are tried under another name already
# What two models may differ in although their weights mean the same.
OF_TRAINING = ("seed", "dropout", "feed_forward_dropout", "stochastic_depth", "trainable", "dtype", "name")
OF_TRAINING += ("pad_token_id", "load_balancing_loss")
# What a builder puts on top, and a head replaces.
OF_OUTPUT = ("logits", "logits_bias", "soft_cap", "pooling", "decoder_scale")


def config_for(model, modules):
    """The config with which a family of `transformers` is this model, whose head is left out of account.

    Args:
        model: one of a builder of `kt.models`, or `with_head` on it.
        modules: name of a module of `convert` -> name of its builder.

    Raises:
        ValueError: there is no such family: the model did not come from a builder, or was given options that no config
            can say.
    """
    facts = _facts(model)
    tried = []
    for name, builder in modules.items():
        family = importlib.import_module(f"keras_transformer.convert.{name}")
        for kind in family.MODEL_TYPES if builder == facts.get("family") else ():
            if kind in OTHER_NAMES:
                continue
            tried.append(kind)
            config = _config(facts, kind, family)
            # What no config says, and a reader is told by the tensors or the name of the class.
            told = {option: True for option in getattr(family, "KINDS", {}) if facts.get(option)}
            if config is not None and _is_the_same(
                model, builder, {**builder_arguments(config, family.FIELDS), **told}
            ):
                names = [family.KINDS[option] for option in told] or [family.KIND]
                return {**config, "architectures": [class_name(kind, names[0])]}
    why = f"no config of the types {tried} says what it is" if tried else "it is of no family of `kt.models`"
    raise ValueError(f"The model {getattr(model, 'name', model)!r} has no place in `transformers`: {why}.")


def _facts(model):
    """What a builder was called with, as far as the model shows it."""
    card = {key: value for key, value in read_card(model).items() if value or key.endswith("_id") or value is False}
    block = next(_layers(model, (EncoderBlock, DecoderBlock)), None)
    if block is None or not card:
        return {}
    activation = getattr(block.feed_forward, "activation", None)
    found = {"activation": getattr(activation, "__name__", None), "dropout": block.dropout}
    found |= {name: getattr(block, name) for name in ("norm_epsilon", "norm_placement", "use_bias")}
    offsets = [layer.position_offset for layer in _layers(model, PositionalEmbedding)]
    found |= {"position_offset": max(offsets, default=0) or None}
    # What a builder has by default, other configs may not.
    found |= {"key_dim": card.get("hidden_dim", 0) // (card.get("num_heads") or 1) or None}
    found |= {"num_key_value_heads": card.get("num_heads"), **card}
    if not found.get("sliding_window"):  # then all layers see the same
        found.pop("layer_types", None)
    elif "layer_types" in found:
        kinds = found["layer_types"]
        found["layer_types"] = [kinds[i % len(kinds)] for i in range(found["num_layers"])]
    return {name: value for name, value in found.items() if value is not None}


def _config(facts, kind, family):
    """A config of a type of the family that says the facts that it has words for; None if it does not fit at all."""
    fields = family.FIELDS
    # Said in any case: without them `transformers` takes those of its own vocabulary.
    ids = {field.theirs: facts.get(field.ours) for field in fields if field.ours in ("start_token_id", "stop_token_id")}
    config = {"model_type": kind, "pad_token_id": facts.get("pad_token_id"), **ids}
    for name, value in facts.items():
        if not _says(config, fields, {name: value}):
            trials = [
                {**config, field.theirs: theirs}
                for field in fields
                if field.ours == name and field.theirs is not None and "." not in field.theirs
                for theirs in _entries(field, value)
            ]
            config = max(trials, key=lambda trial: _says(trial, fields, facts), default=config)
    if _says(config, fields, {"num_layers": facts["num_layers"]}) < 1:
        return None
    for field in fields:  # theirs knows the length of this kind by another entry
        scaling = config.get(field.theirs) if field.filled else None
        if isinstance(scaling, dict) and scaling.get("rope_type") == "dynamic":
            entry, key, _ = field.filled
            config[key] = scaling.get(entry, config.get(key))
    for name, entries in getattr(family, "BESIDE", {}).items():
        config |= entries if name in facts else {}
    return _with_nothing(config, fields, facts)


def _with_nothing(config, fields, facts):
    """The config with None for what the model is without, where it else were what `transformers` has by default."""
    for field in fields:
        is_free = field.theirs and "." not in field.theirs and field.theirs not in config and field.values is None
        if is_free and field.ours not in facts:
            arguments = builder_arguments(config, fields)
            without = {name: value for name, value in arguments.items() if name != field.ours}
            if builder_arguments({**config, field.theirs: None}, fields) in (without, arguments):
                config = {**config, field.theirs: None}
    return config


def _entries(field, value):
    """What may stand in a config for a field to have this value."""
    if field.theirs == "model_type":
        return ()
    if field.values is not None:
        return [theirs for theirs, ours in field.values.items() if ours == value]
    if field.counted:
        return [{str(i): f"LABEL_{i}" for i in range(value)}]
    if (field.power, field.times, field.plus) != (1, 1, 0):
        return [round(((value - field.plus) / field.times) ** (1 / field.power))]
    return [value]


def _says(config, fields, facts):
    """How many of the facts a config says."""
    try:
        arguments = builder_arguments(config, fields)
    except (ValueError, TypeError):
        return -1
    return sum(_plain(arguments.get(name)) == _plain(value) for name, value in facts.items())


def _plain(value):
    return list(value) if isinstance(value, tuple) else value


def _is_the_same(model, builder, arguments):
    """Whether what the builder makes of these arguments has the same layers, one by one."""
    try:
        with keras.StatelessScope():  # so that it is never allocated
            again = getattr(models, builder)(None, **arguments)
            abandon(again)
            expected = _described(again)
    except (ValueError, TypeError):
        return False
    found, has_head = _described(model), bool(read_head(model))
    missing, more = expected.keys() - found.keys(), found.keys() - expected.keys()
    if not missing <= {"pooler", *(OF_OUTPUT if has_head else ())} or (more and not has_head):
        return False
    return all(found[name] == expected[name] for name in found.keys() & expected.keys())


def _layers(model, kinds):
    for layer in getattr(model, "layers", ()):
        if isinstance(layer, kinds):
            yield layer
        elif isinstance(layer, keras.Model):
            yield from _layers(layer, kinds)


def _described(model):
    """{name of a layer: its config, without what training alone asks for}, nested models included."""
    found = {}
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            found |= _described(layer)
        elif not isinstance(layer, (keras.layers.InputLayer, ModelCard)):
            found[layer.name] = _without_training(layer.get_config())
    return found


def _without_training(config):
    if isinstance(config, dict):
        kept = {key: value for key, value in config.items() if not _is_of_training(key)}
        return {key: _without_training(value) for key, value in kept.items()}
    return [_without_training(x) for x in config] if isinstance(config, (list, tuple)) else config


def _is_of_training(key):
    return key in OF_TRAINING or key.endswith(("_initializer", "_regularizer", "_constraint", "build_config"))
