"""Who may import whom, and what the package needs; each test names all that is wrong."""

import ast
import functools
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "keras_transformer"
NAMES = sorted(str(path.relative_to(ROOT / PACKAGE)) for path in (ROOT / PACKAGE).rglob("*.py"))

# Strictly downward: a part imports itself and parts of a lower rank.
RANKS = {
    "arguments": -1,
    "files": -1,
    "weights": -1,
    "ops": 0,
    "layers": 1,
    "models": 2,
    "generation": 3,
    "convert": 3,
    "training": 3,
    "data": 3,
    "objectives": 4,
    "inspect": 4,
    "testing": 4,
}
CORE = {"keras", "numpy"}
BACKENDS = {"tensorflow", "jax", "jaxlib", "torch"}
EXTRAS = {"tokenizers", "sacrebleu", "transformers", "safetensors", "keras_hub", "tensorflow_datasets", "matplotlib"}
IMPORT_A_BACKEND = {"generation/compile.py", "training/epoch_ends.py"}
ASKS_FOR_THE_BACKEND = {
    *IMPORT_A_BACKEND,
    "ops/attention.py",
    "ops/update.py",
    "training/losses.py",
}  # by name, to take a faster way

UNSAFE = re.compile(
    r"\bLambda\b|\bpickle\b|\bdill\b|\bmarshal\b|\beval\(|\bexec\(|safe_mode\s*=\s*False|enable_unsafe_deserialization"
)


@functools.cache
def text_of(name):
    return (ROOT / PACKAGE / name).read_text(encoding="utf-8")


@functools.cache
def imports(name):
    """(module, whether it is imported when the file is) of all that a file imports."""
    tree = ast.parse(text_of(name))
    inside = {id(x) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for x in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        at_once = id(node) not in inside
        if isinstance(node, ast.Import):
            found += [(alias.name, at_once) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # `from keras_transformer import layers` imports a part, whose name is not in `module`
            module = "." * node.level + (node.module or "")
            found += [(f"{module}.{alias.name}", at_once) for alias in node.names]
    return found


def part_of(name):
    return name.split("/")[0].removesuffix(".py")


def test_no_import_is_relative():
    assert [(name, module) for name in NAMES for module, _ in imports(name) if module.startswith(".")] == []


def test_imports_point_downward():
    upward = []
    for name in set(NAMES) - {"__init__.py"}:
        imported = {module.split(".")[1] for module, _ in imports(name) if module.startswith(f"{PACKAGE}.")}
        upward += [(name, part) for part in imported - {part_of(name)} if RANKS[part] >= RANKS[part_of(name)]]
    assert upward == []


def test_every_part_has_a_rank():
    assert set(map(part_of, NAMES)) - {"__init__"} <= set(RANKS)


def test_only_keras_and_numpy_are_needed():
    free, wrong = sys.stdlib_module_names | CORE | {PACKAGE}, []
    for name in NAMES:
        may_be_imported_later = BACKENDS if name in IMPORT_A_BACKEND else EXTRAS
        for module, at_once in imports(name):
            distribution = module.split(".")[0]
            if distribution not in free and (at_once or distribution not in may_be_imported_later):
                wrong.append((name, module))
    assert wrong == []


def test_keras_is_used_through_its_public_names():
    assert [name for name in NAMES if re.search(r"\bkeras\.src\b", text_of(name))] == []
    assert [name for name in NAMES if any(module.startswith("keras.src") for module, _ in imports(name))] == []
    assert {name for name in NAMES if re.search(r"\bbackend\(\)", text_of(name))} <= ASKS_FOR_THE_BACKEND


def test_nothing_opens_a_door_to_code_in_files():
    assert {name: UNSAFE.findall(text_of(name)) for name in NAMES if UNSAFE.search(text_of(name))} == {}


def test_the_search_for_unsafe_code_finds_it():
    unsafe = ["keras.layers.Lambda(f)", "import pickle", "eval(text)", "load_model(path, safe_mode = False)"]
    assert all(UNSAFE.search(code) for code in unsafe)
    assert not any(UNSAFE.search(code) for code in ["model.evaluate(x)", "lambda x: x", "safe_mode=True"])
