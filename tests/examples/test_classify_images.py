"""The image script, from a folder of images to its accuracy."""

import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from matplotlib.image import imread

import classify_images
import images
from tests import hurry

SCRIPT = Path(classify_images.__file__)
TINY = "--layers 1 --heads 2 --hidden-dim 16 --patch-size 4 --batch-size 16".split()


def parse(*options):
    return classify_images.parse_arguments([str(option) for option in options])


def write_images(folder, count=12):
    """Dark and bright images of noise, each in the folder of its class, and a file that is none."""
    random = np.random.default_rng(0)
    for name, low in (("bright", 150), ("dark", 0)):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            image = random.integers(low, low + 100, (8, 8, 3))
            keras.utils.save_img(folder / name / f"{number}.png", image, scale=False)
    (folder / "dark" / "broken.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a training of a few steps on files printed, and the folders that it read and wrote to."""
    folder = tmp_path_factory.mktemp("images")
    data, printed = write_images(folder / "data"), []
    with pytest.MonkeyPatch.context() as patch:
        hurry.train_few_steps(patch, 3)
        patch.setattr("builtins.print", lambda *args, **_: printed.append(" ".join(map(str, args))))
        classify_images.main(parse("--data", data, "--output", folder / "outputs", *TINY))
    return "\n".join(printed), data, folder / "outputs"


SCORES = r"accuracy (\d\.\d{4}) \(most frequent class (\d\.\d{4}), linear (\d\.\d{4})\)"


def test_training_writes_and_scores_the_model(trained):
    printed, data, output = trained
    assert "left out: 1 of 25 files; " in printed and "broken.png" in printed
    assert "20 images to train on, 2 to validate, 2 to test" in printed
    assert len(re.findall(SCORES, printed)) == 1
    names = {"images.keras", "images.settings.json", "images.history.png", "images.png"}
    assert {path.name for path in output.iterdir()} == names
    assert imread(output / "images.png").ndim == 3
    assert json.loads((output / "images.settings.json").read_text()) == {"classes": ["bright", "dark"]}


def test_the_saved_model_has_the_same_score(trained, capsys):
    printed, data, output = trained
    classify_images.main(parse("--data", data, "--output", output, "--saved", output / "images.keras", *TINY))
    again = capsys.readouterr().out
    assert re.findall(SCORES, again) == re.findall(SCORES, printed) and "parameters" not in again
    files = [data / "bright" / "1.png", data / "dark" / "2.png"]
    classify_images.main(parse("--saved", output / "images.keras", "--classify", *files))
    assert {*capsys.readouterr().out.split()} <= {"bright", "dark"}


def test_a_class_that_the_model_does_not_know(trained, tmp_path):
    data = write_images(tmp_path / "data")
    (data / "dark").rename(data / "night")
    options = parse("--data", data, "--output", tmp_path, "--saved", trained[2] / "images.keras", *TINY)
    with pytest.raises(SystemExit, match=r"error: .* does not know the classes \['night'\]. It knows: \['bright'"):
        classify_images.main(options)


def test_the_digits_are_split_without_copies():
    rows = images.read_images(parse(), (8, 8))
    assert len(rows) == 1797 and rows[0][0].shape == (8, 8, 1) and {name for _, name in rows} == set("0123456789")
    planted = [*rows, *rows[:50]]
    parts = classify_images.reading.split(planted, key=lambda row: row[0].tobytes())
    found = [{image.tobytes() for image, _ in part} for part in parts]
    assert len(set.union(*found)) == sum(map(len, found)) and sum(map(len, parts)) == 1847


def test_images_move_by_whole_pixels_and_all_are_shown():
    pictures = np.arange(5 * 4 * 4, dtype="float32").reshape(5, 4, 4, 1)
    data = images.ShiftedImages(pictures, np.arange(5), parse("--shift", 1, "--batch-size", 2))
    assert len(data) == 2
    seen = set()
    for _ in range(9):
        for batch, labels in (data[0], data[1]):
            seen |= {*labels.tolist()}
            for image, label in zip(batch, labels):
                middle = pictures[label, 1:3, 1:3]
                places = [(top, left) for top in (0, 1, 2) for left in (0, 1, 2)]
                assert any((image[top : top + 2, left : left + 2] == middle).all() for top, left in places)
        data.on_epoch_end()
    assert seen == set(range(5))


def test_a_data_set_is_resized(monkeypatch):
    rows = [(np.full((4, 6, 3), 255, "uint8"), 1), (np.zeros((9, 9, 3), "uint8"), 0)]
    monkeypatch.setattr(classify_images.reading, "tfds_rows", lambda *_, limit: rows)
    found = images.read_images(parse("--tfds", "flowers"), (8, 8))
    assert [image.shape for image, _ in found] == [(8, 8, 3)] * 2
    assert [(float(image.max()), name) for image, name in found] == [(1.0, "1"), (0.0, "0")]


def test_input_that_cannot_be_used_ends_with_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    for options, message in (
        (["--data", tmp_path / "no"], "no is no folder"),
        (["--data", tmp_path / "empty"], "there is no file to read"),
        (["--image-size", 16], "the digits of scikit-learn have 8 x 8 pixels, and the model takes 16 x 16"),
        (["--patch-size", 3], "patch"),
        (["--saved", tmp_path / "no.keras"], "no.keras"),
    ):
        with pytest.raises(SystemExit) as stopped:
            classify_images.main(parse(*options, "--output", tmp_path))
        assert re.search(f"^error: .*{message}", stopped.value.code), stopped.value.code


def test_what_cannot_be_told_apart_is_refused_before_the_training(tmp_path):
    """One class alone, and one that is in the test part only."""
    data = write_images(tmp_path / "data")
    for path in (data / "bright").iterdir():
        path.unlink()
    with pytest.raises(SystemExit, match="error: there is one class alone, 'dark'"):
        classify_images.main(parse("--data", data, "--output", tmp_path / "outputs", *TINY))
    rows = [(np.full((8, 8, 1), i, "float32"), "many") for i in range(9)]
    held_out = classify_images.reading.split(rows, lambda row: row[0].tobytes())[2]
    place = next(i for i, row in enumerate(rows) if row[0] is held_out[0][0])
    rows[place] = (rows[place][0], "rare")
    unknown = r"does not know the classes \['rare'\]"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit, match=unknown):
        patch.setattr(images, "read_images", lambda *_: rows)
        patch.setattr(classify_images, "train", None)
        classify_images.main(parse("--output", tmp_path / "outputs", *TINY))


def test_the_script_stays_short_enough_to_copy():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 150
