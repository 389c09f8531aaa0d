"""The forecasting script, from a series to its error and its picture."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
from matplotlib.image import imread

import forecast_series
import series
from tests import hurry
from tests.backend import numpy

SCRIPT = Path(forecast_series.__file__)
TINY = "--layers 1 --heads 2 --hidden-dim 16 --context-seasons 2 --batch-size 8".split()


def parse(*options):
    return forecast_series.parse_arguments([str(option) for option in options])


def write_csv(path, values):
    path.write_text("month,sold\n" + "".join(f"{i},{value}\n" for i, value in enumerate(values)), encoding="utf-8")
    return path


def seasons(count=120):
    return np.sin(np.arange(count) * np.pi / 2) + np.random.default_rng(0).normal(size=count) + np.arange(count) / 9


@pytest.fixture(scope="module", params=["decoder", "encoder"])
def trained(request, tmp_path_factory):
    """What a training of a few steps on a file printed, the file and the folder that it wrote to."""
    folder = tmp_path_factory.mktemp(request.param)
    data, printed = write_csv(folder / "sold.csv", seasons()), []
    with pytest.MonkeyPatch.context() as patch:
        hurry.train_few_steps(patch, 3)
        patch.setattr("builtins.print", lambda *args, **_: printed.append(" ".join(map(str, args))))
        options = ("--data", data, "--season", 4, "--output", folder, "--model", request.param)
        forecast_series.main(parse(*options, *TINY))
    return "\n".join(printed), data, folder


SCORES = r"MASE \d\.\d{3} \(as a season before: \d\.\d{3}\)\n80 % intervals hold [\d.]+% of the values; mean .*"


def test_training_writes_and_scores_the_model(trained):
    printed, _, folder = trained
    assert "120 values; " in printed and len(re.findall(SCORES, printed)) == 1
    names = {"sold.csv", "forecast.keras", "forecast.history.png", "forecast.png"}
    assert {path.name for path in folder.iterdir()} == names
    assert imread(folder / "forecast.png").ndim == 3


def test_the_saved_model_has_the_same_score(trained, capsys):
    printed, data, folder = trained
    options = ("--data", data, "--season", 4, "--output", folder, "--saved", folder / "forecast.keras")
    forecast_series.main(parse(*options, *TINY))
    again = capsys.readouterr().out
    assert re.findall(SCORES, again) == re.findall(SCORES, printed) and "parameters" not in again
    forecast_series.main(parse(*options, "--ahead", *TINY))
    header, *steps = capsys.readouterr().out.splitlines()[-5:]
    numbers = [list(map(float, re.findall(r"-?[\d.]+(?:e[+-]\d+)?", step))) for step in steps]
    assert header.startswith("step") and [row[0] for row in numbers] == [1, 2, 3, 4]
    assert all(low <= middle <= high for _, middle, low, high in numbers)


def test_what_is_known_at_the_end_is_the_last_window():
    values = seasons(60)
    known, _ = series.windows(np.concatenate([values, [7, 8, 9, 10]]), 4, 8, 2.0)
    np.testing.assert_allclose(series.last_window(values, 4, 2, 2.0), known[-1:], rtol=1e-5)


def test_a_decoder_knows_nothing_of_what_comes():
    known = np.random.default_rng(0).normal(size=(1, 8, 3)).astype("float32")
    changed = known.copy()
    changed[:, 5:] += 1
    for kind, shape, places in (("decoder", (1, 8, 4, 9), 5), ("encoder", (1, 1, 4, 9), 0)):
        model = forecast_series.build(parse("--model", kind, "--data", "a", "--season", 4, *TINY))
        one, other = (model.predict(x, verbose=0) for x in (known, changed))
        assert one.shape == shape and abs(one[:, -1] - other[:, -1]).max() > 1e-3
        np.testing.assert_allclose(one[:, :places], other[:, :places], atol=1e-5)


def test_windows_by_hand():
    values = np.arange(30.0) ** 2
    known, wanted = series.windows(values, season=3, context=6, scale=2.0)
    assert known.shape == (30 - 6 - 3 - 3 + 1, 6, 3) and wanted.shape == (19, 6, 3)
    for first in (0, 18):
        for place in range(6):
            now = 3 + first + place
            of_place = [values[now] - values[now - 2 : now + 1].mean(), values[now] - values[now - 1]]
            np.testing.assert_allclose(known[first, place] * 2, [*of_place, values[now] - values[now - 3]], rtol=1e-6)
            coming = [values[now + step] - values[now + step - 3] for step in (1, 2, 3)]
            np.testing.assert_allclose(wanted[first, place] * 2, coming, rtol=1e-6)


def test_what_is_held_out_changes_nothing_that_is_trained_on():
    """Planted: another end of the series. And all of the end is forecast."""
    values = seasons(200)
    other = values.copy()
    other[170:] = 1000
    (train, valid, test), scale = series.split(values, 4, 2)
    (same_train, same_valid, other_test), same_scale = series.split(other, 4, 2)
    assert scale == same_scale == pytest.approx(np.abs(values[4:140] - values[:136]).mean())
    for one, two in zip((*train, *valid), (*same_train, *same_valid)):
        np.testing.assert_array_equal(one, two)
    assert (test[1][:, -1] != other_test[1][:, -1]).all() and len(test[0]) == 30 - 4 + 1
    last = test[1][-1, -1] * scale + values[-8:-4]
    np.testing.assert_allclose(last, values[-4:], rtol=1e-5)


def test_the_loss_of_quantiles_by_hand():
    wanted = np.array([[[1.0, -2.0]]], "float32")
    forecast = np.zeros((1, 1, 2, 9), "float32")
    q = np.array(forecast_series.QUANTILES)
    expected = (q * 1.0 + (1 - q) * 2.0).mean() / 2
    found = numpy(forecast_series.pinball(*map(keras.ops.convert_to_tensor, (wanted, forecast))))
    np.testing.assert_allclose(found, [[expected]], rtol=1e-5)


def test_packaged_series(capsys):
    assert len(series.sunspots()) == 309 and series.sunspots()[4] == 36
    co2 = series.co2()
    assert len(co2) == 526 and np.isfinite(co2).all() and "5 of 526 months" in capsys.readouterr().out


def test_input_that_cannot_be_used_ends_with_one_line(tmp_path):
    write_csv(tmp_path / "short.csv", range(9))
    write_csv(tmp_path / "words.csv", [1, 2, "many"])
    write_csv(tmp_path / "same.csv", [1, 2, 3, 4] * 30)
    (tmp_path / "empty.csv").write_text("\n")
    (tmp_path / "broken.csv").write_bytes(b"a,b\n1,\xff\n")
    (tmp_path / "bare.csv").write_text("\n1.5\n2\n")
    for name, message in (
        ("no", "no"),
        ("empty.csv", "empty.csv is empty"),
        ("broken.csv", "broken.csv, line 2: not UTF-8"),
        ("bare.csv", r"bare.csv: the first line must name the columns. Received: \['1.5'\]"),
        ("short.csv", "9 values are too few for a season of 4 and a context of 8"),
        ("words.csv", "words.csv, line 4: sold is no number. Received: 'many'"),
        ("same.csv", "the series repeats itself exactly"),
    ):
        with pytest.raises(SystemExit) as stopped:
            forecast_series.main(parse("--data", tmp_path / name, "--season", 4, "--output", tmp_path, *TINY))
        assert re.search(f"^error: .*{message}", stopped.value.code), stopped.value.code
    with pytest.raises(ValueError, match=r"no column 'price'. It has: \['month', 'sold'\]"):
        series.read_csv(tmp_path / "short.csv", "price")
    for options in (["--data", "short.csv"], ["--season", "-5"], ["--ahead"]):
        with pytest.raises(SystemExit):
            parse(*options)


def test_the_script_stays_short_enough_to_copy():
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 150
