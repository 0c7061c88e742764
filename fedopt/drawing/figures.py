"""The pictures in a run's folder, and what all pictures have in common."""

import logging
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import EngFormatter, MaxNLocator

from fedopt.console.texts import LONGEST, is_mathematics, printable
from fedopt.data.ragged import Ragged
from fedopt.errors import UserError
from fedopt.files.tables import read_table
from fedopt.files.writing import write_atomically
from fedopt.metrics import COSTS, Metric

OKABE_ITO = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]  # without yellow
NOMINAL, HATCHES = [*OKABE_ITO[:6], "#F0E442", "#999999"], ("", "/////", ".....")  # of classes, in this order
STYLE: Any = {  # of a column of a paper, 3.4 inches wide
    "font.size": 8,
    "legend.fontsize": "small",
    "legend.title_fontsize": "medium",
    "legend.borderaxespad": 0.2,
    "legend.handlelength": 2.6,  # in which dashes show
    "figure.titlesize": "medium",
    "axes.titlesize": "medium",
    "axes.prop_cycle": cycler(color=OKABE_ITO),
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.hashsalt": "fedopt",  # the same file for the same picture
    "savefig.dpi": 300,
}
SLIDES: Any = {"font.size": 20, "lines.linewidth": 3, "lines.markersize": 10, "savefig.dpi": 150}
SLIDE = (40 / 3, 7.5)  # inches, 16:9
WIDTH, HEIGHT = 3.4, 2.3  # inches, of one picture without its legend
GAP = 0.06  # inches beside what stands above and below the axes
FORMATS = ("png", "pdf", "svg")
LEGENDS = ("above", "below", "inside", "none")
MARKERS = "os^Dv<>"
DASHES = ["solid", "dashed", "dashdot", "dotted"]
logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no words about scripts that the font lacks
COLUMNS = 1000  # of a heat map, which has fewer pixels than some runs have clients
BARS = 20  # up to so many clients, and classes, are drawn as bars, more as a heat map
NAMES, LETTERS = 40, 90  # of clients: up to so many stand below their bars, and side by side up to so many letters


