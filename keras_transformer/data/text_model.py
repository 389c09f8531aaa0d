"""A text model on disk: `NAME.keras`, and beside it `NAME.tokenizer.json`, without which its ids mean nothing."""

from pathlib import Path

import keras

from keras_transformer import layers
from keras_transformer.data.tokenizers import Tokenizer
from keras_transformer.files import written_whole

WITH_LOGITS = (None, "language_model", "masked_lm")  # heads that end in a number for each id


def save_text_model(model, tokenizer, path):
    """Write a model and its tokenizer side by side, each whole or not at all.

    Args:
        model: a `keras.Model` that ends in logits (B, T, vocabulary_size), or in another head of `kt.models.with_head`.
        tokenizer: its `Tokenizer`.
        path: file to write, `NAME.keras`; the tokenizer goes to `NAME.tokenizer.json`.

    Raises:
        ValueError: if `path` does not end in `.keras`, or the tokenizer has not as many ids as the model.
        OSError: if the files cannot be written.

    Example:

    ```python
    save_text_model(model, tokenizer, "translator.keras")
    model, tokenizer = load_text_model("translator.keras")
    ```
    """
    path = Path(path)
    if path.suffix != ".keras":
        raise ValueError(f"`path` must end in '.keras'. Received: path={str(path)!r}")
    _check_sizes(model, tokenizer, path)
    with written_whole(path) as unfinished:
        model.save(unfinished)
        tokenizer.save(tokenizer_path(path))


def load_text_model(path):
    """Read what `save_text_model` wrote.

    Args:
        path: the file `NAME.keras`.

    Returns:
        `(model, tokenizer)`.

    Raises:
        ValueError: naming the path, if one of the two files is missing or damaged, or they do not belong together.
    """
    path = Path(path)
    try:
        model = keras.models.load_model(path)
    except Exception as error:  # whatever Keras, the archive and the weights' format run into
        raise ValueError(f"Cannot read a model from {str(path)!r}: {error}") from error
    tokenizer = Tokenizer.load(tokenizer_path(path))
    _check_sizes(model, tokenizer, path)
    return model, tokenizer


def tokenizer_path(path):
    """The path `NAME.tokenizer.json` for `NAME.keras`."""
    return Path(path).with_suffix(".tokenizer.json")


def _check_sizes(model, tokenizer, path):
    num_ids = _num_ids(model)
    if num_ids not in (None, tokenizer.vocabulary_size):
        raise ValueError(
            f"The model of {str(path)!r} and its tokenizer do not belong together: "
            f"the one knows {num_ids} ids, the other {tokenizer.vocabulary_size}."
        )


def _num_ids(model):
    """How many ids a model knows, by its logits or its card; None where neither says it."""
    if layers.read_head(model).get("head") not in WITH_LOGITS:
        return layers.read_card(model).get("vocabulary_size")
    shape = getattr(model, "output_shape", None)
    return shape[-1] if isinstance(shape, tuple) else None
