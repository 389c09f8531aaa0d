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
SECTION = re.compile(r"^Parameters\n-+\n((?:.*\n?)*?)(?=\n\S.*\n-{3,}|\Z)", re.MULTILINE)
PARAMETER = re.compile(r"^(\w+) : (.+)\n((?: {4}.*\n)+)", re.MULTILINE)  # up to an empty line
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


def find_texts(limit):
    """The same as one text each, the first line in front."""
    return [f"{line} {body}" for body, line in find_docstrings(limit)]


def find_parameters(limit, longest=50):
    """(file, [(name, type, what it is), ...]), parameters that are described one after the other in a docstring.

    Of each docstring in NumPy's style the first parameters that have no more than `longest` words together.
    """
    found = {}
    for path in source_files("numpy", "scipy", "sklearn", "matplotlib"):
        for text in DOCSTRING.findall(path.read_text(encoding="utf-8", errors="replace")):
            section = SECTION.search(inspect.cleandoc(text))
            kept, words = [], 0
            for cells in PARAMETER.findall(section[1] + "\n" if section else ""):
                cells = tuple(" ".join(cell.split()) for cell in cells)
                words += sum(len(cell.split()) for cell in cells)
                if words > longest or not all(cells):
                    break
                kept.append(cells)
            if kept:
                found.setdefault(tuple(kept), path)
        if len(found) >= limit:
            break
    return [(path, parameters) for parameters, path in found.items()][:limit]


def source_files(*packages):
    """The files of Python of these packages, or of its standard library and all that are known here."""
    if not packages:
        yield from tasks.python_files()
    for package in packages or PACKAGES:
        if spec := importlib.util.find_spec(package):
            yield from tasks.python_files(spec.submodule_search_locations[0])
