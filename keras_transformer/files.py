"""Files that appear whole or not at all."""

import contextlib
import os
from pathlib import Path


@contextlib.contextmanager
def written_whole(path):
    """A temporary path beside `path`, with its suffix, that takes its place if all goes well and is removed if not.

    Args:
        path: file to write.

    Example:

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "note.txt")
    >>> with written_whole(path) as unfinished:
    ...     _ = unfinished.write_text("done")
    >>> os.listdir(os.path.dirname(path))
    ['note.txt']
    """
    path = Path(path)
    unfinished = path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
