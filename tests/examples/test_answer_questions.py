"""The question-answering script, from a TSV file to exact match."""

import functools
import re
import types
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import answer_questions
import encoder
import keras_transformer as kt
import questions
from questions import Row
from tests import hurry

SCRIPT = Path(answer_questions.__file__)
TINY = "--vocabulary-size 300 --max-tokens 24 --batch-size 8 --layers 1 --heads 2 --hidden-dim 16".split()
ROWS = [("Who sat there?", f"On day {i} the cat sat down.", f"cat {i}") for i in range(60)]
ROWS = [(question, text.replace("cat", answer), answer) for question, text, answer in ROWS]
READ = functools.cache(kt.data.load_text_model)


def parse(*options):
    return answer_questions.parse_arguments([str(option) for option in options])


def write_tsv(path, rows, broken=()):
    lines = ["context\tanswer_start\tanswer\tmore\tquestion"]
    lines += [f"{text}\t{text.index(answer)}\t{answer}\t\t{question}" for question, text, answer in rows]
    path.write_text("\n".join([*lines, *broken]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a training of a few steps on a file with broken rows printed, the file and the folder that it wrote to."""
    folder = tmp_path_factory.mktemp("answer_questions")
    rows = [*ROWS, ("Who?", " ".join("abcdefghijklmnopqrstuvwxyz"), "z")]  # whose answer is not read
    data, printed = write_tsv(folder / "rows.tsv", rows, ["a text\t0\tno\t\tq", "one column", "a\tx\ta\t\tq"]), []
    with pytest.MonkeyPatch.context() as patch:
        hurry.train_few_steps(patch, 3)
        patch.setattr("builtins.print", lambda *args, **_: printed.append(" ".join(map(str, args))))
        patch.setattr(kt.data, "load_text_model", READ)
        answer_questions.main(parse("--data", data, "--output", folder / "outputs", *TINY))
    return "\n".join(printed), data, folder / "outputs"


SCORES = r"exact match \d\.\d{4}, F1 \d\.\d{4} of 6 questions\nexact match \d\.\d{4}, F1 \d\.\d{4} by the rarest word"


def test_training_writes_and_scores_the_model(trained):
    printed, data, output = trained
    broken = "in 3 of 64 rows no answer stands where it should; left out: line 63 ('a text\\t0\\tno\\t\\tq'), line 64"
    assert f"{data}: {broken}" in printed and "49 rows to train on, 6 to validate, 6 to test" in printed
    assert len(re.findall(r"1 of \d+ answers stand behind the first 24 tokens: left out", printed)) == 1
    assert len(re.findall(SCORES, printed)) == 1
    names = ["reader.keras", "reader.png", "reader.settings.json", "reader.tokenizer.json"]
    assert sorted(path.name for path in output.iterdir()) == names
    assert imread(output / "reader.png").ndim == 3


def test_the_saved_model_has_the_same_score_and_answers(trained, capsys, monkeypatch):
    printed, data, output = trained
    monkeypatch.setattr(kt.data, "load_text_model", READ)
    saved = ("--saved", output / "reader.keras", "--output", output, *TINY)
    answer_questions.main(parse("--data", data, *saved))
    again = capsys.readouterr().out
    assert re.findall(SCORES, again) == re.findall(SCORES, printed) and "parameters" not in again
    for text in ("The dog sat down.", " "):
        answer_questions.main(parse(*saved, "--ask", "Who sat?", "--text", text))
        assert capsys.readouterr().out.strip() in text


def test_answers_are_whole_words_of_the_text():
    tokenizer = kt.data.train_tokenizer(["the cat sat"] * 3, 270, extra_tokens=1)
    text = "Then the Zyrian's cat sat."
    rows = [Row("who?", text, text.index(answer), answer, "") for answer in ("Zyrian's", "yrian", "sat", "sat.")]
    rows.append(Row("who " * 30, text, 0, "Then", ""))
    inputs, spans, owners = answer_questions.arrays(rows, tokenizer, parse(*TINY, "--max-tokens", 60))
    pieces = [tokenizer.encode(word)[0] for word in ("Then", "the", "Zyrian", "'", "s", "cat", "sat", ".")]
    front = 2 + len(tokenizer.encode("who")[0]) + len(tokenizer.encode("?")[0])
    begins = np.cumsum([front, *map(len, pieces)])
    expected = [(begins[2], begins[5] - 1), (begins[2], begins[3] - 1), (begins[6], begins[7] - 1)]
    expected.append((begins[6], begins[8] - 1))
    assert spans.T[:4].tolist() == [list(map(int, span)) for span in expected]
    assert owners[0][: begins[-1] + 1].tolist() == [-1] * front + [
        *(word for word, ids in enumerate(pieces) for _ in ids),
        -1,
    ]
    assert inputs["segment_ids"][0][: begins[-1] + 1].tolist() == [0] * front + [1] * (begins[-1] + 1 - front)
    assert (owners[4][:32] == -1).all() and owners[4][32] == 0  # the question has half of the room
    cut, spans, _ = answer_questions.arrays(rows, tokenizer, parse(*TINY, "--max-tokens", int(begins[7]) + 1))
    assert cut["token_ids"].shape[1] == begins[7] + 1 and spans[0, 2] == begins[6] and spans[:, 3].tolist() == [-1, -1]

    logits = {"start": np.zeros(owners.shape), "end": np.zeros(owners.shape)}
    logits["start"][:, begins[2]] = logits["end"][:, begins[5]] = 9
    logits["start"][:, 0] = 99  # which is no place in the text
    logits["start"][:, begins[5]] = 8
    fixed = types.SimpleNamespace(predict=lambda inputs, verbose: logits)
    args = parse(*TINY, "--max-tokens", 60)
    for lengths, answer in (([5, 5, 5, 5], "Zyrian's cat"), ([90, 0, 0, 5], "cat"), ([9], "Zyrian's cat")):
        assert answer_questions.answers(fixed, tokenizer, lengths, rows, args)[0] == answer


def test_scores_by_hand():
    found, wanted = ["The cat!", "a big dog", "", "x"], ["cat", "dog", "", "y"]
    assert questions.scores(found, wanted) == "exact match 0.5000, F1 0.6667"  # 1, 2/3, 1 and 0
    assert questions.scores(["€5", "a_b!", "an x"], ["£5", "ab", "x"]) == "exact match 0.6667, F1 0.6667"


def test_the_rarest_word():
    known = [Row("", text, 0, "", "") for text in ("the cat sat", "a cat", "the cat sat", "the dog")]
    rows = [Row("", text, 0, "", "") for text in ("The dog, a cat", "?")]
    assert questions.rarest(known, rows) == ["dog", ""]


def test_no_held_out_text_is_trained_on_and_none_is_in_the_vocabulary(tmp_path, monkeypatch):
    """Planted: texts that two files have, with other questions, and a word of the test file."""
    test = [("Other?", *ROWS[0][1:]), ROWS[1], ("Who?", "zyzzyva " * 9 + "cat", "cat")]
    files = [write_tsv(tmp_path / name, rows) for name, rows in zip("abc", (ROWS, ROWS[1:4], test))]
    args = parse("--data", files[0], "--valid", files[1], "--test", files[2], *TINY)
    sources = (questions.read_questions, None, None, None)
    parts = answer_questions.reading.read_parts(args, *sources, key=lambda row: row.source)
    texts = [{row.context for row in part} for part in parts]
    assert [len(part) for part in parts] == [56, 2, 3] and not texts[0] & (texts[1] | texts[2])
    kept = []
    monkeypatch.setattr(answer_questions.tasks, "fit", lambda *_, **__: {"loss": [1.0]})
    monkeypatch.setattr(kt.inspect, "plot_history", lambda *_: None)
    monkeypatch.setattr(encoder, "save", lambda model, tokenizer, path, **more: kept.extend([tokenizer, more]))
    answer_questions.train(*parts[:2], tmp_path / "x.keras", args)
    assert len(kept[0].encode("zyzzyva")[0]) > 4 and len(kept[0].encode("cat")[0]) == 1
    assert kept[1] == {"lengths": [0, 56]}  # a cat and a number


def test_questions_come_from_docstrings_and_data_sets():
    parts = questions.find_questions(60)
    rows = sum(parts, [])
    assert len(rows) >= 30 and all(parts) and len({row.source for row in rows}) > 1
    sources = [{row.source for row in part} for part in parts]
    assert len(set.union(*sources)) == sum(map(len, sources))
    for row in rows:
        assert row.context.startswith(row.answer, row.start) and len(row.answer.split()) < 81
        name = re.fullmatch(r"What (?:is|type has) (\w+)\?", row.question)[1]
        kinds = row.context.split(f"{name} : ", 1)[1]
        assert kinds.startswith(row.answer) if row.question.startswith("What type") else row.answer in kinds
    found = questions.row_of_data_set(b"Q?", b"It is so", {"text": [b"so", b"is"], "answer_start": [6, 3]})
    assert found == ("Q?", "It is so", 6, "so", "It is so")
    assert questions.row_of_data_set(b"Q?", b"no", {"text": [], "answer_start": []}) is None


def test_noise_hides_some_tokens_and_no_special_ones():
    tokenizer = kt.data.train_tokenizer(["the cat sat"] * 3, 270)
    ids = np.tile([1, *range(10, 48), 2, 0, 0], (40, 1))
    inputs, numbers = {"token_ids": ids, "segment_ids": ids * 0}, np.arange(40)
    data = encoder.NoisyBatches(inputs, numbers, {"x": numbers}, tokenizer, parse(*TINY, "--noise", 0.25))
    assert len(data) == 5
    batches = [data[i] for i in range(5)]
    assert sorted(np.concatenate([labels for _, labels, _ in batches])) == list(range(40))
    read = np.concatenate([inputs["token_ids"] for inputs, _, _ in batches])
    changed = read != ids
    assert (read[changed] == 3).all() and not changed[:, [0, 39, 40, 41]].any()
    assert 0.2 < changed[:, 1:39].mean() < 0.3
    order = batches[0][1]
    data.on_epoch_end()
    assert (data[0][1] != order).any()


def test_input_that_cannot_be_used_ends_with_one_line(tmp_path):
    (tmp_path / "empty.tsv").write_text("")
    (tmp_path / "columns.tsv").write_text("question\tcontext\tanswer\nq\ta\ta\n")
    write_tsv(tmp_path / "broken.tsv", [], ["a\t5\ta\t\tq"])
    for options, message in (
        (["--data", tmp_path / "no.tsv"], "No such file.*no.tsv"),
        (["--data", tmp_path / "empty.tsv"], "empty.tsv is empty"),
        (["--data", tmp_path / "columns.tsv"], "columns.tsv, line 1: there is no column 'answer_start' among"),
        (["--data", tmp_path / "broken.tsv"], "broken.tsv has no row with an answer in its text"),
        (["--data", write_tsv(tmp_path / "two.tsv", ROWS[:2])], "2 different rows are too few"),
        (["--saved", tmp_path / "no.keras", "--ask", "a", "--text", "b"], "Cannot read a model from .*no.keras"),
    ):
        with pytest.raises(SystemExit) as stopped:
            answer_questions.main(parse(*options, "--output", tmp_path))
        assert re.search(f"^error: .*{message}", stopped.value.code), stopped.value.code
    for options in (["--valid", "a"], ["--saved", "a", "--ask", "b"], ["--data", "a", "--tfds", "b"]):
        with pytest.raises(SystemExit):
            parse(*options)


def test_the_script_stays_short_enough_to_copy():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 150
