"""What `load_pretrained` would make of a folder, said without reading a weight."""

import re

from keras_transformer.convert import choose_head, files, table
from keras_transformer.convert.pretrained import arguments_of, family_of, no_other_errors


def describe(directory, head=None):
    """The builder, its arguments, and where each tensor of a checkpoint folder goes, as text to print.

    Args:
        directory: the folder, as for `load_pretrained`.
        head: as for `load_pretrained`.

    Returns:
        A str: a line for the builder with its arguments, a line for the head if there is one, and one for each tensor:
        its name, type and shape, and the variables that it holds, or that it is not needed or has no place.

    Raises:
        ValueError: as for `load_pretrained`, of the config and the headers of the files alone.

    Example: `print(keras_transformer.convert.describe("folder"))`
    """
    config, tensors = files.read_config(directory), files.Tensors(directory)
    family, builder = family_of(config)
    wanted = choose_head.find(family, config, head)
    with no_other_errors(config):
        arguments, _ = arguments_of(family, config, files.read_generation(directory), tensors, wanted)
        of_head = choose_head.options(wanted, config, head, directory)
    arguments = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    lines = [f"keras_transformer.models.{builder.__name__}(None, {arguments})"]
    if wanted is not None:
        of_head = ", ".join(f"{name}={value!r}" for name, value in of_head.items())
        lines.append(f"keras_transformer.models.with_head(model, {of_head})")
    found, prefix = choose_head.tables(family, config, wanted, head), getattr(family, "PREFIX", "")
    in_table = table.names_in_table(tensors, found["rows"], found["ignored"], prefix)
    width = max(map(len, tensors), default=0)
    for name, stored in tensors.items():
        places = _place(in_table[name], found, getattr(family, "ZEROS", ()))
        lines.append(f"{name:{width}}  {stored.dtype} {list(stored.shape)}  {places}")
    return "\n".join(lines)


def _place(name, found, zeros):
    for row in found["rows"]:
        match = re.fullmatch(row.pattern(), name)
        if match:
            return "-> " + ", ".join(row.at(match[1] if match.groups() else "").paths)
    for tied, twin in found["tied"]:
        if name == tied:
            return f"the same as {twin}"
    if any(re.fullmatch(pattern, name) for pattern in found["ignored"]):
        return "not needed"
    if any(re.fullmatch(pattern, name) for pattern in zeros):
        return "not needed if it is zero"
    return "no place"
