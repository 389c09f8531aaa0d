"""What a safetensors file of any kind holds is read as it is, one tensor at a time (B42)."""

import json
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from keras_transformer.convert import files

# As written by hand, after the published layout: (name, type there, shape, bytes, what it means).
BRAIN_FLOATS = np.array([0x3F80, 0xC020, 0x4049, 0x7FC0, 0x7F80], "<u2")
BY_HAND = [
    ("brain", "BF16", [5], BRAIN_FLOATS.tobytes(), np.array([1.0, -2.5, 3.140625, np.nan, np.inf], "float32")),
    ("half", "F16", [2], np.array([0x3E00, 0xFC00], "<u2").tobytes(), np.array([1.5, -np.inf], "float16")),
    ("single", "F32", [1, 2], np.array([[0x3F800000, 1]], "<u4").tobytes(), np.array([[1.0, 1e-45]], "float32")),
    ("whole", "I64", [2], np.array([-1, 2**62], "<i8").tobytes(), np.array([-1, 2**62])),
    ("scalar", "F32", [], np.array(0xC0000000, "<u4").tobytes(), np.array(-2.0, "float32")),
    ("empty", "F32", [0, 3], b"", np.zeros((0, 3), "float32")),
]


@pytest.fixture
def folder(tmp_path):
    header, data = {}, b""
    for name, kind, shape, content, _ in BY_HAND:
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    said = json.dumps(header).encode()
    said += b" " * (-len(said) % 8)
    (tmp_path / files.WHOLE).write_bytes(len(said).to_bytes(8, "little") + said + data)
    return tmp_path


def test_every_type_and_shape_is_read_bit_for_bit(folder):
    tensors = files.Tensors(folder)
    assert [*tensors] == [name for name, *_ in BY_HAND]
    for name, _, shape, content, meaning in BY_HAND:
        found = np.asarray(tensors[name])
        assert found.shape == tuple(shape) and found.tobytes() == content
        np.testing.assert_array_equal(found.astype(meaning.dtype), meaning)


def test_they_are_written_as_they_were_read(folder, tmp_path):
    before = {name: np.asarray(x) for name, x in files.Tensors(folder).items()}
    files.write_folder(tmp_path / "new", {}, before)
    after = safetensors.numpy.load_file(tmp_path / "new" / files.WHOLE)
    assert after.keys() == before.keys()
    for name, x in before.items():
        assert after[name].dtype == x.dtype and after[name].shape == x.shape and after[name].tobytes() == x.tobytes()


def test_sixteen_bits_are_rounded_to_the_nearest_even():
    """As `save_pretrained` casts: halfway between two values it takes the one whose last bit is 0."""
    halfway = np.array([0x3F808000, 0x3F818000, 0x3F808001], "<u4").view("float32")
    found = halfway.astype(ml_dtypes.bfloat16).view("uint16")
    np.testing.assert_array_equal(found, [0x3F80, 0x3F82, 0x3F81])


def test_reading_one_after_the_other_takes_the_memory_of_one(tmp_path):
    size = 2**20
    files.write_folder(tmp_path / "new", {}, {str(i): np.full(size // 4, i, "float32") for i in range(8)})
    tensors = files.Tensors(tmp_path / "new")
    tracemalloc.start()
    total = sum(float(np.asarray(x).mean()) for x in tensors.values())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == sum(range(8)) and peak < 1.5 * size
