"""The files of a checkpoint folder, read without trusting them, and written whole or not at all.

Nothing outside the folder is opened, nothing in it is executed, and a tensor is read when it is asked for.

Source: the layout of Hugging Face's hub: `config.json` beside `model.safetensors`, or beside several files and
`model.safetensors.index.json`, which says where each tensor is (https://huggingface.co/docs/safetensors).
"""

import json
import math
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

CONFIG, GENERATION = "config.json", "generation_config.json"
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ALIGNMENT = 64  # bytes
LARGEST_JSON = 32 * 2**20  # bytes; an index of 100,000 tensors takes 10 million
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64", "I64": "int64", "I32": "int32"}
DTYPES |= {"I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool"}


class Stored(NamedTuple):
    """A tensor in a file; `np.asarray` reads it into memory of its own, so that none of the file stays in memory.

    Attributes:
        file: the open file.
        begin: int, the place of its first byte.
        shape: tuple of int.
        dtype: name of its type.
    """

    file: Any
    begin: int
    shape: tuple
    dtype: str

    def __array__(self, dtype=None, copy=None):
        kind = np.dtype(self.dtype)
        self.file.seek(self.begin)
        array = _read(self.file, math.prod(self.shape) * kind.itemsize).view(kind).reshape(self.shape)
        return array if dtype is None else array.astype(dtype)


def _read(file, size):
    """The next bytes of a file, in memory that begins where JAX takes it over as it is."""
    memory = np.empty(size + ALIGNMENT, "uint8")
    memory = memory[-memory.ctypes.data % ALIGNMENT :][:size]
    view, done = memoryview(memory), 0
    while done < size:
        count = file.readinto(view[done : done + 2**30])  # systems read no more than 2 GB at once
        if not count:
            raise ValueError(f"{file.name} ends in the middle of a tensor.")
        done += count
    return memory


class Tensors(Mapping):
    """The tensors of a folder by name, each a `Stored`.

    Args:
        directory: folder with `model.safetensors`, or an index and the files that it names.
        whole: name of another file that holds all of them.

    Raises:
        ValueError: a file is missing, broken, or not in the folder; a tensor is missing, or in two files, or of a type
            that NumPy has not.
    """

    def __init__(self, directory, whole=WHOLE):
        directory = folder_of(directory)
        self._stored = {}
        places = _places(directory) if whole == WHOLE else {}
        for name in sorted(set(places.values())) if places else [whole]:
            for tensor, stored in _tensors_of(inside(directory, name)):
                if tensor in self._stored:
                    raise ValueError(f"The tensor {tensor!r} is in two files, one of which is {name!r}.")
                if places and places.get(tensor) != name:
                    raise ValueError(f"{INDEX} does not say that the tensor {tensor!r} is in {name!r}.")
                self._stored[tensor] = stored
        missing = sorted(set(places) - set(self._stored))
        if missing:
            raise ValueError(f"{INDEX} names tensors that are in no file: {missing[:9]}")

    def __getitem__(self, name):
        return self._stored[name]

    def __iter__(self):
        return iter(self._stored)

    def __len__(self):
        return len(self._stored)

    @property
    def num_elements(self):
        """Numbers in all tensors together."""
        return sum(int(np.prod(stored.shape, dtype=object)) for stored in self._stored.values())

    def float_dtype(self, ignored=()):
        """The type of the floating-point tensors, float32 if there are several; None without any.

        Those whose names are matched by one of the regular expressions `ignored` do not count.
        """
        kept = [x for name, x in self._stored.items() if not any(re.fullmatch(pattern, name) for pattern in ignored)]
        found = {stored.dtype for stored in kept} & {"float64", "float32", "float16", "bfloat16"}
        return (found.pop() if len(found) == 1 else "float32") if found else None


def read_config(directory):
    """The dict in `config.json`.

    Raises:
        ValueError: there is none, or it is not a JSON object.
    """
    return read_json(directory, CONFIG)


def read_generation(directory):
    """The dict in `generation_config.json`, `{}` without one."""
    return read_json(directory, GENERATION) if os.path.lexists(folder_of(directory) / GENERATION) else {}


def read_json(directory, name, kind=dict):
    """The dict, or the list, in a JSON file of the folder.

    Raises:
        ValueError: the file is missing, larger than 32 MB, holds something else, or has a key twice.
    """
    path = inside(folder_of(directory), name)
    if path.stat().st_size > LARGEST_JSON:
        raise ValueError(f"{name} has {path.stat().st_size:,} bytes; at most {LARGEST_JSON:,} are read.")
    return _parsed(path.read_bytes(), name, kind)


def folder_of(directory):
    """The path of a folder that exists."""
    if not isinstance(directory, (str, os.PathLike)) or not os.path.isdir(directory):
        raise ValueError(f"`directory` must be a folder; nothing is downloaded. Received: directory={directory!r}")
    return Path(directory)


