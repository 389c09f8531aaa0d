"""Every test starts from the same seed and an empty Keras session, on the backend that KERAS_BACKEND names."""

import gc
import os
from pathlib import Path

# read at import by TensorFlow and the Hugging Face libraries, so before Keras
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")
# PyTorch: test files share the cores already, and threads that wait for each other take twice the time of none.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# JAX, and TensorFlow where it uses XLA: compiling well takes several times as long as running these few steps.
in_a_hurry = "xla_backend_optimization_level=0 xla_llvm_disable_expensive_passes=true xla_cpu_use_fusion_emitters=false"
in_a_hurry += " xla_cpu_parallel_codegen_split_count=1"
os.environ.setdefault("XLA_FLAGS", " ".join(f"--{flag}" for flag in in_a_hurry.split()))
# On JAX what one module, worker or run has compiled serves the others: most of the time goes into compiling.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import keras
import pytest

from keras_transformer.generation import compile as compilation

# On TensorFlow tracing and compiling what decodes takes most of the time, and what XLA compiled is kept as long as the
# process lives: 10 GB for all of these modules. They run it eagerly, as PyTorch does; a test that is about compiling,
# or tries a way to write that no other module compiles, has the mark `compiled`.
EAGERLY = {
    *("test_beam", "test_beam_groups", "test_constraints", "test_contrastive", "test_coverage", "test_decoder_inputs"),
    *("test_foreign_layers", "test_frequencies", "test_kinds_of_models", "test_prefill", "test_recurrent"),
    *("test_replay", "test_sampling", "test_speculative", "test_cache_kinds", "test_check"),
}
COMPILES = [True]


def compiled_or_not(compile_function):
    """`compile_function` of a backend, whose result runs as it is while `COMPILES` says so."""

    def compile_on_demand(function, *others):
        compiled = compile_function(function, *others)
        return lambda *arguments, **static: (compiled if COMPILES[0] else function)(*arguments, **static)

    return compile_on_demand


if keras.backend.backend() == "tensorflow":
    compilation._tensorflow = compiled_or_not(compilation._tensorflow)


@pytest.fixture(autouse=True)
def compiles_or_not(request):
    module = request.module.__name__.rpartition(".")[2]
    COMPILES[0] = module not in EAGERLY or request.node.get_closest_marker("compiled") is not None
    yield
    COMPILES[0] = True


def pytest_report_header():
    return f"keras {keras.__version__} on {keras.backend.backend()}"


def pytest_collection_finish():
    """From here on garbage is collected between tests alone, and what was imported is none.

    TensorFlow can wait for ever where the data of an earlier training is freed in the middle of another one.
    """
    gc.collect()
    gc.freeze()
    gc.disable()


@pytest.fixture(autouse=True, scope="module")
def fresh_compilations():
    """On JAX every compiled function keeps areas of memory mapped; some thousand of them, and the compiler crashes."""
    yield
    gc.collect()
    if keras.backend.backend() == "jax":
        import jax

        jax.clear_caches()


@pytest.fixture(autouse=True)
def fresh_session():
    keras.utils.set_random_seed(0)
    yield
    keras.utils.clear_session(free_memory=False)
    if gc.get_count()[0] > 150_000:  # models hold what was compiled for them, and are held by themselves
        gc.collect()
