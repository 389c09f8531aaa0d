"""The writing example, from a text to a model that continues it on the terminal."""

import functools
import io
import os
import re
import runpy
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_transformer as kt
import write
from tests import hurry

SCRIPT = Path(write.__file__)
TEXT = "the cat sat on the mat. the dog sat on the log.\n" * 40


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of letters, made by a training of sixty batches."""
    folder = tmp_path_factory.mktemp("write")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    path = folder / "writer.keras"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "LENGTH", 24)
        patch.setattr(write, "LEARNING_RATE", 1e-2)
        patch.setattr(write, "build", small)
        hurry.train_in_a_hurry(patch)
        patch.setattr(kt.training, "Budget", sixty_batches)
        options = ["--train", folder / "text.txt", "--minutes", 0.5, "--level", "character", "--max-new-tokens", 0]
        call(path, "the cat", *options)
    return path


@pytest.fixture
def read_once(monkeypatch):
    """A model that was read is kept, with what has been compiled for it."""
    monkeypatch.setattr(kt.data, "load_text_model", READ)


BUILD, BUDGET, READ = write.build, kt.training.Budget, functools.cache(kt.data.load_text_model)


def small(vocabulary_size):
    return BUILD(vocabulary_size, hidden_dim=16, num_layers=1)


def sixty_batches(rate, warmup_steps, seconds):
    assert (rate, warmup_steps, seconds) == (1e-2, 50, 30.0)
    return BUDGET(rate, 10, steps=60)


def call(*options):
    write.main(write.parse_arguments([str(option) for option in options]))


def written(capsys, *options):
    capsys.readouterr()
    call(*options)
    return capsys.readouterr().out


def test_it_streams_what_generate_writes(trained, capsys, read_once):
    model, tokenizer = READ(trained)
    for options, told in (
        ([], {}),
        (
            ["--temperature", 0.8, "--top-k", 9, "--top-p", 0.95, "--repetition-penalty", 1.2, "--seed", 1],
            {"temperature": 0.8, "top_k": 9, "top_p": 0.95, "repetition_penalty": 1.2, "seed": 1},
        ),
    ):
        expected = kt.generate(model, "the cat", 12, tokenizer=tokenizer, **told)[0]
        assert written(capsys, trained, "the cat", "--max-new-tokens", 12, *options) == expected + "\n"
        assert expected.startswith("the cat") and len(expected) > len("the cat")


def test_it_stops_behind_a_string(trained, capsys, read_once):
    whole = written(capsys, trained, "the cat", "--max-new-tokens", 12)
    new = whole.removeprefix("the cat").rstrip("\n")
    stop, other = new[4:6], "\N{SNOWMAN}"
    expected = new[: new.index(stop) + 2]
    options = ["--stop-string", other, "--stop-string", stop]
    assert written(capsys, trained, "the cat", "--max-new-tokens", 12, *options) == f"the cat{expected}\n"


def test_the_text_may_come_from_standard_input(trained, capsys, monkeypatch, read_once):
    expected = written(capsys, trained, "the cat", "--max-new-tokens", 8)
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\n"))
    assert written(capsys, trained, "--max-new-tokens", 8) == expected


def test_ctrl_c_ends_the_text(trained, capsys, monkeypatch, read_once):
    def stream(*_, **__):
        yield [" sat"]
        signal.raise_signal(signal.SIGINT)
        yield [" on"]

    monkeypatch.setattr(kt, "stream", stream)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores Ctrl-C
    try:
        assert written(capsys, trained, "the cat") == "the cat sat\n"
    finally:
        signal.signal(signal.SIGINT, before)


def test_training_learns_the_text(trained):
    """The model and its tokenizer lie side by side."""
    assert {path.name for path in trained.parent.iterdir()} == {"text.txt", "writer.keras", "writer.tokenizer.json"}
    model, tokenizer = READ(trained)
    token_ids = np.asarray(tokenizer.encode(TEXT[:96]))
    logits = keras.ops.convert_to_numpy(model(token_ids[:, :-1]))[0]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = -np.take_along_axis(log_probs, token_ids[0, 1:, None], -1).mean()
    assert loss < 0.8 * np.log(tokenizer.vocabulary_size)


@pytest.fixture
def as_a_program(monkeypatch):
    """Runs the file as `python examples/write.py` does, on the backend of this process."""

    def run(*options):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, options)])
        monkeypatch.setenv("KERAS_BACKEND", "as Keras is set up")
        runpy.run_path(str(SCRIPT), run_name="__main__")

    return run


def test_the_program(trained, as_a_program, monkeypatch, capsys, read_once):
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat"))
    as_a_program(trained, "--backend", keras.backend.backend(), "--max-new-tokens", 5)
    assert re.fullmatch(r"the cat.{1,5}\n", capsys.readouterr().out, re.DOTALL)


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_the_backend_is_said_before_keras_is_imported(backend, as_a_program, monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", None)
    with pytest.raises(ImportError, match="keras"):
        as_a_program("writer.keras", "--backend", backend)
    assert os.environ["KERAS_BACKEND"] == backend


def translator(folder):
    tokenizer = kt.data.train_tokenizer(["in three days"] * 9, 300)
    size = tokenizer.vocabulary_size
    kt.data.save_text_model(kt.models.transformer(size, size, 1, 2, 8, 8), tokenizer, folder / "translator.keras")
    return folder / "translator.keras"


def test_input_that_cannot_be_used_ends_with_one_line(trained, tmp_path, monkeypatch, read_once):
    (tmp_path / "bad.keras").write_bytes(b"no archive")
    (tmp_path / "short.txt").write_text("too short", encoding="utf-8")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xff" * 99)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.setattr(write, "build", small)
    for options, message in (
        ([tmp_path / "no.keras", "a"], "Cannot read a model from .*no.keras"),
        ([tmp_path / "bad.keras", "a"], "Cannot read a model from .*bad.keras"),
        ([translator(tmp_path), "in 3 days"], "translator.keras continues no text: it has 2 inputs, as a translator"),
        ([trained, ""], "no text to continue"),
        ([trained], "no text to continue"),
        ([trained, "the", "--temperature", 0], "`temperature` must be .* above 0.*temperature=0.0"),
        ([trained, "the", "--max-new-tokens", -1], "max_new_tokens"),
        ([trained, "the", "--top-p", 2], "top_p=2.0"),
        ([tmp_path / "new.keras", "a", "--train", tmp_path / "no.txt"], "no.txt"),
        ([tmp_path / "new.h5", "a", "--train", trained.parent / "text.txt"], "new.h5 must end in .keras"),
        ([tmp_path / "new.keras", "a", "--train", tmp_path / "bytes.txt"], "bytes.txt, line 1: not UTF-8"),
        ([tmp_path / "new.keras", "a", "--train", tmp_path / "short.txt"], "short.txt has .* tokens; more than 256"),
        ([tmp_path / "new.keras", "a", "--train", trained.parent / "text.txt", "--minutes", 0], "`seconds` must be"),
    ):
        with pytest.raises(SystemExit) as stopped:
            call(*options)
        assert re.search(f"^error: .*{message}", stopped.value.code), (options, stopped.value.code)
        assert not (tmp_path / "new.keras").exists()


@pytest.mark.parametrize(
    "options, message",
    [(["--level", "words"], "invalid choice"), (["--seed", "one"], "invalid int value"), ([], "MODEL.keras")],
)
def test_impossible_options(options, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        write.parse_arguments(options if message == "MODEL.keras" else ["a.keras", *options])
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_the_script_stays_short_enough_to_copy():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 120
