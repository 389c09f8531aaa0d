"""Low-rank adapters (LoRA): those of the models here, and those in the folders of PEFT.

Source: Hu et al. 2021, "LoRA" (https://arxiv.org/abs/2106.09685); the layout of https://github.com/huggingface/peft.

Letters: D inputs of a matrix, F outputs, N heads, H head dim, r rank.
"""

import re

import numpy as np
from keras import ops

from keras_transformer.convert import choose_head, files, table
from keras_transformer.convert.lora import adapters_of, is_adapter
from keras_transformer.convert.pretrained import family_of
from keras_transformer.layers import read_card, read_head

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
NAME = re.compile(r"[\w.]+")
# What would make another matrix of the tensors than what is computed here.
PLAIN = {"use_dora": (False,), "bias": ("none",), "layer_replication": (None,), "megatron_config": (None,)}
PLAIN |= {"init_lora_weights": (True, False, "gaussian", "eva", "orthogonal")}  # others change the matrix itself
PLAIN |= {"alora_invocation_tokens": (None,), "use_qalora": (False,), "corda_config": (None,)}


def load_adapter(model, directory):
    """Add the adapters of a PEFT folder to the weights that they are for; their layers stay as they are.

    Args:
        model: from `load_pretrained`, of the same family and sizes as the model that was adapted.
        directory: the folder with `adapter_config.json` and `adapter_model.safetensors`.

    Raises:
        ValueError: it is no LoRA, or of a kind that changes more than matrices; a tensor has no place in the model or
            another shape. Nothing is changed then.

    Example: `load_adapter(load_pretrained("base"), "adapter")`
    """
    config = files.read_json(directory, CONFIG)
    if config.get("peft_type") != "LORA":
        raise ValueError(f"`peft_type` of {CONFIG} must be 'LORA'. Received: {config.get('peft_type')!r}")
    for name, known in PLAIN.items():
        if config.get(name, known[0]) not in (*known, None):
            raise ValueError(f"`{name}` of {CONFIG} must be {known[0]!r}. Received: {config[name]!r}")
    tensors = dict(files.Tensors(directory, WEIGHTS))
    rows, prefix = _rows(model)
    variables = {variable.path: variable for variable in model.variables}
    rows = {row.theirs: row for row in table.match(rows, table.own_variables(model)) if not row.of_experts}
    new = {}
    for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
        module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        row = rows.get(f"{module}.weight") or rows.get(f"{prefix}{module}.weight")
        if row is None or row.change.axes is not None or not row.paths[0].endswith("/kernel"):
            raise ValueError(f"The model has no matrix for the adapter {module!r}.")
        first, second = tensors.pop(name), tensors.pop(name.replace(".lora_A.", ".lora_B."), None)
        scale = _scale(module, config, first, second)
        shape = (second.shape[0], first.shape[1])[:: 1 if row.change.transposed else -1]
        # Asked of something without memory, before anything so large is made.
        table.check_shape(row, module, np.broadcast_to(np.float32(0), shape), variables)
        delta = scale * np.asarray(second).astype("float32") @ np.asarray(first).astype("float32")
        for path, part in _parts(row, delta if row.change.transposed else delta.T, variables, module):
            new[path] = ops.convert_to_numpy(variables[path]).astype("float32") + part
    for name in [*tensors]:  # other modules, such as a head, may have been trained whole
        row = rows.get(name.removeprefix(PREFIX)) or rows.get(prefix + name.removeprefix(PREFIX))
        if row is None:
            raise ValueError(f"The model has no place for the tensor {name!r} of {WEIGHTS}.")
        new |= dict(_parts(row, np.asarray(tensors[name]), variables, name))
    for path, value in new.items():
        variables[path].assign(value)


