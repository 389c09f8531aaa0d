"""Series of numbers: where they come from, and as windows of what is known and what comes behind it."""

import csv
import math

import numpy as np

import reading


def read_csv(path, column=None):
    """A column of a CSV file with a header, float64 (n,), by default the last; what is no number is refused."""
    rows = csv.DictReader(reading.read_text(path).lstrip().splitlines())
    column = column or rows.fieldnames[-1]
    if column.strip().replace(".", "").isdecimal():
        raise ValueError(f"{path}: the first line must name the columns. Received: {rows.fieldnames}")
    if column not in rows.fieldnames:
        raise ValueError(f"{path} has no column {column!r}. It has: {rows.fieldnames}")
    values = []
    for row in rows:
        try:
            values.append(float(row[column]))
        except (TypeError, ValueError):
            values.append(math.nan)
        if not math.isfinite(values[-1]):
            raise ValueError(f"{path}, line {rows.line_num}: {column} is no number. Received: {row[column]!r}")
    return np.asarray(values)


def sunspots():
    """Wolf's numbers by the year, 1700 to 2008."""
    from statsmodels.datasets import sunspots

    return sunspots.load_pandas().data["SUNACTIVITY"].to_numpy("float64")


def co2():
    """Parts per million on Mauna Loa by the month, 1958 to 2001."""
    from statsmodels.datasets import co2

    months = co2.load_pandas().data["co2"].resample("MS").mean()
    print(f"{months.isna().sum()} of {len(months)} months have no measurement: taken between their neighbours")
    return months.interpolate().to_numpy("float64")


PACKAGED, SEASONS = {"sunspots": sunspots, "co2": co2}, {"sunspots": 11, "co2": 12}


def windows(values, season, context, scale):
    """All windows: what is known, (n, context, 3), and what comes behind each place of it, (n, context, season).

    What comes is relative to the value of a season before, and both are in units of `scale`. What is known at a place
    is how far its value is above the season that ends there, the value before, and that of a season before.
    """
    starts = np.arange(season, len(values) - context - season + 1)  # the first season has none before it
    places = starts[:, None] + np.arange(context)
    level = np.convolve(values, np.full(season, 1 / season))[: len(values)]  # of the season that ends here
    known = [values - level, np.diff(values, prepend=values[0]), values - np.roll(values, season)]
    known = np.stack([of_kind[places] for of_kind in known], axis=-1)
    steps = places[..., None] + np.arange(1, season + 1)
    return (known / scale).astype("float32"), ((values[steps] - values[steps - season]) / scale).astype("float32")


def last_window(values, season, context_seasons, scale):
    """What is known at the end of the series, (1, context, 3)."""
    longer = np.concatenate([values, np.zeros(season)])  # what would come, of which nothing is read
    return windows(longer[-(context_seasons + 2) * season :], season, context_seasons * season, scale)[0]


def split(values, season, context_seasons):
    """((train, valid, test), scale): windows of the beginning, the middle and the end, which are forecast without
    overlap; and the mean error of "as a season before" on the beginning, which is the unit of MASE.
    """
    context = context_seasons * season
    cuts = [0, round(0.7 * len(values)), round(0.85 * len(values)), len(values)]
    before = context + season  # is known already
    parts = [values[max(0, first - before) : last] for first, last in zip(cuts, cuts[1:])]
    if min(map(len, parts)) < before + season:
        raise ValueError(f"{len(values)} values are too few for a season of {season} and a context of {context}")
    scale = np.abs(parts[0][season:] - parts[0][:-season]).mean()
    if not scale > 0:
        raise ValueError("the series repeats itself exactly: there is nothing to learn")
    return [windows(part, season, context, scale) for part in parts], scale
