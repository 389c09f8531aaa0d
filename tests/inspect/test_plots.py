"""Pictures are written whole, show what they were given, and refuse what does not fit."""

import struct
import sys
import types

import keras
import matplotlib.figure
import numpy as np
import pytest
from matplotlib.image import imread

import keras_transformer as kt
from keras_transformer.inspect import plots
from keras_transformer.inspect.plots import plot_attention, plot_cross_attention, plot_history

SCORES = np.asarray([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]])


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn, to look inside."""
    drawn, savefig = [], matplotlib.figure.Figure.savefig

    def spy(figure, *args, **kwargs):
        drawn.append(figure)
        return savefig(figure, *args, **kwargs)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", spy)
    return drawn


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_attention_shows_scores_and_pieces(tmp_path, figures):
    path = tmp_path / "attention.png"
    plot_attention(SCORES, ["in", "$3$", "日"], ["$x", "Tagen"], path, title="$5")
    axes = figures[0].axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), SCORES)
    assert labels(axes.xaxis) == ["in", "$3$", "日"] and labels(axes.yaxis) == ["$x", "Tagen"]
    assert axes.get_title() == "$5"
    assert imread(path).ndim == 3 and [found.name for found in tmp_path.iterdir()] == ["attention.png"]


@pytest.mark.parametrize("source, target", [(["a"], ["b", "c"]), ([], []), (["a", "b", "c"], ["d"])])
def test_attention_of_another_shape_is_refused(source, target, tmp_path):
    with pytest.raises(ValueError, match=rf"scores.shape=\(2, 3\), {len(target)} target and {len(source)} source"):
        plot_attention(SCORES, source, target, tmp_path / "attention.png")


def test_cross_attention_is_the_last_layers_mean_over_heads(tmp_path, figures):
    tokenizer = kt.data.train_tokenizer(["in 3 days", "in 3 Tagen"], level="character", min_frequency=1)
    size = tokenizer.vocabulary_size
    model = kt.models.transformer(size, size, 2, 2, 8, 16)
    plot_cross_attention(model, tokenizer, "3 days", "3 T", tmp_path / "attention.png")
    axes = figures[0].axes[0]
    assert labels(axes.xaxis) == list("3 days") and labels(axes.yaxis) == [*"3 T", "<stop>"]
    source, target = tokenizer.encode(["3 days", "3 T"])
    inputs = {"encoder_token_ids": np.asarray([source]), "decoder_token_ids": np.asarray([[1, *target]])}
    scores = kt.inspect.attention_scores(model, inputs)["decoder_block_1/cross_attention"]
    np.testing.assert_allclose(axes.images[0].get_array(), scores[0].mean(axis=0), atol=1e-6)

    with pytest.raises(ValueError, match="source=''"):
        plot_cross_attention(model, tokenizer, "", "3 T", tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_cross_attention_needs_one(tmp_path):
    token_ids = [keras.Input((None,), dtype="int32", name=name) for name in ("encoder_token_ids", "decoder_token_ids")]
    x = [kt.layers.EncoderBlock(2, 16)(kt.layers.PositionalEmbedding(20, 8)(ids)) for ids in token_ids]
    model = keras.Model({ids.name: ids for ids in token_ids}, x)
    tokenizer = kt.data.train_tokenizer(["in 3 days"], level="character", min_frequency=1)
    with pytest.raises(ValueError, match="no layer called `cross_attention`.*self_attention"):
        plot_cross_attention(model, tokenizer, "3 days", "in ", tmp_path / "none.png")


def test_history_puts_training_and_validation_into_one_panel(tmp_path, figures):
    history = {"loss": [3.0, 2.0], "accuracy": [0.1, 0.5], "val_loss": [3.5, 2.5], "val_accuracy": [0.1, 0.4]}
    plot_history(types.SimpleNamespace(history=history), tmp_path / "history.svg")
    assert [axes.get_title() for axes in figures[0].axes] == ["loss", "accuracy"]
    for axes, name in zip(figures[0].axes, ("loss", "accuracy")):
        curves = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
        expected = {"training": history[name], "validation": history[f"val_{name}"]}
        assert curves == {label: [[1.0, values[0]], [2.0, values[1]]] for label, values in expected.items()}
    assert "<svg" in (tmp_path / "history.svg").read_text()


def test_history_of_one_epoch_and_of_none(tmp_path):
    plot_history({"loss": [1.0]}, tmp_path / "history.png")
    assert imread(tmp_path / "history.png").ndim == 3
    for empty in ({}, {"loss": []}):
        with pytest.raises(ValueError, match="no curve"):
            plot_history(empty, tmp_path / "none.png")


def test_what_fails_leaves_the_old_picture(tmp_path):
    path = tmp_path / "history.gifx"
    path.write_text("old")
    with pytest.raises(ValueError, match="gifx"):
        plot_history({"loss": [1.0]}, path)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_without_matplotlib_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"keras-transformer-kit\[plot\]"):
        plot_history({"loss": [1.0]}, tmp_path / "none.png")


def test_a_file_without_a_suffix_is_a_png(tmp_path):
    kt.inspect.plot_history({"loss": [2.0, 1.0]}, tmp_path / "history")
    assert (tmp_path / "history").read_bytes().startswith(b"\x89PNG")


def test_long_texts_make_no_larger_pictures(tmp_path):
    kt.inspect.plot_attention(np.eye(500), ["a"] * 500, ["b"] * 500, tmp_path / "long.png")
    width, height = struct.unpack(">II", (tmp_path / "long.png").read_bytes()[16:24])
    assert max(width, height) <= 40 * 150


@pytest.mark.parametrize("count, longest, epochs", [(4, 4, [1, 2, 3, 4]), (2, 4, [2, 4]), (2, 5, [2, 4]), (1, 3, [3])])
def test_curves_with_fewer_numbers_are_of_every_so_many_epochs(count, longest, epochs):
    """What Keras keeps with `validation_freq=2` or 3; where it cannot be told, the smallest number is taken."""
    assert plots._epochs(count, longest).tolist() == ([2] if (count, longest) == (1, 3) else epochs)
