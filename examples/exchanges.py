"""What people say to each other and what is answered, as the package `chatterbot-corpus` has it."""

import importlib.util
from pathlib import Path

import keras_transformer as kt
import reading


def exchanges(language, limit):
    """(what is said, what is answered) of the conversations of chatterbot-corpus, each once."""
    import yaml

    spec = importlib.util.find_spec("chatterbot_corpus")
    if not spec:
        raise ImportError('chatterbot-corpus is missing: pip install "keras-transformer-kit[examples]"')
    folder = Path(spec.submodule_search_locations[0]) / "data"
    languages = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if language not in languages:
        raise ValueError(f"chatterbot-corpus has no language {language!r}. It has: {', '.join(languages)}")
    found = {}
    for _, text in reading.read_all(sorted((folder / language).glob("*.yml"))):
        for lines in yaml.safe_load(text)["conversations"]:
            lines = [" ".join(str(line).split()) for line in lines]
            found |= dict.fromkeys((said, reply) for said, reply in zip(lines, lines[1:]) if said and reply)
    return kt.data.TextPairs(list(found)[:limit], f"chatterbot-corpus, {language}")
