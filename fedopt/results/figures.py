"""The pictures in a run's folder."""

import logging
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, MaxNLocator

from fedopt.data.ragged import Ragged
from fedopt.files.reading import read_text
from fedopt.files.writing import write_atomically
from fedopt.metrics import Metric

COSTS = {  # what a run spends: the columns of metrics.csv whose sum it is, and its label
    "comm_rounds": (("comm_rounds",), "communication rounds"),
    "bytes": (("bytes_down", "bytes_up"), "communication"),
    "seconds": (("train_seconds",), "training time (s)"),
    "round": (("round",), "rounds"),
    "grad_calls": (("grad_calls",), "client gradients"),
    "oracle_calls": (("grad_calls", "hvp_calls", "jvp_calls"), "client gradients and vector products"),
}
STYLE: Any = {  # of a column of a paper, 3.4 inches wide
    "font.size": 8,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "figure.titlesize": 8,
    "axes.titlesize": 8,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "pdf.fonttype": 42,
    "savefig.dpi": 300,
}
WIDTH, HEIGHT = 3.4, 2.3  # inches, of one picture without its legend
OKABE_ITO = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]  # without yellow
FORMATS = ("png", "pdf", "svg")
LEGENDS = ("below", "inside", "none")
LONGEST = 300  # characters of a label
MARKERS = "os^Dv<>"
DASHES = ["solid", "dashed", "dashdot", "dotted"]
logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no words about scripts that the font lacks
_mathematics = MathTextParser("path")
BARS, CLASSES = 200, 20  # up to so many clients, and classes, are drawn as bars, more as an image
NAMES, LETTERS = 40, 90  # of clients: up to so many stand below their bars, and side by side up to so many letters


@contextmanager
def styled() -> Iterator[None]:
    """While figures are made and written, also as a decorator; matplotlib's own settings stay as they are."""
    with plt.rc_context(STYLE):
        yield


@styled()
def partition(path: Path, split: Ragged, labels: np.ndarray | None, class_names: Sequence[str] = ()) -> None:
    """Clients by classes: how many training examples of which class each client has. Names of clients are shown where they fit."""
    clients = np.arange(len(split))
    classes = np.zeros(len(split.rows), dtype=np.int64) if labels is None else labels[split.rows]
    counts = np.zeros((len(split), int(classes.max()) + 1))
    np.add.at(counts, (np.repeat(clients, split.sizes), classes), 1)
    figure, ((axes,),) = _figure(1, 1, (2 * WIDTH, 2.6))
    if len(split) <= BARS and counts.shape[1] <= CLASSES:
        above = np.cumsum(counts, axis=1)
        edges = (clients[:, None] + [-0.45, 0.45]).reshape(-1)
        tops, bottoms = (np.insert(to, range(1, len(split)), np.nan, axis=0) for to in (above, above - counts))
        names = [_short(name) for name in class_names] or list(map(str, range(counts.shape[1])))
        for c, name in enumerate(names):  # one patch a class: a bar for each client takes a second to draw
            colour = plt.colormaps["viridis"](c / max(1, counts.shape[1] - 1))
            axes.stairs(tops[:, c], edges, baseline=bottoms[:, c], fill=True, color=colour, label=name)
        axes.set(ylabel="training examples", ylim=(0, None))
        if labels is not None:
            columns = 1 if class_names and len(names) <= 10 else 2
            axes.legend(title="class", ncols=columns, loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        image = axes.imshow(counts.T, aspect="auto", interpolation="nearest", cmap="viridis")
        figure.colorbar(image, label="training examples")
        axes.set_ylabel("class")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("client" if len(split.names) <= NAMES else "client, whose name stands in run.json")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if 0 < len(split.names) <= NAMES:
        names = list(map(_short, split.names))
        side_by_side = len(names) * (max(map(len, names)) + 2) <= LETTERS
        axes.set_xticks(clients, names, rotation="horizontal" if side_by_side else "vertical")
    sizes = " to ".join(map(str, dict.fromkeys([int(split.sizes.min()), int(split.sizes.max())])))
    axes.set_title(f"{len(split)} clients, {sizes} training examples each")
    _save(figure, path)


@styled()
def metrics(path: Path, csv: Path, metrics: Sequence[Metric], source: str | None = None) -> None:
    """Every metric against communication rounds. source: the run at whose end this one began, from where on they count."""
    table = pd.read_csv(StringIO(read_text(csv)))  # pandas would take a ~ in a path for the home folder
    columns = 2 if len(metrics) == 4 else min(len(metrics), 3)
    rows = -(-len(metrics) // columns)
    figure, axes = grid(rows, columns)
    for axis, metric in zip(axes.flat, metrics, strict=False):
        values = table[metric.name].to_numpy()
        axis.plot(table["comm_rounds"], values, color=OKABE_ITO[0])
        if spans_decades(metric, values):
            axis.set_yscale("log")
        describe(axis, "comm_rounds", metric.title)
    for axis in axes.flat[len(metrics) :]:
        axis.remove()
    if source:
        figure.suptitle(fill(f"goes on from {source} after {table['round'].iloc[0]} rounds", 45 * columns))
    _save(figure, path)


def spans_decades(metric: Metric, values: np.ndarray) -> bool:
    """Whether finite values are positive and cover more than one decade, or two where the metric does not ask for that scale.

    A metric that is better when higher, such as an accuracy, must ask for it.
    """
    finite, asks = values[np.isfinite(values)], metric.scale == "log"
    if not len(finite) or finite.min() <= 0 or (metric.better == "higher" and not asks):
        return False
    return bool(finite.max() > (10 if asks else 100) * finite.min())


def describe(axis: plt.Axes, x: str, y: str, title: str = "") -> None:
    """Label the axes. x: of `COSTS`, or a label."""
    axis.set_xlabel(COSTS[x][1] if x in COSTS else fill(x, 46))  # as long as a picture is wide
    axis.set_ylabel(fill(y, 34))
    if x == "bytes":
        axis.xaxis.set_major_formatter(EngFormatter(unit="B"))
    counts = x in COSTS and x != "seconds"
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10], integer=counts))
    axis.set_title(fill(title, 46))
    axis.grid(alpha=0.3)


