"""Run by test_saving.py in a process of its own: `python reload.py FOLDER`.

Loads every FOLDER/*.keras on the backend of KERAS_BACKEND and writes what became of it to FOLDER/BACKEND.npz.
"""

import sys
from pathlib import Path

import keras
import numpy as np

folder = Path(sys.argv[1])
files = sorted(folder.glob("*.keras"))
results = {}

try:
    keras.models.load_model(files[0])
except Exception as error:
    results["error without the import"] = str(error)
else:
    results["error without the import"] = ""

import keras_transformer  # noqa: F401
from tests.backend import one_array, predict


def refuse():
    raise AssertionError("safe mode was switched off")


keras.config.enable_unsafe_deserialization = refuse
for file in files:
    model = keras.models.load_model(file)
    given = np.load(file.with_suffix(".npz"))
    inputs = [given[name] for name in sorted(given.files) if name.startswith("input")]
    inputs = inputs if len(inputs) > 1 else inputs[0]
    results[f"{file.stem} loaded"] = one_array(predict(model, inputs))
    if "targets" in given and given["backend"] == keras.backend.backend():
        model.fit(inputs, given["targets"], batch_size=len(given["targets"]), verbose=0)
        results[f"{file.stem} trained"] = predict(model, inputs)
np.savez(folder / f"{keras.backend.backend()}.npz", **results)