def write_folder(directory, config, tensors, max_shard_size=None, others=None, names=(CONFIG, WHOLE)):
    """A folder with a config, tensors, {name: array}, and other files, {path: JSON}, that appears whole or not at all.

    Its files are called as `names` say, unless the tensors take more than one.

    Raises:
        ValueError: there is something of this name already.
    """
    save_file = _safetensors().numpy.save_file
    directory = Path(directory).absolute()
    if os.path.lexists(directory):
        raise ValueError(f"A checkpoint is written to a new folder. Received one that exists: {directory}")
    unfinished = directory.with_name(f".{directory.name}.{os.getpid()}")
    shards = [dict(tensors)] if max_shard_size is None else _shards(tensors, max_shard_size)
    config_name, whole = names
    names = [whole] if len(shards) == 1 else [_numbered(i + 1, len(shards)) for i in range(len(shards))]
    try:
        unfinished.mkdir(parents=True)
        for name, shard in zip(names, shards, strict=True):
            arrays = {key: np.asarray(x, order="C") for key, x in shard.items()}
            save_file(arrays, unfinished / name, metadata={"format": "pt"})
        if len(shards) > 1:
            places = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
            size = sum(x.nbytes for x in tensors.values())
            _write_json(unfinished / INDEX, {"metadata": {"total_size": size}, "weight_map": places})
        _write_json(unfinished / config_name, config)
        for path, content in (others or {}).items():
            (unfinished / path).parent.mkdir(exist_ok=True)
            _write_json(unfinished / path, content)
        unfinished.rename(directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _shards(tensors, max_shard_size):
    shards, room = [{}], max_shard_size
    for name, x in tensors.items():
        if x.nbytes > room and shards[-1]:
            shards.append({})
            room = max_shard_size
        shards[-1][name] = x
        room -= x.nbytes
    return shards


def _numbered(number, count):
    return f"model-{number:05}-of-{count:05}.safetensors"


def _write_json(path, content):
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def inside(directory, name):
    """The path of a file of the folder, which must be a regular file that lies in it."""
    if not isinstance(name, str) or Path(name).name != name or "\\" in name or "\0" in name or name in ("", ".", ".."):
        raise ValueError(f"A file of a checkpoint must lie in its folder. Received: {name!r}")
    path = directory / name
    if path.is_symlink() and path.resolve().parent != directory.resolve():
        raise ValueError(
            f"{name!r} is a link out of the folder {directory}. Of the hub's cache make a folder of files: "
            "`snapshot_download(..., local_dir=...)`."
        )
    if not path.is_file():
        others = sorted(p.name for p in directory.glob("*.bin")) if directory.is_dir() else []
        hint = f" Pickled weights are not read: {', '.join(others[:3])}." if others else ""
        raise ValueError(f"There is no file {name!r} in {directory}.{hint}")
    return path


def _places(directory):
    """Tensor name -> file name, as the index says; empty where one file holds all."""
    if (directory / WHOLE).exists() or not (directory / INDEX).exists():
        return {}
    places = read_json(directory, INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ValueError(f"{INDEX} must have a dict `weight_map` from tensors to files. Received: {places!r}")
    for name in {repr(name): name for name in places.values()}.values():
        inside(directory, name)
    return places


def _tensors_of(path):
    """Pairs of a name and a `Stored`."""
    safetensors = _safetensors()
    try:
        safetensors.safe_open(path, "np")  # refuses sizes, types and places that do not fit each other and the file
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path.name!r} is no safetensors file that can be read: {error}") from error
    file = open(path, "rb")
    size = int.from_bytes(file.read(8), "little")
    if size > LARGEST_JSON:
        raise ValueError(f"The header of {path.name!r} has {size:,} bytes; at most {LARGEST_JSON:,} are read.")
    for name, entry in _parsed(file.read(size), path.name).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"The tensor {name!r} must have one of the types {[*DTYPES]}. Received: {entry['dtype']}")
        begin = 8 + size + entry["data_offsets"][0]
        yield name, Stored(file, begin, tuple(entry["shape"]), DTYPES[entry["dtype"]])


def _safetensors():
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError('Checkpoints need safetensors: pip install "keras-transformer-kit[hf]"') from error
    return safetensors


def _parsed(data, name, kind=dict):
    """What JSON says, without a key twice, of which safetensors would take the last one."""

    def unique(pairs):
        found = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"{name} has the key {key!r} twice.")
            found[key] = value
        return found

    try:
        found = json.loads(data, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        if str(error).startswith(name):
            raise
        raise ValueError(f"{name} is no JSON that can be read: {error}") from error
    if not isinstance(found, kind):
        wanted = {dict: "object", list: "array"}[kind]
        raise ValueError(f"{name} must hold a JSON {wanted}. Received: {type(found).__name__}")
    return found
