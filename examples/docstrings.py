"""Long texts and their summaries that every Python has: the bodies of docstrings, and their first lines.

train, valid, test = find_docstrings(limit=12_000)
train[0]    # ('This is a 5-tuple, of the same form as ...', 'Return release in which this feature will ...')

All that is found in one file is in one part, and in the same part for every script: what one is tested on, another one
has not been pretrained on.
"""

import importlib.util
import inspect
import re

import keras_transformer as kt
import reading

PACKAGES = ("numpy", "keras", "scipy", "matplotlib", "sklearn", "jax", "torch", "tensorflow", "transformers")
SECTION = re.compile(r"^Parameters\n-+\n((?:.*\n?)*?)(?=\n\S.*\n-{3,}|\Z)", re.MULTILINE)
PARAMETER = re.compile(r"^(\w+) : (.+)\n((?: {4}.*\n)+)", re.MULTILINE)  # up to an empty line
DOCSTRING = re.compile(r':[ ]*\n\s+[rR]?"""(.+?)"""', re.DOTALL)  # behind a colon that ends a line


def find_docstrings(limit):
    """(train, valid, test): `TextPairs` (body, first line), at most `limit` together, none twice."""

    def pairs(source):
        for text in DOCSTRING.findall(source):
            line, _, body = inspect.cleandoc(text).partition("\n\n")
            line, body = " ".join(line.split()), " ".join(body.split())
            if 3 <= len(line.split()) <= 20 and len(body.split()) >= 12:
                yield body, line

    parts = in_parts(source_files(), pairs, limit)
    return tuple(kt.data.TextPairs(part, "docstrings") for part in parts)


def find_texts(limit):
    """(train, valid, test): lists of the same as one text each, the first line in front."""
    return tuple([f"{line} {body}" for body, line in part] for part in find_docstrings(limit))


def find_parameters(limit, longest=50):
    """(train, valid, test): for each docstring its parameters one after the other, (name, type, what it is) each.

    They are the first ones of a docstring in NumPy's style, as many as have no more than `longest` words together.
    """

    def parameters(source):
        for text in DOCSTRING.findall(source):
            section = SECTION.search(inspect.cleandoc(text))
            kept, words = [], 0
            for cells in PARAMETER.findall(section[1] + "\n" if section else ""):
                cells = tuple(" ".join(cell.split()) for cell in cells)
                words += sum(len(cell.split()) for cell in cells)
                if words > longest or not all(cells):
                    break
                kept.append(cells)
            if kept:
                yield tuple(kept)

    files = source_files("numpy", "scipy", "sklearn", "matplotlib")
    return in_parts(files, parameters, limit)


def in_parts(files, find, limit, held_out=0.06):
    """(train, valid, test): what `find(source)` finds in files, each once, at most `limit` together."""
    files_of = ([], [], [])
    for path in files:
        place = int(reading.same("/".join(path.parts[-3:])), 16) / 16**16  # the same wherever packages are installed
        files_of[1 if place < held_out else 2 if place < 2 * held_out else 0].append(path)
    rooms = [max(1, round(limit * share)) for share in (1 - 2 * held_out, held_out, held_out)]
    parts, seen, broken = ([], [], []), set(), []
    for part, paths, room in reversed(list(zip(parts, files_of, rooms))):  # what is to be trained on gives way
        for path in paths:
            source = path.read_text(encoding="utf-8", errors="replace")
            if "\ufffd" in source:
                broken.append(path)
                continue
            part += [found for found in dict.fromkeys(find(source)) if found not in seen]
            seen.update(part)
            if len(part) >= room:
                break
        del part[room:]
    if broken:
        print(f"{len(broken):,} files are not UTF-8 or hold signs for what is not, such as {broken[0]}: left out")
    return parts


def source_files(*packages):
    """The files of Python of these packages, or of its standard library and all that are known here."""
    if not packages:
        yield from reading.python_files()
    for package in packages or PACKAGES:
        if spec := importlib.util.find_spec(package):
            yield from reading.python_files(spec.submodule_search_locations[0])