@contextmanager
def styled(more: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """While figures are made and written, also as a decorator; matplotlib's settings stay as they are. more: further ones."""
    settings: Any = {**STYLE, **more}
    with plt.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


@styled()
def partition(path: Path, split: Ragged, labels: np.ndarray, class_names: Sequence[str] = ()) -> None:
    """Clients by classes: how many training examples of which class each client has. Names are shown where they fit."""
    every = -(-len(split) // COLUMNS)
    clients = np.arange(0, len(split), every)
    counts = np.zeros((len(clients), int(labels[split.rows].max()) + 1))
    for of_client, i in zip(counts, clients, strict=True):
        of_client += np.bincount(labels[split[int(i)]], minlength=len(of_client))
    figure, ((axes,),) = grid(1, 1, 2 * WIDTH, 2.6)
    classes = [_short(name) for name in class_names] or list(map(str, range(counts.shape[1])))
    if max(counts.shape) <= BARS:
        above = np.cumsum(counts, axis=1)
        edges = (clients[:, None] + [-0.45, 0.45]).reshape(-1)
        tops, bottoms = (np.insert(to, range(1, len(split)), np.nan, axis=0) for to in (above, above - counts))
        for c, name in enumerate(classes):  # one patch a class: a bar for each client takes a second to draw
            fill = {"facecolor": NOMINAL[c % len(NOMINAL)], "hatch": HATCHES[c // len(NOMINAL)], "edgecolor": "white"}
            axes.stairs(tops[:, c], edges, baseline=bottoms[:, c], fill=True, linewidth=0, label=name, **fill)
        axes.set(ylabel="training examples", ylim=(0, None))
        columns = 1 if class_names and len(classes) <= 10 else 2
        axes.legend(title="class", ncols=columns, loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        ends = (-0.5, len(split) - 0.5, counts.shape[1] - 0.5, -0.5)
        image = axes.imshow(counts.T, aspect="auto", interpolation="nearest", cmap="cividis", extent=ends)
        figure.colorbar(image, label="training examples")
        axes.set_ylabel("class")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        if len(classes) <= BARS:
            axes.set_yticks(range(len(classes)), classes)
    where = ", whose name stands in run.json" * (len(split.names) > NAMES)
    axes.set_xlabel(f"client{where}{f', one of {every:,} shown' * (every > 1)}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if 0 < len(split.names) <= NAMES:
        names = list(map(_short, split.names))
        side_by_side = len(names) * (max(map(len, names)) + 2) <= LETTERS
        axes.set_xticks(clients, names, rotation="horizontal" if side_by_side else "vertical")
    sizes = " to ".join(map(str, dict.fromkeys([int(split.sizes.min()), int(split.sizes.max())])))
    axes.set_title(f"{len(split)} clients, {sizes} training examples each")
    save(figure, path, place="none")


@styled()
def metrics(path: Path, csv: Path, metrics: Sequence[Metric], title: str = "", source: str = "") -> None:
    """Every metric against communication rounds. title: which run. source: the run at whose end it began, from where they count."""
    table = read_table(csv)
    columns = 2 if len(metrics) == 4 else min(len(metrics), 3)
    rows = -(-len(metrics) // columns)
    figure, axes = grid(rows, columns)
    for axis, metric in zip(axes.flat, metrics, strict=False):
        values = table[metric.name].to_numpy()
        axis.plot(table["comm_rounds"], values, color=OKABE_ITO[0], marker="o" if len(table) == 1 else None)
        describe(axis, "comm_rounds", metric.title)
        scale_y(axis, metric, values)
        axis.set_ylim(within(axis, is_share(metric.title, values)))
    for axis in axes.flat[len(metrics) :]:
        axis.remove()
    goes_on = f"goes on from {source} after {table['round'].iloc[0]} rounds" if source else ""
    save(figure, path, title="; ".join(filter(None, [title, goes_on])))


def scale_y(axis: plt.Axes, metric: Metric, values: np.ndarray) -> None:
    """Give the y axis a logarithmic scale where the values span decades.

    Where small ones are below 0, as of a loss less that of a point near the minimiser, it is linear up to their size, and
    logarithmic from there on.
    """
    below = -min(values[np.isfinite(values)], default=0)
    if below > 0 and spans_decades(metric, np.append(values[values > below], below)):
        axis.set_yscale("symlog", linthresh=10.0 ** np.ceil(np.log10(below)))
    else:
        axis.set_yscale("log" if spans_decades(metric, values) else "linear")


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
    axis.set_xlabel(COSTS[x][1] if x in COSTS else cut(x))
    axis.set_ylabel(cut(y))
    if x == "bytes":
        axis.xaxis.set_major_formatter(EngFormatter(unit="B"))
    counts = x in COSTS and x != "seconds"
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10], integer=counts))
    axis.set_title(cut(title))
    axis.grid(alpha=0.3)


def is_share(title: str, values: np.ndarray) -> bool:
    """Whether values are percentages from 0 to 100, beyond which nothing of them is drawn. title: of their metric."""
    finite = values[np.isfinite(values)]
    return "%" in title and len(finite) > 0 and finite.min() >= 0 and finite.max() <= 100


def within(axis: plt.Axes, share: bool) -> tuple[float, float]:
    """The ends of the y axis; of a share without what is below 0 or above 100."""
    low, high = axis.get_ylim()
    return (max(low, 0), min(high, 100)) if share else (low, high)


def look(j: int) -> dict[str, Any]:
    """Of line j: colours that colour-blind readers can tell, or those of a style file; other dashes when they are used up."""
    colours = plt.rcParams["axes.prop_cycle"].by_key().get("color", OKABE_ITO)
    return {"color": colours[j % len(colours)], "linestyle": DASHES[j // len(colours) % len(DASHES)]}


def marks(j: int, line: int, lines: int) -> dict[str, Any]:
    """Marks on line `line` of a picture with so many lines, each line's at other places, so that lines that lie on each other show.
    j: as of `look`."""
    size = 0.75 * plt.rcParams["lines.markersize"]
    return {"marker": MARKERS[j % len(MARKERS)], "markersize": size, "markevery": (0.12 * line / lines, 0.12)}


def cut(text: str) -> str:
    """A text for a picture: cut if it is too long, with escapes for what is not printed; dollars of no formula are signs."""
    text = "\n".join(map(printable, (text if len(text) <= LONGEST else f"{text[:LONGEST]}…").split("\n")))
    return text if "$" not in text or all(map(is_mathematics, text.splitlines())) else text.replace("$", r"\$")


def grid(
    rows: int, columns: int, width: float | None = None, height: float | None = None, **shared: Any
) -> tuple[Figure, np.ndarray]:
    """A figure with axes [rows, columns], of so many inches in all; by default each as wide as a column of a paper. shared: sharex,
    sharey of matplotlib.

    It has none of pyplot's windows and notebook cells, in which nothing of a run's shall turn up, and which need the main thread.
    """
    figure = Figure(figsize=(width or WIDTH * columns, height or HEIGHT * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def _short(name: str) -> str:
    return printable(name if len(name) <= 18 else f"{name[:17]}…").replace("$", r"\$")


def save(
    figure: Figure, *paths: Path, title: str = "", note: str = "", place: str = "above", grows: bool = True
) -> None:
    """Write the figure with its title, one legend in which a label stands once, and a note below. place: of `LEGENDS`.

    grows: by the heights of these, so that the axes keep theirs. Raises UserError where nothing is left for the axes.
    """
    width, height = figure.get_size_inches()
    cells: Any = figure.axes[0].get_gridspec()
    handles: dict[str, Any] = {}
    for axis in figure.axes:
        handles |= {cut(label): handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        for text, side in ((axis.title, width / cells.ncols), (axis.xaxis.label, width / cells.ncols)):
            _fit(text, 0.8 * side)
        _fit(axis.yaxis.label, 0.65 * height / cells.nrows)
    parts: list[Any] = []
    if place == "inside":
        figure.axes[0].legend(handles.values(), handles)
    elif place == "above" and handles:
        parts, title = [_legend(figure, handles, "upper", title)], ""
    elif place == "below" and handles:
        parts, note = [_legend(figure, handles, "lower", note)], ""
    texts = [figure.suptitle(title)] if title else []
    texts += [figure.supxlabel(note, fontsize=plt.rcParams["legend.fontsize"])] if note else []
    for text in texts:
        _fit(text, 0.96 * width)
    if grows:
        figure.set_figheight(
            height + sum(part.get_window_extent().height / figure.dpi + GAP for part in [*parts, *texts])
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        try:
            figure.draw_without_rendering()
        except UserWarning:
            size, how = (
                f"{width:g} x {figure.get_figheight():.3g} inches",
                "a larger one or a smaller font gives them some",
            )
            raise UserError(f"the axes have no room in a figure of {size}; {how}") from None
        for path in paths:
            picture = BytesIO()
            figure.savefig(picture, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, picture.getvalue())


def _legend(figure: Any, handles: Mapping[str, Any], side: str, title: str) -> Legend:
    """In rows as wide as the figure, to be read row by row."""
    labels, width = {label: label for label in handles}, figure.get_figwidth()
    for columns in range(min(len(labels), int(2.4 * width)), 0, -1):
        order = [label for column in range(columns) for label in [*labels][column::columns]]
        place = {"loc": f"outside {side} center", "ncols": columns, "title": title, "frameon": False}
        legend = figure.legend([handles[label] for label in order], [labels[label] for label in order], **place)
        _fit(legend.get_title(), 0.96 * width)
        for label, text in zip(order, legend.get_texts(), strict=True):
            _fit(text, 0.96 * width - 5 * text.get_fontsize() / 72)
            labels[label] = text.get_text()
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()
    return legend


def _fit(text: Any, inches: float) -> None:
    """Break matplotlib's text into lines of no more than so many inches."""
    words = cut(text.get_text())
    text.set_text(words)
    letters = len(words)
    while letters > 1:
        extent = text.get_window_extent()
        long = (extent.height if text.get_rotation() else extent.width) / text.get_figure().dpi
        if long <= inches:
            return
        longest = max(map(len, text.get_text().splitlines()))
        letters = min(longest - 1, int(longest * inches / long))
        text.set_text(cut(textwrap.fill(words, max(letters, 1))))
