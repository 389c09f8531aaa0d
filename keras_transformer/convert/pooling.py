"""How a folder of sentence-transformers pools the states of its model."""

from keras_transformer.convert import files

FOLDER = "1_Pooling"
# Their entries and the `pooling` of `with_head`.
MODES = {"pooling_mode_cls_token": "first", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max"}


def read_pooling(directory):
    """The `pooling` that `1_Pooling/config.json` says; "mean", the default there, without such a file.

    Raises:
        ValueError: it says several at once, or one that `with_head` has not.
    """
    folder = files.folder_of(directory) / FOLDER
    if not folder.is_dir() or folder.is_symlink():
        return "mean"
    config = files.read_json(folder, files.CONFIG)
    chosen = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in MODES:
        raise ValueError(f"{FOLDER}/{files.CONFIG} must say one of {[*MODES]}. Received: {chosen}")
    return MODES[chosen[0]]
