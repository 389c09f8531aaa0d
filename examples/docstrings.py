"""Long texts and their summaries that every Python has: the bodies of docstrings, and their first lines.

pairs = find_docstrings(limit=12_000)
pairs[0]    # ('This is a 5-tuple, of the same form as ...', 'Return release in which this feature will ...')
"""

import importlib.util
import inspect
import re

import keras_transformer as kt
import tasks

PACKAGES = ("numpy", "keras", "scipy", "matplotlib", "sklearn", "jax", "torch", "tensorflow", "transformers")
DOCSTRING = re.compile(r':[ ]*\n\s+[rR]?"""(.+?)"""', re.DOTALL)  # behind a colon that ends a line


def find_docstrings(limit):
    """`TextPairs` (body, first line) from the standard library and installed packages, at most `limit`, none twice."""
    found = {}
    for path in source_files():
        for text in DOCSTRING.findall(path.read_text(encoding="utf-8", errors="replace")):
            line, _, body = inspect.cleandoc(text).partition("\n\n")
            line, body = " ".join(line.split()), " ".join(body.split())
            if 3 <= len(line.split()) <= 20 and len(body.split()) >= 12 and "\ufffd" not in text:
                found[body, line] = None
        if len(found) >= limit:
            break
    return kt.data.TextPairs(list(found)[:limit], "docstrings")


def source_files():
    yield from tasks.python_files()
    for package in PACKAGES:
        if spec := importlib.util.find_spec(package):
            yield from tasks.python_files(spec.submodule_search_locations[0])
