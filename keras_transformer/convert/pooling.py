"""How a folder of sentence-transformers makes one vector of the states of its model.

Source: the layout of https://github.com/UKPLab/sentence-transformers: `modules.json` lists what a text passes through,
each with a folder of its own. Without the list there is at most the one that pools.
"""

import os
from types import MappingProxyType

from keras_transformer.convert import files

FOLDER, MODULES = "1_Pooling", "modules.json"
# Their entries and the `pooling` of `with_head`.
MODES = MappingProxyType(
    {
        "pooling_mode_cls_token": "first",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_lasttoken": "last",
    }
)
TYPE = "sentence_transformers.models."
KNOWN = ("Transformer", "Pooling", "Normalize")  # the vectors of `with_head` have length 1 in any case


def read_pooling(directory):
    """The `pooling` that the folder says; "mean", the default there, where it says nothing.

    Raises:
        ValueError: it says several at once, one that `with_head` has not, or that something else becomes of a text.
    """
    name, is_listed = _pooling_folder(directory)
    folder = files.folder_of(directory) / name
    if not folder.is_dir() or folder.is_symlink():
        if is_listed:
            raise ValueError(f"{MODULES} says that {name!r} pools, and there is no such folder.")
        return "mean"
    config = files.read_json(folder, files.CONFIG)
    chosen = [mode for mode, value in config.items() if mode.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in MODES:
        raise ValueError(f"{name}/{files.CONFIG} must say one of {[*MODES]}. Received: {chosen}")
    return MODES[chosen[0]]


def _pooling_folder(directory):
    """The name of the folder that says how to pool, by `modules.json` where there is one, and whether that lists it."""
    found, is_listed = FOLDER, False
    if not os.path.lexists(files.folder_of(directory) / MODULES):
        return found, is_listed
    for module in files.read_json(directory, MODULES, list):
        module = module if isinstance(module, dict) else {}
        kind, path = (str(module.get(key)) for key in ("type", "path"))
        kind = kind.rpartition(".")[-1]
        if kind not in KNOWN:
            raise ValueError(f"{MODULES} has a module of the type {module.get('type')!r}; {[*KNOWN]} are read.")
        if kind == "Transformer" and path not in ("", "."):
            raise ValueError(f"{MODULES} says that the model is in {path!r}: load that folder.")
        if kind == "Pooling":
            if os.path.basename(path) != path or path in ("", ".", ".."):
                raise ValueError(f"{MODULES} says that {path!r} pools, which is no folder of it.")
            found, is_listed = path, True
    return found, is_listed


def written(pooling, hidden_dim):
    """The files of a folder whose model pools like this, {path: what the JSON says}.

    Raises:
        ValueError: sentence-transformers has no such pooling.
    """
    if pooling not in MODES.values():
        raise ValueError(f"sentence-transformers has no pooling={pooling!r}; it has {[*MODES.values()]}.")
    paths = {"Transformer": "", "Pooling": FOLDER, "Normalize": "2_Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": TYPE + kind} for i, (kind, path) in enumerate(paths.items())
    ]
    modes = {mode: ours == pooling for mode, ours in MODES.items()}
    config = {"word_embedding_dimension": hidden_dim, **modes}
    return {MODULES: modules, f"{FOLDER}/{files.CONFIG}": config, f"{paths['Normalize']}/{files.CONFIG}": {}}