def percent(axis: plt.Axes) -> tuple[float, float]:
    """The ends of the y axis; of percentages without what a band has far below 0 or above 100."""
    low, high = axis.get_ylim()
    return (max(low, -3), min(high, 103)) if "(%)" in axis.get_ylabel() else (low, high)


def look(j: int) -> dict[str, Any]:
    """Of line j: colours that colour-blind readers can tell, other dashes when they are used up."""
    return {"color": OKABE_ITO[j % len(OKABE_ITO)], "linestyle": DASHES[j // len(OKABE_ITO) % len(DASHES)]}


def marks(j: int, line: int, lines: int) -> dict[str, Any]:
    """Marks on line `line` of a picture with so many lines, each line's at other places, so that lines that lie on each other show.
    j: as of `look`."""
    return {"marker": MARKERS[j % len(MARKERS)], "markersize": 3, "markevery": (0.12 * line / lines, 0.12)}


def fill(text: str, width: int) -> str:
    """A text in lines of so many characters. One that is too long for any picture is cut."""
    return textwrap.fill(text if len(text) <= LONGEST else f"{text[:LONGEST]}…", width)


def grid(rows: int, columns: int) -> tuple[Figure, np.ndarray]:
    """A figure with axes [rows, columns], each as wide as a column of a paper."""
    return _figure(rows, columns, (WIDTH * columns, HEIGHT * rows))


def _short(name: str) -> str:
    return (name if len(name) <= 18 else f"{name[:17]}…").replace("$", r"\$")


def _figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, np.ndarray]:
    """Without pyplot's windows and notebook cells, in which nothing of a run's shall turn up, and which need the main thread."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def save_with_legend(figure: Figure, *paths: Path, note: str = "", place: str = "below") -> None:
    """Write the figure with one legend, in which a label stands once. place: of `LEGENDS`.

    Below all axes, for which the figure grows, it has a note and, for several short labels, two columns.
    """
    of_axes = [axis.get_legend_handles_labels() for axis in figure.axes]
    handles = {label: handle for pair in of_axes for handle, label in zip(*pair, strict=True)}
    width = figure.get_figwidth()
    labels = [fill(label, int(16 * width)) for label in handles]
    if place == "below":
        columns = 2 if len(handles) > 3 and max(map(len, handles)) <= 5.5 * width else 1
        lines = -(-sum(text.count("\n") + 1 for text in labels) // columns) + note.count("\n") + 1
        figure.set_figheight(figure.get_figheight() + 0.16 * lines + 0.2)
        figure.legend(handles.values(), labels, loc="outside lower center", title=note, ncols=columns)
    elif place == "inside":
        figure.axes[0].legend(handles.values(), labels)
    _save(figure, *paths)


def _save(figure: Figure, *paths: Path) -> None:
    for text in figure.findobj(Text):
        try:
            _mathematics.parse(text.get_text())
        except ValueError:  # dollars that are no formula
            text.set_text(text.get_text().replace("$", r"\$"))
    for path in paths:
        picture = BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")
            figure.savefig(picture, format=path.suffix[1:])
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, picture.getvalue())
