"""Pictures of a model at work, as image files. They need matplotlib: `pip install "keras-transformer-kit[plot]"`.

Letters: T query length, S key length.
"""

import warnings
from pathlib import Path

import numpy as np

from keras_transformer.files import written_whole
from keras_transformer.inspect.attention import attention_scores
from keras_transformer.layers import read_card

# Tried in this order behind matplotlib's own font, which knows no Chinese, Japanese or Korean.
_FALLBACK_FONTS = ("Noto Sans CJK JP", "Noto Sans CJK SC", "Hiragino Sans", "Yu Gothic", "Microsoft YaHei", "SimHei")

LARGEST, MOST_LABELS = 40, 120  # inches of a side, and labels beside it; of longer texts every second piece, or third


def plot_attention(scores, source_pieces, target_pieces, path, title=None):
    """Draw where each target piece looked in the source, as a heat map.

    Args:
        scores: `(T, S)` probabilities of one head, or a mean over heads, as `attention_scores` gives them.
        source_pieces: S str, what was looked at; they label the columns.
        target_pieces: T str, what looked; they label the rows.
        path: file to write, whole or not at all; its suffix names the format (`.png`, `.svg`, `.pdf`; PNG without one).
        title: str above the picture.

    Raises:
        ValueError: if `scores` is not a matrix with a row per target piece and a column per source piece, or matplotlib
            does not know the format.
        ImportError: if matplotlib is missing.

    Example:

    ```python
    plot_attention([[0.9, 0.1], [0.2, 0.8]], ["good", "morning"], ["Guten", "Morgen"], "attention.png")
    ```
    """
    scores, expected = np.asarray(scores), (len(target_pieces), len(source_pieces))
    if scores.shape != expected or 0 in expected:
        raise ValueError(
            "`scores` must have the shape (target pieces, source pieces), neither of them 0. "
            f"Received: scores.shape={scores.shape}, {expected[0]} target and {expected[1]} source pieces"
        )
    figure = _figure(*(min(size, LARGEST) for size in (2 + 0.32 * expected[1], 1.6 + 0.28 * expected[0])))
    axes = figure.subplots()
    image = axes.imshow(scores, cmap="viridis", vmin=0, aspect="auto")
    font = _font()  # a piece such as "$" is text, not a formula
    rows, columns = (range(0, size, -(-size // MOST_LABELS)) for size in expected)
    of_columns, of_rows = [source_pieces[i] for i in columns], [target_pieces[i] for i in rows]
    axes.set_xticks(columns, of_columns, rotation=90, fontfamily=font, parse_math=False)
    axes.set_yticks(rows, of_rows, fontfamily=font, parse_math=False)
    axes.set_title(title or "", fontfamily=font, parse_math=False)
    figure.colorbar(image, label="probability")
    _write(figure, path)


def plot_cross_attention(model, tokenizer, source, target, path):
    """Draw where an encoder-decoder looks in a source text while it writes a target text, piece by piece.

    The row of a piece shows where the model looked to choose it: the mean over the heads of the last cross-attention.

    Args:
        model: an encoder-decoder of `keras_transformer.models`, or another with inputs of the same names and attention
            layers called `cross_attention`.
        tokenizer: a `keras_transformer.data.Tokenizer`.
        source, target: str.
        path: file to write, whole or not at all; its suffix names the format (`.png`, `.svg`, `.pdf`; PNG without one).

    Raises:
        ValueError: if `source` is empty, or the model has no cross-attention.
        ImportError: if matplotlib is missing.

    Example:

    ```python
    plot_cross_attention(model, tokenizer, "in 3 days", "in 3 Tagen", "attention.png")
    ```
    """
    source_ids, target_ids = tokenizer.encode([source, target])
    if not source_ids:
        raise ValueError(f"`source` must hold a token at least. Received: source={source!r}")
    start = read_card(model).get("start_token_id")  # with which `generate` begins, too
    decoder_ids = [tokenizer.start_token_id if start is None else start, *target_ids]
    inputs = {"encoder_token_ids": [source_ids], "decoder_token_ids": [decoder_ids]}
    scores = attention_scores(model, {name: np.asarray(ids, "int32") for name, ids in inputs.items()})
    cross_scores = [of_layer for layer_path, of_layer in scores.items() if "cross_attention" in layer_path]
    if not cross_scores:
        raise ValueError(f"The model {model.name!r} has no layer called `cross_attention`. It has: {list(scores)}")
    source_pieces, target_pieces = map(tokenizer.pieces, (source_ids, [*target_ids, tokenizer.stop_token_id]))
    plot_attention(cross_scores[-1][0].mean(axis=0), source_pieces, target_pieces, path, title=target)


def plot_history(history, path):
    """Draw the curves of a training: a panel for each metric, with its validation twin in it.

    Args:
        history: what `fit` returns, or its `.history`: dict from name to one number per epoch. `val_x` shares the panel
            of `x`. A curve with fewer numbers is drawn at every second epoch, or third, ... (`validation_freq`).
        path: file to write, whole or not at all; its suffix names the format (`.png`, `.svg`, `.pdf`; PNG without one).

    Raises:
        ValueError: if there is nothing to draw, or matplotlib does not know the format.
        ImportError: if matplotlib is missing.

    Example:

    ```python
    plot_history(model.fit(data, validation_data=valid, epochs=10), "history.png")
    ```
    """
    curves = {name: values for name, values in getattr(history, "history", history).items() if len(values)}
    if not curves:
        raise ValueError("`history` holds no curve: was the model trained for an epoch?")
    longest = max(map(len, curves.values()))
    panels = list(dict.fromkeys(name.removeprefix("val_") for name in curves))
    figure = _figure(4.5 * len(panels), 3.5)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        for name, label in ((panel, "training"), (f"val_{panel}", "validation")):
            if name in curves:
                axes.plot(_epochs(len(curves[name]), longest), curves[name], marker="o", markersize=3, label=label)
        axes.set(title=panel.replace("_", " "), xlabel="epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    _write(figure, path)


def _epochs(count, longest):
    """The epochs, from 1, of a curve with so many numbers beside one with a number for each epoch."""
    step = next((step for step in range(1, longest + 1) if longest // step == count), 1)
    return step * np.arange(1, count + 1)


def _figure(width, height):
    """An empty figure of this size in inches, apart from pyplot's global state: no window, nothing to close."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('Pictures need matplotlib: pip install "keras-transformer-kit[plot]"') from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _font():
    from matplotlib import font_manager, rcParams

    installed = set(font_manager.get_font_names())
    return [*rcParams["font.family"], *(font for font in _FALLBACK_FONTS if font in installed)]


def _write(figure, path):
    with warnings.catch_warnings(), written_whole(path) as unfinished:
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # drawn as a box
        figure.savefig(unfinished, format=Path(path).suffix.removeprefix(".") or "png", dpi=150)
