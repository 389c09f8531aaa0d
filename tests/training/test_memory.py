"""Memory that is kept: the pages of one array serve the next."""

import subprocess
import sys

import pytest

import keras_transformer as kt
from keras_transformer.training import memory

# Fills arrays of 40 MB one after the other and says how many pages the system had to make for that. The module is
# imported by itself, without what its package takes to start.
FAULTS = """
import importlib.util, resource, sys
import numpy as np

spec = importlib.util.spec_from_file_location("memory", sys.argv[2])
memory = importlib.util.module_from_spec(spec)
spec.loader.exec_module(memory)
print(memory.keep_memory() if sys.argv[1] == "kept" else None)
np.ones(10_000_000, "float32")
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    np.ones(10_000_000, "float32")
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(way):
    command = [sys.executable, "-c", FAULTS, way, memory.__file__]
    answer, count = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return answer, int(count)


def test_pages_are_made_once():
    """Of 10,000 pages of 4 KB in each array, or of fewer, larger ones."""
    answer, kept = faults("kept")
    if answer == "True":  # elsewhere it does nothing
        assert kept < faults("as it comes")[1] / 10


@pytest.mark.parametrize("system, library", [("Windows", "glibc"), ("Darwin", ""), ("Linux", "musl")])
def test_other_systems_have_no_such_switch(system, library, monkeypatch):
    monkeypatch.setattr(memory.platform, "system", lambda: system)
    monkeypatch.setattr(memory.platform, "libc_ver", lambda: (library, ""))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: pytest.fail("not to be called"))
    assert kt.training.keep_memory() is False
