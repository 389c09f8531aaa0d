"""Who may import whom, what the package needs, and what `import keras_transformer` brings along."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "keras_transformer"
MODULES = sorted((ROOT / PACKAGE).rglob("*.py"))
NAMES = [str(path.relative_to(ROOT / PACKAGE)) for path in MODULES]

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
COMPILES = "generation/compile.py"  # the only file that imports a backend
ASKS_FOR_THE_BACKEND = {
    COMPILES,
    "ops/attention.py",
    "ops/update.py",
    "training/losses.py",
}  # by name, to take a faster way

UNSAFE = re.compile(
    r"\bLambda\b|\bpickle\b|\bdill\b|\bmarshal\b|\beval\(|\bexec\(|safe_mode\s*=\s*False|enable_unsafe_deserialization"
)


def imports(path):
    """(module, whether it is imported when the file is) of all that a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(x) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for x in ast.walk(node)}
    for node in ast.walk(tree):
        at_once = id(node) not in inside
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            # `from keras_transformer import layers` imports a part, whose name is not in `module`
            yield from ((f"{node.module}.{alias.name}", at_once) for alias in node.names)


def part_of(module):
    return module.split(".")[1]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "__init__.py"])
def test_imports_point_downward(name):
    part = name.split("/")[0].removesuffix(".py")
    imported = {part_of(module) for module, _ in imports(ROOT / PACKAGE / name) if module.startswith(f"{PACKAGE}.")}
    assert {other for other in imported - {part} if RANKS[other] >= RANKS[part]} == set()


def test_every_part_has_a_rank():
    assert {name.split("/")[0].removesuffix(".py") for name in NAMES} - {"__init__"} <= set(RANKS)


@pytest.mark.parametrize("name", NAMES)
def test_only_keras_and_numpy_are_needed(name):
    for module, at_once in imports(ROOT / PACKAGE / name):
        distribution = module.split(".")[0]
        if distribution in sys.stdlib_module_names | CORE | {PACKAGE}:
            continue
        assert not at_once, f"{module} is imported when {name} is"
        assert distribution in (BACKENDS if name == COMPILES else EXTRAS), f"{name} imports {module}"


@pytest.mark.parametrize("name", NAMES)
def test_keras_is_used_through_its_public_names(name):
    text = (ROOT / PACKAGE / name).read_text(encoding="utf-8")
    assert not re.search(r"\bkeras\.src\b", text)
    assert [module for module, _ in imports(ROOT / PACKAGE / name) if module.startswith("keras.src")] == []
    if re.search(r"\bbackend\(\)", text):
        assert name in ASKS_FOR_THE_BACKEND


@pytest.mark.parametrize("name", NAMES)
def test_nothing_opens_a_door_to_code_in_files(name):
    text = (ROOT / PACKAGE / name).read_text(encoding="utf-8")
    assert UNSAFE.findall(text) == []


def test_the_search_for_unsafe_code_finds_it():
    unsafe = ["keras.layers.Lambda(f)", "import pickle", "eval(text)", "load_model(path, safe_mode = False)"]
    assert all(UNSAFE.search(code) for code in unsafe)
    assert not any(UNSAFE.search(code) for code in ["model.evaluate(x)", "lambda x: x", "safe_mode=True"])


@pytest.fixture(scope="module")
def brought_along():
    """The modules that `import keras_transformer` loads after `import keras`, in a fresh process."""
    code = (
        "import json, sys, keras; before = set(sys.modules); import keras_transformer; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend(), "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def test_import_brings_the_package_alone(brought_along):
    """No extra, no backend beyond what `import keras` loads, TensorFlow under JAX and PyTorch least of all."""
    assert f"{PACKAGE}.layers.attention" in brought_along
    foreign = {module.split(".")[0] for module in brought_along} - set(sys.stdlib_module_names) - {PACKAGE}
    assert foreign - CORE == set()