def save_adapter(model, directory):
    """Write the adapters of a model, made by `layer.enable_lora(rank)`, as a folder that PEFT loads.

    Keras gives every head of queries, keys and values matrices of its own; theirs are one matrix for all heads, so that
    its rank is the one given times the number of heads. A `.keras` file holds adapters added to the weights, so write
    them from the model that was trained.

    Args:
        model: from `load_pretrained`, with adapters.
        directory: the folder, which must not exist yet. It appears whole or not at all.

    Raises:
        ValueError: the model has no adapters, one that theirs have no place for, or the folder exists.

    Example: `save_adapter(model, "adapter")`
    """
    adapted, (rows, _) = adapters_of(model), _rows(model)
    if not adapted:
        raise ValueError(f"{model.name} has no adapters: `enable_lora` of its dense layers makes them.")
    variables = {variable.path: variable for variable in model.variables}
    others = [path for path in variables if "/lora_" in path and not is_adapter(path)]
    if others:
        raise ValueError(f"These adapters have no place in a folder of PEFT: {others}")
    tensors, ranks, inputs_first = {}, {}, False
    for row in table.match(rows, table.own_variables(model)):
        parts = [adapted.pop(path, None) for path in row.paths]
        if not any(parts):
            continue
        if row.of_experts:
            raise ValueError(f"An adapter of {', '.join(row.paths)} has no place in a folder of PEFT.")
        first, second = _side_by_side(parts, row, variables)
        module = row.theirs.removesuffix(".weight")
        tensors[f"{PREFIX}{module}.lora_A.weight"] = np.ascontiguousarray(first.T)
        tensors[f"{PREFIX}{module}.lora_B.weight"] = np.ascontiguousarray(second.T)
        ranks[module] = first.shape[1]
        inputs_first |= not row.change.transposed
    if adapted:
        raise ValueError(f"These adapters have no place in a folder of PEFT: {[*adapted]}")
    rank = max(ranks.values())
    config = {"peft_type": "LORA", "task_type": None, "r": rank, "lora_alpha": rank, "target_modules": [*ranks]}
    config |= {"rank_pattern": ranks, "alpha_pattern": ranks, "bias": "none", "lora_dropout": 0.0}
    config |= {"inference_mode": True, "base_model_name_or_path": None, "fan_in_fan_out": inputs_first}
    files.write_folder(directory, config, tensors, names=(CONFIG, WEIGHTS))


def _rows(model):
    """The rows of the model's family and head, and the prefix that names of theirs may lack."""
    published = read_card(model).get("published")
    if not published:
        raise ValueError(
            f"The model {model.name!r} did not come from `load_pretrained`: write it by `save_pretrained` and load it "
            "from there, so that it has the names of a family."
        )
    family, _ = family_of(published["config"])
    head, _ = choose_head.written(family, published["config"], read_head(model))
    return choose_head.rows(family.ROWS, head, head), getattr(family, "PREFIX", "")


def _side_by_side(parts, row, variables):
    """The factors (D, r) and (r, F) of the adapters of a tensor's kernels; None is one without.

    A kernel into heads (D, N, H) has a first factor for each head and a second that all share, which is a block of a
    larger one for each of them.
    """
    shapes = [tuple(variables[path].shape) for path in row.paths]
    firsts, seconds, width = [], [], sum(int(np.prod(_outputs(row, shape))) for shape in shapes)
    begin = 0
    for part, shape in zip(parts, shapes, strict=True):
        outputs = _outputs(row, shape)
        if part is not None:
            count, rank = int(np.prod(outputs[:-1])), part[1].shape[0]
            second = np.zeros((count * rank, width), "float32")
            end = begin + count * outputs[-1]
            second[:, begin:end] = np.kron(np.eye(count, dtype="float32"), part[1])
            firsts.append(part[0].reshape(-1, count * rank))
            seconds.append(second)
        begin += int(np.prod(outputs))
    return np.concatenate(firsts, axis=1), np.concatenate(seconds)


def _outputs(row, shape):
    """Those axes of a kernel that are outputs."""
    return shape[row.change.inputs :]


def _parts(row, theirs, variables, name):
    """(path, what a tensor says for it) for each variable of a row."""
    table.check_shape(row, name, theirs, variables)
    return zip(row.paths, table.parts_of(row, theirs, variables), strict=True)


def _scale(module, config, first, second):
    """The factor on `second @ first`, which is added to a matrix (F, D) of theirs."""
    if second is None or len(first.shape) != 2 or len(second.shape) != 2 or first.shape[0] != second.shape[1]:
        shapes = first.shape, second and second.shape
        raise ValueError(f"The adapter {module!r} must be matrices (r, D) and (F, r). Received: {shapes}")
    rank = _of_module(config, "rank_pattern", module, "r")
    alpha = _of_module(config, "alpha_pattern", module, "lora_alpha")
    if not rank or rank != first.shape[0] or not isinstance(alpha, (int, float)):
        raise ValueError(
            f"{CONFIG} must say the rank and the scale of {module!r}, whose matrix has rank {first.shape[0]}. "
            f"Received: r={rank!r}, lora_alpha={alpha!r}"
        )
    return alpha / (rank**0.5 if config.get("use_rslora") else rank)


def _of_module(config, patterns, module, default):
    """What a dict of the config says for the end of a module's name, else what holds for all."""
    found = config.get(patterns) or {}
    if not isinstance(found, dict) or not all(NAME.fullmatch(name) for name in found):
        raise ValueError(f"`{patterns}` of {CONFIG} must name modules, without wild cards. Received: {found!r}")
    matching = [value for name, value in found.items() if f".{module}".endswith(f".{name}")]
    return matching[0] if matching else config.get(default)
