"""The pictures in a run's folder: the partition of the data, the metrics of single clients, and the metrics of the run."""

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedopt.console import printable
from fedopt.data import Ragged
from fedopt.drawing.figures import OKABE_ITO, WIDTH, Line, describe, draw_lines, is_share, pictures, scale_of, within
from fedopt.files import read_text
from fedopt.metrics import EQUAL, FEW_ROWS, Metric

COLUMNS = 1000  # the largest number of columns of a heat map, since some runs have more clients than it has pixels
NUMBERS = 16  # with at most this many clients and classes, the cells of a heat map show numbers
MODELS = {"own": "with their own model", "common": "with the common model", "alone": "alone"}  # in clients.csv
INTERVALS = f"thin lines: 95 % intervals from each client's test examples; faded: fewer than {FEW_ROWS} of them"
PALE, THIN = 0.35, 0.7  # opacity, and width of a line
NAMES = 40  # with at most this many clients or classes, their names are shown


def partition(path: Path, split: Ragged, labels: np.ndarray, class_names: Sequence[str] = ()) -> None:
    """Draw a picture of the number of training examples of each class on each client, and write it to a file.

    The names of clients are shown if there is enough space.

    Args:
        path: The file to write.
        split: For each client, the indices of its examples.
        labels: The class of each example, by index.
        class_names: The names of the classes. Empty: their indices.
    """
    every, n = -(-len(split) // COLUMNS), int(labels[split.rows].max()) + 1
    clients = np.arange(0, len(split), every)
    counts = np.stack([np.bincount(labels[split[int(i)]], minlength=n) for i in clients])
    names = [_short(name) for name in split.names] if len(split.names) <= NAMES else []
    with pictures([path], 1, width=2 * WIDTH, height=2.6, place="none") as (axes,):
        ends = (-0.5, len(split) - 0.5, n - 0.5, -0.5)
        image = axes.imshow(counts.T, "cividis", aspect="auto", interpolation="nearest", extent=ends)
        axes.figure.colorbar(image, label="training examples")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(f"client{f', one of {every:,} shown' if every > 1 else ''}")
        if max(counts.shape) <= NUMBERS:
            for (place, c), count in np.ndenumerate(counts):
                colour = "black" if count > counts.max() / 2 else "white"
                axes.text(float(clients[place]), c, str(count), color=colour, ha="center", va="center")
        axes.set_ylabel("class")
        if n <= NAMES:
            axes.set_yticks(range(n), [_short(name) for name in class_names] or [*map(str, range(n))])
        if names:
            axes.set_xticks(clients, names, rotation="vertical")
        sizes = " to ".join(map(str, dict.fromkeys([int(split.sizes.min()), int(split.sizes.max())])))
        axes.set_title(f"{len(split)} clients, {sizes} training examples each")


def clients(path: Path, table: Path, metric: Metric) -> None:
    """Draw a test metric of each client with two models, so that readers see which clients gain, and write it to a file.

    The models are the first and the last of `MODELS` that were evaluated; a third one is drawn as crosses. The metric has a
    confidence interval, in a paler colour if the client has fewer than `FEW_ROWS` test examples. If only one model was
    evaluated, only its metric is drawn.

    Args:
        path: The file to write.
        table: The run's clients.csv. Clients without test examples are left out.
        metric: The description of the metric.
    """
    import pandas as pd  # imported here because it takes half a second

    frame = pd.read_csv(StringIO(read_text(table)), converters={"client": str})
    kinds = [kind for kind in MODELS if f"{kind}_{metric.name}" in frame]
    columns, words = [f"{kind}_{metric.name}" for kind in kinds], [MODELS[kind] for kind in kinds]
    frame = frame.dropna(subset=columns).sort_values(columns[-1], ascending=metric.sign < 0, kind="stable")
    if frame.empty:
        return
    values, column = frame[columns].to_numpy().T, columns[0]
    gains = np.where(np.isclose(values, values[0], rtol=EQUAL, atol=0), 0, metric.sign * (values - values[0]))
    title, note = f"{len(frame)} clients {words[0]}", INTERVALS if f"{column}_low" in frame else ""
    if len(columns) > 1:
        title = f"{_share(gains[-1])} of {len(frame)} clients do better {words[0]} than {words[-1]}"
    for gain, other in zip(gains[1:-1], words[1:-1], strict=True):
        title += f", {_share(gain)} than {other}"
    with pictures([path], 1, width=2 * WIDTH, height=2.6, title=title, note=note) as (axes,):
        for of_other, other in zip(values[1:-1], words[1:-1], strict=True):
            axes.plot(of_other, "x", color="0.4", label=other)
        if len(columns) > 1:
            axes.plot(values[-1], color="black", label=words[-1])
        low, high = (frame.get(f"{column}_{end}", frame[column]).to_numpy() for end in ("low", "high"))
        few = frame.get("test_rows", np.inf + frame[column]).to_numpy() < FEW_ROWS
        _draw_clients(axes, np.array([values[0], values[-1], low, high]), np.sign(gains[-1]), few, words[0])
        ends = np.concatenate([*values, low[~few], high[~few]])  # intervals from few examples may exceed it
        margin = 0.05 * np.ptp(ends) or 1
        axes.set_ylim(ends.min() - margin, ends.max() + margin)
        describe(axes, f"client, from the worst to the best {words[-1]}", f"{metric.title}; {metric.better} is better")
        names = [_short(name) for name in frame["client"]] if len(frame) <= NAMES else []
        axes.set_xticks(range(len(names)), names, rotation="vertical")


def _draw_clients(axes: Axes, values: np.ndarray, signs: np.ndarray, few: np.ndarray, label: str) -> None:
    """Draw a dot for the metric of each client, its confidence interval, and a line from the metric of another model to the
    dot.

    Args:
        axes: The axes.
        values: ``[4, M]``, for each client the value of its model, the value of the other model, and the ends of the
            interval.
        signs: ``[M]``, 1 if the client gains, -1 if it loses, 0 if the values are equal.
        few: Boolean array ``[M]``, true for clients with few test examples.
        label: The name of the model, for the legend.
    """
    others = (values[0] != values[1]).any()
    for name, sign, colour in (("better", 1, OKABE_ITO[0]), ("worse", -1, OKABE_ITO[1]), ("equal", 0, "0.4")):
        for of, alpha in ((few, PALE), (~few, 1.0)):
            at = np.flatnonzero(of & (signs == sign))
            if len(at):
                own, other, low, high = values[:, at]
                axes.vlines(at, other, own, color=colour, alpha=alpha * PALE)
                axes.vlines(at, low, high, color=colour, alpha=alpha, linewidth=THIN)
                axes.plot(at, own, "o", color=colour, alpha=alpha, label=f"{label}: {name}" if others else label)


def _share(gains: np.ndarray) -> str:
    """Return the percentage of positive numbers as text, such as '75 %'."""
    return f"{100 * np.mean(gains > 0):.0f} %"


def metrics(path: Path, table: Path, metrics: Sequence[Metric], title: str = "", source: str = "") -> None:
    """Draw every metric of a run against communication rounds, one picture per metric, and write the figure to a file.

    Args:
        path: The file to write.
        table: The run's metrics.csv.
        metrics: The descriptions of its metrics.
        title: A text that names the run.
        source: The run from whose checkpoint this run started; rounds are counted from that start. Empty: the run started
            from scratch.
    """
    rows = list(csv.DictReader(read_text(table).splitlines()))
    continues = f"continues {source} after {rows[0]['round']} rounds" if source else ""
    with pictures([path], len(metrics), title="; ".join(filter(None, [title, continues]))) as all_axes:
        for axis, metric in zip(all_axes, metrics, strict=True):
            columns = [[float(row[name] or "nan") for row in rows] for name in ("comm_rounds", metric.name)]
            costs, values = np.array(columns)
            axis.set_yscale(scale_of(metric, values))
            draw_lines(axis, {"": Line(costs, values)})
            describe(axis, "comm_rounds", metric.title)
            axis.locator_params("x", nbins=4)  # three panels leave no room for more
            axis.set_ylim(within(axis, is_share(metric.title, values)))


def _short(name: str) -> str:
    """Return a name for a figure.

    Names longer than 18 characters are shortened, unprintable characters are replaced, and $ is escaped, so that matplotlib
    does not read it as a formula.
    """
    return printable(name if len(name) <= 18 else f"{name[:17]}…").replace("$", r"\$")
