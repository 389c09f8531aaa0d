"""The summarizing script, from pairs of texts to ROUGE."""

import functools
import re
from pathlib import Path

import pytest
from matplotlib.image import imread
from rouge_score.rouge_scorer import RougeScorer

import keras_transformer as kt
import reading
import summarize
from tests import hurry

SCRIPT = Path(summarize.__file__)
TINY = "--vocabulary-size 400 --layers 1 --heads 2 --hidden-dim 16 --max-tokens 24 --max-new-tokens 6".split()
TINY += "--beams 1 --buckets 1".split()
PAIRS = [(f"Here item {i} is told at length, with many words", f"about item {i}") for i in range(60)]
LONG = (" ".join("abcdefghijklmnopqrstuvwxyz0123456789"), "all letters and figures")
READ = functools.cache(kt.data.load_text_model)
NAMES = ["summarizer.history.png", "summarizer.keras", "summarizer.png", "summarizer.tokenizer.json"]


def parse(*options):
    return summarize.parse_arguments([str(option) for option in options])


def write_tsv(path, pairs, broken=()):
    path.write_text("\n".join(["text\tsummary", *("\t".join(pair) for pair in pairs), *broken]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a training of a few steps on a file with broken rows printed, the file and the folder that it wrote to."""
    folder = tmp_path_factory.mktemp("summarize")
    data, printed = write_tsv(folder / "pairs.tsv", [*PAIRS, LONG], ["one column", "empty\t"]), []
    with pytest.MonkeyPatch.context() as patch:
        hurry.train_few_steps(patch, 2)
        patch.setattr("builtins.print", lambda *args, **_: printed.append(" ".join(map(str, args))))
        patch.setattr(kt.data, "load_text_model", READ)
        summarize.main(parse("--tsv", data, "--output", folder / "outputs", *TINY))
    return "\n".join(printed), data, folder / "outputs"


SCORES = r"ROUGE-1, -2, -L of 6 texts: .*\nof their first 3 words: .*"


def test_training_writes_and_scores_the_model(trained):
    printed, _, output = trained
    skipped = "1 wrong number of columns, the first in line 63; 1 empty side, the first in line 64"
    assert f"61 pairs, header text -> summary, 2 rows skipped ({skipped})" in printed
    assert re.search(r"1 of \d+ texts have more than 24 tokens: their ends are not read", printed)
    assert len(re.findall(SCORES, printed)) == 1
    assert sorted(path.name for path in output.iterdir()) == NAMES
    assert imread(output / "summarizer.png").ndim == 3


def test_the_saved_model_has_the_same_score(trained, capsys, monkeypatch):
    printed, data, output = trained
    monkeypatch.setattr(kt.data, "load_text_model", READ)
    saved = ("--output", output, "--saved", output / "summarizer.keras")
    summarize.main(parse("--tsv", data, *saved, *TINY))
    again = capsys.readouterr().out
    assert re.findall(SCORES, again) == re.findall(SCORES, printed) and "parameters" not in again
    source, summary = re.search(r"  text       (.*)\n  summary    (.*)\n", printed).groups()
    summarize.main(parse(*saved, *TINY, "--summarize", source, "another text"))
    assert f"{summary}\n" in capsys.readouterr().out


def test_rouge_is_that_of_its_package():
    found = summarize.rouge(["the cats sat", "no"], ["the cat sat down", "yes"])
    scores = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True).score("the cat sat down", "the cats sat")
    assert found.split() == [f"{50 * scores[name].fmeasure:.2f}" for name in scores] and found.split()[0] == "42.86"
    assert summarize.rouge(["das schöne Haus"], ["ein schönes Haus"]).split() == ["33.33", "0.00", "33.33"]
    assert summarize.rouge(["кот"], ["кот"]).split() == ["100.00", "0.00", "100.00"]  # of one word there is no pair


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_both_families_restore_their_own_damage(family):
    texts = [source for source, _ in PAIRS]
    tokenizer = kt.data.train_tokenizer(texts, 400, extra_tokens=summarize.SPANS)
    args = parse("--model", family, *TINY)
    model = summarize.build(tokenizer, args)
    inputs, labels, weights = summarize.damaged(texts, tokenizer, args)[0]
    assert model.name == family and model.output_shape[-1] == tokenizer.vocabulary_size
    marks = {*inputs["encoder_token_ids"].ravel().tolist()} & {*tokenizer.extra_token_ids}
    assert len(marks) == 1 if family == "bart" else marks  # a mask, or as many sentinels as runs
    starts = inputs["decoder_token_ids"][weights.any(-1), 0]  # the batch is filled up with rows of weight 0
    assert len(starts) and (starts == tokenizer.start_token_id).all()


def test_no_held_out_text_is_trained_on_and_none_is_in_the_vocabulary(tmp_path, monkeypatch):
    """Planted: test pairs that training has, too, and a word of the test file."""
    planted = [PAIRS[0], ("zyzzyva " * 9, "zyzzyva zyzzyva"), ("a new text with words", PAIRS[1][1])]
    files = [write_tsv(tmp_path / name, pairs) for name, pairs in (("a", PAIRS), ("b", PAIRS[2:4]), ("c", planted))]
    args = parse("--tsv", files[0], "--valid", files[1], "--test", files[2], *TINY)
    parts = reading.read_pairs(args, None)
    texts = [{text for pair in part for text in pair} for part in parts]
    assert [len(part) for part in parts] == [56, 2, 3] and not texts[0] & (texts[1] | texts[2])
    kept = []
    monkeypatch.setattr(summarize.tasks, "fit", lambda *_, **__: {"loss": [1.0]})
    monkeypatch.setattr(kt.inspect, "plot_history", lambda *_: None)
    monkeypatch.setattr(kt.data, "save_text_model", lambda model, tokenizer, path: kept.append(tokenizer))
    summarize.train(*parts[:2], tmp_path / "x.keras", args)
    assert len(kept[0].encode("zyzzyva")[0]) > 4 and len(kept[0].encode("item")[0]) == 1


def test_pairs_come_from_files_data_sets_and_docstrings(tmp_path, monkeypatch):
    data = kt.data.TextPairs(PAIRS, "xsum")
    monkeypatch.setattr(kt.data, "load_tfds_pairs", lambda name, limit: data if name == "xsum" else None)
    for args in (parse("--tfds", "xsum"), parse()):
        parts = reading.read_pairs(args, lambda limit: data)
        assert [len(part) for part in parts] == [48, 6, 6] and sorted(sum(map(list, parts), [])) == sorted(PAIRS)


def test_input_that_cannot_be_used_ends_with_one_line(tmp_path):
    (tmp_path / "empty.tsv").write_text("")
    for options, message in (
        (["--tsv", tmp_path / "no.tsv"], "Cannot read .*no.tsv"),
        (["--tsv", tmp_path / "empty.tsv"], "empty.tsv.*is empty"),
        (["--tsv", write_tsv(tmp_path / "one.tsv", PAIRS[:1])], "too few rows"),
        (["--tsv", tmp_path / "one.tsv", "--columns", 0, 5], "columns.*needs at least 6"),
        (["--saved", tmp_path / "no.keras", "--summarize", "text"], "Cannot read a model from .*no.keras"),
    ):
        with pytest.raises(SystemExit) as stopped:
            summarize.main(parse(*options, "--output", tmp_path))
        assert re.search(f"^error: .*{message}", stopped.value.code), stopped.value.code
    wrong = (["--pretrain", "1"], ["--minutes", "0"], ["--limit", "0"], ["--dropout", "-1"], ["--minutes", "inf"])
    for options in (["--valid", "a"], ["--summarize", "text"], ["--tsv", "a", "--tfds", "b"], *wrong):
        with pytest.raises(SystemExit):
            parse(*options)


def test_the_script_stays_short_enough_to_copy():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 150
