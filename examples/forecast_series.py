"""Train a Transformer to forecast a series of numbers a season ahead, with intervals, and plot what it expects.

    python examples/forecast_series.py                                # sunspots by the year, from statsmodels
    python examples/forecast_series.py --series co2 --model encoder   # CO2 on Mauna Loa by the month
    python examples/forecast_series.py --data sales.csv --column amount --season 12
    python examples/forecast_series.py --saved outputs/forecast.keras             # score it
    python examples/forecast_series.py --saved outputs/forecast.keras --ahead     # what comes behind the series

The model reads vectors in place of tokens, and says by how much the value of a season before will be wrong: nine
quantiles for each step. `decoder` learns that at every place of a window, `encoder` at its end. The error is MASE: 1 is
what "as a season before" has on the training part; that forecast stands beside the model on the held-out end of the
series. Ctrl-C ends the training early. Needs `pip install ".[examples]"` in a clone, and a backend.
To copy it, take `reading.py`, `series.py` and `tasks.py` along.
"""

import shlex
import sys
from pathlib import Path

import series
import tasks

SIZES = {"context_seasons": (3, "seasons that the model reads"), "batch_size": 32, "layers": 2, "heads": 4}
QUANTILES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def parse_arguments(argv=None):
    parser = tasks.options(__doc__, minutes=1.0, **SIZES, hidden_dim=32, dropout=0.1, learning_rate=1e-3)
    parser.add_argument("--model", choices=("decoder", "encoder"), default="decoder", help="default: decoder")
    parser.add_argument("--series", choices=series.SEASONS, default="sunspots", help="default: sunspots")
    parser.add_argument("--data", metavar="FILE.csv", type=Path, help="names of columns, then rows, the oldest first")
    parser.add_argument("--column", metavar="NAME", help="of --data; default: the last one")
    season = "steps of a season, all of which are forecast: 12 for months, 7 for days, 24 for hours, ..."
    parser.add_argument("--season", type=tasks.number(int), metavar="N", help=season)
    parser.add_argument("--ahead", action="store_true", help="forecast what comes behind, by --saved, and leave")
    args = parser.parse_args(argv)
    if args.data and not args.season:
        parser.error("--data needs --season: 12 for months, 7 for days, 24 for hours, ...")
    if args.ahead and not args.saved:
        parser.error("--ahead needs --saved")
    args.season = args.season or series.SEASONS[args.series]
    return args


if __name__ == "__main__":
    arguments = parse_arguments()
    tasks.choose_backend(arguments)

import keras
import numpy as np
from sklearn.metrics import mean_absolute_error, mean_pinball_loss

import keras_transformer as kt


def pinball(wanted, forecast):
    """Mean loss of the quantiles at each place, (B, T): (B, T, season) against (B, T, season, 9)."""
    error = keras.ops.expand_dims(wanted, -1) - forecast
    quantiles = keras.ops.convert_to_tensor(QUANTILES, dtype=error.dtype)
    return keras.ops.mean(keras.ops.maximum(quantiles * error, (quantiles - 1) * error), axis=(-2, -1))


def build(args):
    """Vectors (B, T, 3) to quantiles (B, T, season, 9), of the encoder for the last place alone."""
    inputs = keras.Input((args.context_seasons * args.season, 3))
    x = kt.layers.PositionalEmbedding(None, args.hidden_dim)(keras.layers.Dense(args.hidden_dim)(inputs))
    block = kt.layers.DecoderBlock if args.model == "decoder" else kt.layers.EncoderBlock
    for _ in range(args.layers):
        x = block(args.heads, 4 * args.hidden_dim, dropout=args.dropout, norm_placement="pre")(x)
    x = keras.layers.LayerNormalization()(x)
    if args.model == "encoder":
        x = kt.layers.SequencePooling("mean")(x)
    x = keras.layers.Dense(args.season * len(QUANTILES))(x)
    x = keras.layers.Reshape((-1, args.season, len(QUANTILES)))(x)
    return keras.Model(inputs, x, name=args.model)


