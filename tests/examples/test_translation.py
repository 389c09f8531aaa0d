"""The translation example, from its options to the model that another process reads back."""

import functools
import gc
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import sacrebleu
from matplotlib.image import imread

import keras_transformer as kt
import phrases
import translation
from tests import hurry

SCRIPT = Path(translation.__file__)
TINY = "--layers 1 --hidden-dim 16 --heads 2 --intermediate-dim 16 --vocabulary-size 300 --max-length 16".split()
PAIRS = [(f"{number} days", f"{number} Tage") for number in range(60)] + [("in an hour", "in einer Stunde")] * 4
FILES = ["attention.png", "history.png", "translator.keras", "translator.tokenizer.json"]


def write_tsv(path, pairs=PAIRS, broken=()):
    path.write_text("\n".join(["en\tde", *("\t".join(pair) for pair in pairs), *broken]) + "\n", encoding="utf-8")
    return str(path)


def run(*options, timeout=300):
    """The script in a process of its own, on the backend of this one, which only `--backend` names."""
    environment = {key: value for key, value in os.environ.items() if key != "KERAS_BACKEND"}
    environment |= {"PYTHONPATH": str(SCRIPT.parent.parent), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(SCRIPT), "--backend", keras.backend.backend(), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)


def call(*options):
    """The script's `main` in this process."""
    translation.main(translation.parse_arguments([str(option) for option in options]))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a short training on a file with three broken rows printed, and the folder it wrote to."""
    folder = tmp_path_factory.mktemp("trained")
    broken = ("one column", "three\tcolumns\there", "empty side\t")
    tsv = write_tsv(folder / "train.tsv", broken=broken)
    result = run("--tsv", tsv, "--output", folder / "outputs", "--epochs", 2, *TINY)
    assert result.returncode == 0, result.stderr
    return result.stdout, folder / "outputs", tsv


def test_training_prints_what_it_read_and_reached(trained):
    printed, _, tsv = trained
    skipped = r"\(2 wrong number of columns, the first in line \d+; 1 empty side, the first in line \d+\)"
    assert re.search(f"{re.escape(str(tsv))}: 64 pairs, header en -> de, 3 rows skipped {skipped}\n", printed)
    assert f"{tsv} [train]: 58 pairs\n" in printed
    assert f"on {keras.backend.backend()}" in printed
    assert re.search(r" loss: \S+ - token_accuracy: \S+ - val_loss: \S+ - val_token_accuracy: \S+\n", printed)
    assert re.search(r"^\d+( of \d+)? batches, [\d,]+ tokens/s", printed, re.MULTILINE)
    assert re.search(r"^exact match [\d.]+%, BLEU [\d.]+ \(13a\), chrF [\d.]+$", printed, re.MULTILINE)
    samples = re.findall(r"^  source       (.*)\n  translation  .*\n  reference    (.*)$", printed, re.MULTILINE)
    assert 1 <= len(samples) <= 5 and set(samples) <= set(PAIRS)


def test_training_writes_the_model_and_two_pictures(trained):
    _, output, _ = trained
    assert sorted(path.name for path in output.iterdir()) == FILES
    for name in FILES[:2]:
        assert imread(output / name).ndim == 3


@pytest.fixture
def read_once(monkeypatch):
    """A model that was read is kept, with what has been compiled for it."""
    monkeypatch.setattr(kt.data, "load_text_model", READ)


READ = functools.cache(kt.data.load_text_model)


def test_another_process_translates_as_the_training_did(trained, capsys, read_once):
    printed, output, _ = trained
    source, translated = re.search(r"^  source       (.*)\n  translation  (.*)$", printed, re.MULTILINE).groups()
    call("--output", output, "--max-length", 16, "--translate", source, "in 3 days", "3 days")
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == translated and len(lines) == 4 and lines[3] == ""


def test_evaluation_repeats_the_scores(trained, capsys, read_once):
    printed, output, tsv = trained
    scores = re.search(r"^exact match .*$", printed, re.MULTILINE)[0]
    call("--tsv", tsv, "--max-length", 16, "--evaluate", output / "translator.keras")
    assert scores in capsys.readouterr().out


def test_evaluation_needs_only_a_test_file(trained, capsys, tmp_path, read_once):
    test = write_tsv(tmp_path / "test.tsv", PAIRS[:3])
    call("--test", test, "--max-length", 16, "--evaluate", trained[1] / "translator.keras", "--language", "ja")
    printed = capsys.readouterr().out
    assert f"translating {test}: 3 pairs, header en -> de" in printed and "(char)" in printed


@pytest.fixture
def nothing_is_decoded(monkeypatch):
    """For what comes before and behind the translations, which take a while to compile."""
    monkeypatch.setattr(translation, "score", lambda model, tokenizer, pairs, language, args: pairs.targets)


@pytest.fixture
def nothing_is_drawn(monkeypatch):
    """As `nothing_is_decoded`: an empty file in place of where the model looks."""
    monkeypatch.setattr(kt.inspect, "plot_cross_attention", lambda *arguments: arguments[-1].touch())


@pytest.fixture
def train_on_pairs(monkeypatch, capsys, tmp_path):
    """What a training of `main` printed, and the card of the model that it wrote to `outputs`."""
    hurry.train_in_a_hurry(monkeypatch)  # the training in a process of its own has it

    def train(*options):
        output = tmp_path / "outputs"
        call("--tsv", write_tsv(tmp_path / "train.tsv"), "--output", output, *options, *TINY)
        model = keras.models.load_model(output / "translator.keras")
        assert all(np.isfinite(weights).all() for weights in model.get_weights())
        return capsys.readouterr().out, kt.layers.read_card(model)

    yield train
    gc.collect()  # TensorFlow can wait for ever when data of one training is freed in the middle of the next


def test_a_recurrent_model_is_trained_saved_and_read_back(train_on_pairs, capsys, tmp_path):
    options = ["--model", "rnn", "--cell", "lstm", "--attention", "luong", "--epochs", 1]
    printed, card = train_on_pairs(*options)
    assert re.search(r"^rnn: [\d,]+ parameters", printed, re.MULTILINE)
    assert sorted(path.name for path in (tmp_path / "outputs").iterdir()) == FILES and "attention.png" in printed
    assert (card["family"], card["cell"], card["attention"]) == ("rnn", "lstm", "luong")
    source, translated = re.search(r"^  source       (.*)\n  translation  (.*)$", printed, re.MULTILINE).groups()
    call("--output", tmp_path / "outputs", "--max-length", 16, "--translate", source)
    assert capsys.readouterr().out == f"{translated}\n"


def test_a_model_without_attention_has_no_picture_of_it(nothing_is_decoded, train_on_pairs, tmp_path):
    printed, card = train_on_pairs("--model", "rnn", "--attention", "none", "--epochs", 1)
    assert sorted(path.name for path in (tmp_path / "outputs").iterdir()) == FILES[1:]
    assert "attention.png" not in printed and (card["family"], card["attention"]) == ("rnn", None)


def test_a_published_family_is_trained_and_saved(nothing_is_decoded, train_on_pairs, tmp_path):
    printed, card = train_on_pairs("--model", "t5", "--epochs", 1)
    assert re.search(r"^t5: [\d,]+ parameters", printed, re.MULTILINE) and card["family"] == "t5"
    assert sorted(path.name for path in (tmp_path / "outputs").iterdir()) == FILES


def test_ctrl_c_saves_what_there_is(nothing_is_decoded, nothing_is_drawn, train_on_pairs, monkeypatch, tmp_path):
    class InterruptedBudget(translation.kt.training.Budget):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            if self.step == 3:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(translation.kt.training, "Budget", InterruptedBudget)
    printed, card = train_on_pairs("--minutes", 60, "--model", "bart")
    assert "Stopping after this batch" in printed and "\n3 batches, " in printed and card["family"] == "bart"
    assert sorted(path.name for path in (tmp_path / "outputs").iterdir()) == FILES


@pytest.fixture
def few_phrases(monkeypatch):
    monkeypatch.setattr(phrases, "make_phrases", functools.partial(phrases.make_phrases, count=300))
    kinds = [kind for kind in phrases.KINDS if kind.name in ("euros in words", "relative time", "month", "countries")]
    monkeypatch.setattr(phrases, "KINDS", kinds)


def test_phrases_are_held_out_alike_whatever_the_seed(few_phrases, capsys):
    parts = [translation.read_texts(translation.parse_arguments(["--language", "fr", "--seed", seed])) for seed in "01"]
    assert parts[0] == parts[1]
    *splits, language = parts[0]
    assert language == "fr" and all(isinstance(pairs, kt.data.TextPairs) for pairs in splits)
    sources = [set(pairs.sources) for pairs in splits]
    assert len(set.union(*sources)) == sum(map(len, sources)) > 270
    assert capsys.readouterr().out == ""


def test_kinds_that_a_language_lacks_are_named(few_phrases, capsys):
    translation.read_texts(translation.parse_arguments(["--language", "ja"]))
    assert re.search(r"^left out: euros in words \(.*\)$", capsys.readouterr().out, re.MULTILINE)


def test_parts_are_split_off_unless_given(tmp_path):
    parts = {"tsv": PAIRS[:60], "valid": PAIRS[:3], "test": PAIRS[3:5]}  # planted: what is trained on has to give way
    files = {name: write_tsv(tmp_path / name, pairs) for name, pairs in parts.items()}
    for given in (["tsv"], ["tsv", "valid"], ["tsv", "test"], ["tsv", "valid", "test"]):
        options = [part for name in given for part in (f"--{name}", files[name])]
        train, valid, test, language = translation.read_texts(translation.parse_arguments(options))
        assert language == "de"
        assert (len(valid), len(test)) == (3, 2 if "test" in given else 3)
        assert not {*train.sources} & {*valid.sources, *test.sources} and not {*valid.sources} & {*test.sources}
        assert 52 <= len(train) <= 60 - 3 * (2 - ("valid" in given) - ("test" in given))


def test_tfds(monkeypatch):
    rows = {"train": [(b"um", b"one")] * 3, "validation": [(b"dois", b"two")], "test": [(b"oi", b"hi")]}
    fake = types.SimpleNamespace(load=lambda name, split, **_: rows[split], as_numpy=lambda data: data)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", fake)
    *parts, language = translation.read_texts(translation.parse_arguments(["--tfds", "ted/pt_to_en"]))
    assert parts == [[("um", "one")] * 3, [("dois", "two")], [("oi", "hi")]] and language == "en"


@pytest.mark.parametrize("language, tokenizer", [("de", "13a"), ("zh-Hant", "zh"), ("zh_CN", "zh"), ("ja", "char")])
def test_scores_are_those_of_sacrebleu(language, tokenizer, monkeypatch, capsys):
    references = ["ein Tag und zwei Stunden", "今日は良い天気ですね", "am 3. Mai 2024"]
    translations = ["ein Tag und drei Stunden", "今日は悪い天気ですね", "am 3. Mai 2024"]
    monkeypatch.setattr(kt, "generate", lambda *_, **__: translations)
    pairs = kt.data.TextPairs([("source", reference) for reference in references])
    args = translation.parse_arguments([])
    assert translation.score(None, None, pairs, language, args) == translations
    bleu = sacrebleu.corpus_bleu(translations, [references], tokenize=tokenizer).score
    chrf = sacrebleu.corpus_chrf(translations, [references]).score
    assert f"exact match 33.33%, BLEU {bleu:.2f} ({tokenizer}), chrF {chrf:.2f}" in capsys.readouterr().out


def test_defaults_follow_the_text_and_the_budget():
    args = translation.parse_arguments([])
    assert (args.hidden_dim, args.vocabulary_size) == (128, 500) and args.epochs and args.minutes
    args = translation.parse_arguments(["--tsv", "a.tsv", "--heads", "8", "--output", "there"])
    assert (args.hidden_dim, args.heads, args.epochs, args.minutes) == (192, 8, None, 20.0)
    assert args.saved == Path("there/translator.keras")
    args = translation.parse_arguments(["--epochs", "0.5"])
    assert (args.epochs, args.minutes) == (0.5, None)
    args = translation.parse_arguments(["--minutes", "0.5"])
    assert (args.epochs, args.minutes) == (None, 0.5)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--test", "a.tsv"], "--valid and --test need --tsv"),
        (["--tsv", "a.tsv", "--tfds", "b"], "not allowed with"),
        (["--translate", ""], "--translate needs text"),
        (["--translate", "in 3 days", " \t"], "--translate needs text"),
        (["--backend", "theano"], "invalid choice: 'theano'"),
        (["--model", "cnn"], "invalid choice: 'cnn'"),
        (["--attention", "dot"], "invalid choice: 'dot'"),
        (["--epochs", "many"], "invalid float value: 'many'"),
    ],
)
def test_impossible_options(options, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        translation.parse_arguments(options)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, message",
    [
        (["--tsv", "{folder}/missing.tsv"], r"Cannot read .*missing.tsv"),
        (["--tsv", "{folder}/empty.tsv"], r"empty.tsv.*is empty"),
        (["--tsv", "{folder}/one.tsv"], r"one.tsv has too few pairs"),
        (["--tsv", "{folder}/good.tsv", "--valid", "{folder}/missing.tsv"], r"Cannot read .*missing.tsv"),
        (["--tsv", "{folder}/good.tsv", "--hidden-dim", "10", "--heads", "3"], r"hidden_dim=10, num_heads=3"),
        (["--tsv", "{folder}/good.tsv", "--vocabulary-size", "100"], r"vocabulary_size=100"),
        (["--tsv", "{folder}/good.tsv", "--epochs", "0"], r"`steps` must be .* above 0"),
        (["--tsv", "{folder}/good.tsv", "--minutes", "-1"], r"`seconds` must be .* above 0"),
        (["--tsv", "{folder}/good.tsv", "--output", "{folder}/good.tsv"], r"File exists"),
        (["--language", "xx"], r"language='xx' is not a code that Babel knows"),
        (["--language", "en"], r"language='en' must be a language other than English"),
        (["--tfds", "ted_hrlr_translate/pt_to_en"], r"ted_hrlr_translate/pt_to_en.*could not be .*downloaded.*offline"),
        (["--saved", "{folder}/no.keras", "--translate", "in 3 days"], r"Cannot read a model from .*no.keras"),
        (["--saved", "{folder}/bad.keras", "--translate", "in 3 days"], r"Cannot read a model from .*bad.keras"),
        (["--evaluate", "{folder}/bad.keras"], r"Cannot read a model from .*bad.keras"),
    ],
)
def test_bad_input_ends_with_one_line(options, message, monkeypatch, tmp_path):
    def load(*_, **__):
        raise ConnectionError("offline")

    monkeypatch.setitem(sys.modules, "tensorflow_datasets", types.SimpleNamespace(load=load, as_numpy=list))
    write_tsv(tmp_path / "good.tsv")
    write_tsv(tmp_path / "one.tsv", PAIRS[:1])
    (tmp_path / "empty.tsv").write_text("")
    (tmp_path / "bad.keras").write_bytes(b"no archive")
    with pytest.raises(SystemExit) as stopped:
        call("--output", tmp_path / "outputs", *(option.format(folder=tmp_path) for option in options))
    assert re.search(f"^error: .*{message}", stopped.value.code)


def test_a_model_of_one_text_is_no_translator(tmp_path):
    tokenizer = kt.data.train_tokenizer(["in three days"] * 9, 300)
    inputs = keras.Input((None,), dtype="int32")
    logits = kt.layers.PositionalEmbedding(tokenizer.vocabulary_size, 4)
    model = keras.Model(inputs, logits(logits(inputs), reverse=True))
    kt.data.save_text_model(model, tokenizer, tmp_path / "writer.keras")
    with pytest.raises(SystemExit, match=r"error: .*writer.keras is no translator: 1 input instead of 2"):
        call("--saved", tmp_path / "writer.keras", "--translate", "in 3 days")


def test_tfds_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(SystemExit, match=r"error: .*keras-transformer-kit\[datasets\]"):
        call("--tfds", "ted_hrlr_translate/pt_to_en")


def test_the_script_stays_short_enough_to_copy():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 200
