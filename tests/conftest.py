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

import keras_transformer as kt

kt.training.end_epochs_at_once()  # else each `fit` on TensorFlow can take twice its time, compiling included


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