def train(train_windows, valid_windows, path, args):
    known, wanted = train_windows
    last = np.zeros(valid_windows[1].shape[:2], "float32")
    last[:, -1] = last.shape[1]  # only what comes behind a window, the rest of which has been trained on; as a mean
    if args.model == "encoder":  # which sees all, so that nothing but that is left to forecast
        wanted, valid_windows, last = wanted[:, -1:], (valid_windows[0], valid_windows[1][:, -1:]), None
    repeats = [0] * max(1, 64 * args.batch_size // len(known))  # a short series several times in an epoch
    data = [np.concatenate([part for _ in repeats]) for part in (known, wanted)]
    model, valid = build(args), (*valid_windows, *([] if last is None else [last]))
    history = tasks.fit(model, data, valid, args, args.learning_rate, ("val_loss", "min"), loss=pinball)
    kt.inspect.plot_history(history, path.with_suffix(".history.png"))
    model.save(path)


def plot(values, forecast, path):
    """The end of the series, what was expected of it, and between which values it lies in 8 of 10 cases."""
    from matplotlib.figure import Figure

    season, figure = len(forecast), Figure(figsize=(9, 4), layout="constrained")
    axes, steps = figure.subplots(), np.arange(len(values))
    axes.plot(steps[-5 * season :], values[-5 * season :], color="black", label="measured")
    axes.plot(steps[-season:], values[-2 * season : -season], "--", color="gray", label="as a season before")
    axes.plot(steps[-season:], forecast[:, QUANTILES.index(0.5)], color="C0", label="forecast")
    axes.fill_between(steps[-season:], forecast[:, 0], forecast[:, -1], color="C0", alpha=0.25, label="80 %")
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=120)


def print_ahead(model, values, scale, args):
    """The next season: for each step what is expected, and between which values it lies in 8 of 10 cases."""
    known = series.last_window(values, args.season, args.context_seasons, scale)
    found = np.sort(model.predict(known, verbose=0)[0, -1], axis=-1)
    found = values[-args.season :, None] + scale * found[:, [0, QUANTILES.index(0.5), -1]]
    print("step  expected  80 % between")
    for step, (low, middle, high) in enumerate(found, 1):
        print(f"{step:4}  {middle:8.4g}  {low:.4g} and {high:.4g}")


def main(args):
    keras.utils.set_random_seed(args.seed)
    with tasks.one_line_errors():
        values = series.read_csv(args.data, args.column) if args.data else series.PACKAGED[args.series]()
        (train_windows, valid_windows, (known, wanted)), scale = series.split(values, args.season, args.context_seasons)
        print(f"{len(values):,} values; {len(train_windows[0]):,} windows to train on, {len(known):,} to test")
        path = args.saved or args.output / "forecast.keras"
        if args.ahead:
            return print_ahead(keras.models.load_model(path, compile=False), values, scale, args)
        args.output.mkdir(parents=True, exist_ok=True)
        if not args.saved:
            train(train_windows, valid_windows, path, args)
        model = keras.models.load_model(path, compile=False)  # the file, also just after the training
        found = np.sort(model.predict(known, verbose=0)[:, -1], axis=-1)  # quantiles in their order
    wanted = wanted[:, -1]  # in units of MASE, and 0 is "as a season before"
    ours = mean_absolute_error(wanted, found[..., QUANTILES.index(0.5)])
    inside = np.mean((wanted >= found[..., 0]) & (wanted <= found[..., -1]))
    losses = [mean_pinball_loss(wanted, found[..., i], alpha=quantile) for i, quantile in enumerate(QUANTILES)]
    print(f"MASE {ours:.3f} (as a season before: {mean_absolute_error(wanted, np.zeros_like(wanted)):.3f})")
    print(f"80 % intervals hold {inside:.1%} of the values; mean quantile loss {np.mean(losses):.3f}")
    picture, before = args.output / "forecast.png", values[-2 * args.season : -args.season]
    plot(values, before[:, None] + scale * found[-1], picture)
    print(f"written: {path}, {picture}\nagain:", shlex.join([sys.executable, *sys.argv, "--saved", str(path)]))


if __name__ == "__main__":
    main(arguments)
