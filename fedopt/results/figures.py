"""The pictures in a run's folder."""

import logging
import warnings
from collections.abc import Sequence
from io import BytesIO, StringIO
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from matplotlib.text import Text

from fedopt.data.ragged import Ragged
from fedopt.metrics import Metric
from fedopt.results.folder import write_atomically

COSTS = {  # what a run spends: the columns of metrics.csv whose sum it is, and its label
    "comm_rounds": (("comm_rounds",), "communication rounds"),
    "bytes": (("bytes_down", "bytes_up"), "bytes communicated"),
    "seconds": (("train_seconds",), "training time (s)"),
    "round": (("round",), "rounds"),
}
logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no words about scripts that the font lacks
_mathematics = MathTextParser("path")
BARS = 200  # up to so many clients and classes are drawn as bars, more as an image


def partition(path: Path, split: Ragged, labels: np.ndarray | None) -> None:
    """Clients by classes: how many training examples of which class each client has."""
    clients = np.arange(len(split))
    classes = np.zeros(len(split.rows), dtype=np.int64) if labels is None else labels[split.rows]
    counts = np.zeros((len(split), int(classes.max()) + 1))
    np.add.at(counts, (np.repeat(clients, split.sizes), classes), 1)
    figure, ((axes,),) = _figure(1, 1, (9, 3.6))
    if max(counts.shape) <= BARS:
        below = np.cumsum(counts, axis=1) - counts
        for c in range(counts.shape[1]):
            axes.bar(clients, counts[:, c], 0.9, below[:, c], color=plt.colormaps["tab20"](c % 20), label=str(c))
        axes.set_ylabel("training examples")
        if labels is not None:
            axes.legend(title="class", ncols=2, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        image = axes.imshow(counts.T, aspect="auto", interpolation="nearest", cmap="viridis")
        figure.colorbar(image, label="training examples")
        axes.set_ylabel("class")
    axes.set_xlabel("client")
    axes.set_title(f"{len(split)} clients, {int(split.sizes.min())} to {int(split.sizes.max())} training examples each")
    _save(figure, path)


def metrics(path: Path, csv: Path, metrics: Sequence[Metric]) -> None:
    """Every metric against communication rounds."""
    table = pd.read_csv(StringIO(csv.read_text()))  # pandas would take a ~ in a path for the home folder
    columns = min(len(metrics), 3)
    rows = -(-len(metrics) // columns)
    figure, axes = _figure(rows, columns, (4 * columns, 3 * rows))
    for axis, metric in zip(axes.flat, metrics, strict=False):
        values = table[metric.name].to_numpy()
        axis.plot(table["comm_rounds"], values)
        set_scale(axis, metric, values)
        describe(axis, COSTS["comm_rounds"][1], metric.title)
    for axis in axes.flat[len(metrics) :]:
        axis.remove()
    _save(figure, path)


def set_scale(axis: plt.Axes, metric: Metric, values: np.ndarray) -> None:
    """Logarithmic where the metric says so and the values are positive and cover more than a decade."""
    finite = values[np.isfinite(values)]
    if metric.scale == "log" and len(finite) and finite.min() > 0 and finite.max() > 10 * finite.min():
        axis.set_yscale("log")


def describe(axis: plt.Axes, x: str, y: str, title: str = "") -> None:
    """Label the axes."""
    axis.set(xlabel=x, ylabel=y)
    axis.set_title(title, fontsize="medium")
    axis.grid(alpha=0.3)


def grid(rows: int, columns: int, lines: int) -> tuple[Figure, np.ndarray]:
    """A figure with axes [rows, columns] and room for a legend of so many lines."""
    return _figure(rows, columns, (max(7, 5 * columns), 3.8 * rows + 0.22 * lines + 0.4))


def _figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, np.ndarray]:
    """Without pyplot's windows and notebook cells, in which nothing of a run's shall turn up, and which need the main thread."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def save_with_legend(figure: Figure, path: Path) -> None:
    """Write the figure with one legend below all its axes, in which a label stands once."""
    named = [axis.get_legend_handles_labels() for axis in figure.axes]
    handles = {label: handle for pair in named for handle, label in zip(*pair, strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", fontsize="small")
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    picture = BytesIO()
    for text in figure.findobj(Text):
        try:
            _mathematics.parse(text.get_text())
        except ValueError:  # dollars that are no formula
            text.set_text(text.get_text().replace("$", r"\$"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(picture, dpi=120)
    write_atomically(path, picture.getvalue())
