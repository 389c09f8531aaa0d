"""The tokenizer of a checkpoint folder."""

from keras_transformer.convert.files import folder_of, inside

FILE = "tokenizer.json"


def load_tokenizer(directory):
    """The tokenizer in a folder's `tokenizer.json`, for `kt.generate(..., tokenizer=)` and for encoding by hand.

    It neither pads nor truncates, whatever the file says: `kt.generate` takes ragged texts, and a text that is cut
    without a word is another text.

    Args:
        directory: the folder. Nothing is downloaded.

    Returns:
        A `tokenizers.Tokenizer`: `encode(text).ids`, `decode(ids)`.

    Raises:
        ValueError: there is no such file, or it is damaged. Of a folder with `vocab.txt`, or `vocab.json` and
            `merges.txt` alone, `keras_hub.tokenizers` makes one.
        ImportError: without the `tokenizers` library.

    Example: `kt.generate(model, "The sea", 20, tokenizer=load_tokenizer("folder"))`
    """
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError('Tokenizers need tokenizers: pip install "keras-transformer-kit[text]"') from error
    try:
        path = inside(folder_of(directory), FILE)
    except ValueError as error:
        raise ValueError(f"{error} Of vocabulary files alone `keras_hub.tokenizers` makes a tokenizer.") from error
    try:
        tokenizer = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare `Exception`
        raise ValueError(f"{FILE} is no tokenizer that can be read: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
