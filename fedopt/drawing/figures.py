"""Figures: their style, axes, lines with bands, and files. This module does not depend on runs."""

import logging
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.scale import LinearScale, LogScale, ScaleBase, SymmetricalLogScale
from matplotlib.ticker import EngFormatter, MaxNLocator

from fedopt.console import LONGEST, is_mathematics, printable
from fedopt.errors import UserError
from fedopt.files import write_atomically
from fedopt.metrics import COSTS, Metric

OKABE_ITO = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]  # without yellow
STYLE: Any = {  # for the column of a paper, 3.4 inches wide
    "font.size": 8,
    "legend.fontsize": "medium",
    "legend.title_fontsize": "medium",
    "legend.borderaxespad": 0.2,
    "legend.handlelength": 2.6,  # long enough to show the dashes
    "figure.titlesize": "medium",
    "axes.titlesize": "medium",
    "axes.prop_cycle": cycler(color=OKABE_ITO),
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.hashsalt": "fedopt",  # so that the same picture gives the same file
    "savefig.dpi": 300,
}
WIDTH, HEIGHT = 3.4, 2.3  # inches, of one picture without its legend
PAGE = 7.2  # inches: on a page, wider figures and their letters would be scaled down
GAP = 0.06  # inches between the axes and what is above and below them
FEW = 8  # a line with at most this many points may have bars instead of a band
FORMATS = ("png", "pdf", "svg")
LEGENDS = ("above", "inside", "none")
STRONG = 4  # the number of lines of a picture with colours and bands; all others are grey
LISTED = 12  # with more lines in a picture, the legend leaves out the grey lines
GREY = "#999999"
MARKERS = "os^Dv<>Ppd*"  # no common divisor with the number of dashes, so that grey lines rarely look the same
DASHES = ["solid", "dashed", "dashdot", "dotted"]
logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no warnings about scripts that the font lacks


@contextmanager
def styled(more: Mapping[str, Any] = MappingProxyType({})) -> Iterator[None]:
    """Return a context in which matplotlib uses fedopt's style (`STYLE`); the previous settings are restored afterwards.

    Args:
        more: Further matplotlib settings (rcParams), which take precedence.
    """
    settings: Any = {**STYLE, **more}
    with plt.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


def scale_of(metric: Metric, values: np.ndarray) -> ScaleBase:
    """Return the scale of an axis: logarithmic if the values span decades (`spans_decades`), else linear.

    If some values are slightly negative, for example of a loss minus its minimum, the scale is symlog, which is linear
    around 0 and logarithmic elsewhere.

    Args:
        metric: The description of the metric on the axis.
        values: The values.
    """
    below = -min(values[np.isfinite(values)], default=0)
    if below > 0 and spans_decades(metric, np.append(values[values > below], below)):
        return SymmetricalLogScale(None, linthresh=10.0 ** np.ceil(np.log10(below)))
    return named_scale(spans_decades(metric, values))


def named_scale(log: bool) -> ScaleBase:
    """Return matplotlib's logarithmic scale, or its linear scale if ``log`` is False."""
    return LogScale(None) if log else LinearScale(None)


def spans_decades(metric: Metric, values: np.ndarray) -> bool:
    """Return whether the finite values are positive and span decades.

    They do if the ratio of the largest to the smallest value exceeds 10 (if the metric's scale is log) or 100 (otherwise).
    If the metric's scale is not log and higher values are better, as for an accuracy, the result is False.

    Args:
        metric: The description of the metric.
        values: The values.
    """
    finite, asks = values[np.isfinite(values)], metric.scale == "log"
    if not len(finite) or finite.min() <= 0 or (metric.better == "higher" and not asks):
        return False
    return bool(finite.max() > (10 if asks else 100) * finite.min())


def describe(axis: plt.Axes, x: str, y: str, title: str = "") -> None:
    """Set the labels, title, ticks and grid of a picture.

    Args:
        axis: The axes of the picture.
        x: A key of `COSTS`, or the label of the x axis.
        y: The label of the y axis.
        title: The title above the picture. Empty: no title.
    """
    axis.set_xlabel(COSTS[x].label if x in COSTS else cut(x))
    axis.set_ylabel(cut(y))
    if x == "bytes":
        axis.xaxis.set_major_formatter(EngFormatter(unit="B"))
    counts = x in COSTS and x != "seconds"
    if axis.get_xscale() == "linear":
        axis.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10], integer=counts))
    axis.set_title(cut(title))
    axis.grid(alpha=0.3)


def is_share(title: str, values: np.ndarray) -> bool:
    """Return whether values are percentages: the title contains %, and all finite values are between 0 and 100.

    The result is False if there are no finite values.

    Args:
        title: The title of the metric.
        values: The values.
    """
    finite = values[np.isfinite(values)]
    return "%" in title and len(finite) > 0 and finite.min() >= 0 and finite.max() <= 100


def within(axis: plt.Axes, share: bool) -> tuple[float, float]:
    """Return the current limits (low, high) of the y axis, clipped to the range 0 to 100 for percentages.

    Args:
        axis: The axes.
        share: Whether the values are percentages.
    """
    low, high = axis.get_ylim()
    return (max(low, 0), min(high, 100)) if share else (low, high)


def look(j: int, rank: int | None = None) -> dict[str, Any]:
    """Return the colour, dashes and marker of a line, as options of matplotlib's `plot`.

    No two lines share all three. The first `STRONG` lines of a picture have colours of the style, by default colours that
    colour-blind readers can tell apart. All other lines are grey.

    Args:
        j: The line's index among all lines of the figure.
        rank: The line's index among the lines of its picture. None: the same as j.
    """
    colours = plt.rcParams["axes.prop_cycle"].by_key().get("color", OKABE_ITO)
    marker = MARKERS[j % len(MARKERS)] if j < len(MARKERS) * len(DASHES) else f"${j}$"
    if j < len(colours) and (j if rank is None else rank) < STRONG:
        return {"color": colours[j], "linestyle": "solid", "marker": marker}
    return {"color": GREY, "linestyle": DASHES[j % len(DASHES)], "marker": marker}


class Line(NamedTuple):
    """A line and the band around it; each array has shape [points].

    Attributes:
        x: The costs.
        mean: The means.
        low, high: The ends of the band. None: the line has no band.
    """

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    def clipped(self) -> "Line":
        """Return a copy whose band is clipped to the range 0 to 100, for percentages."""
        return self._replace(low=np.clip(self.low, 0, 100), high=np.clip(self.high, 0, 100))  # type: ignore[arg-type]


def draw_lines(
    axis: plt.Axes,
    lines: Mapping[str, Line],
    slots: Mapping[str, int] = MappingProxyType({}),
    bars: bool = False,
    diverged: Collection[str] = (),
) -> None:
    """Draw lines with their bands, and set the limits of the y axis so that all of them are visible (see `_heights`).

    The scale of the y axis must be set before. Markers are shifted along the lines, so that lines that coincide can be told
    apart. Grey lines, and lines in which a run diverged, have no band. The legend leaves out grey lines if there are more
    than `LISTED` lines.

    Args:
        axis: The axes.
        lines: label -> line.
        slots: label -> index of the line's colour (see `look`). Empty: lines are coloured in the order of ``lines``.
        bars: Whether lines of at most `FEW` points get error bars, side by side, instead of bands.
        diverged: The labels of the lines in which a run diverged.
    """
    size, several = 0.75 * plt.rcParams["lines.markersize"], len(lines) + len(axis.lines) > 1
    before, heights = axis.dataLim.intervaly.copy(), _heights(axis, lines, diverged)
    places = {label: slots.get(label, j) for j, label in enumerate(lines)}
    for j, label in enumerate(sorted(lines, key=lambda label: places[label])):
        (x, mean, low, high), style = lines[label], look(places[label], j)
        strong = style["color"] != GREY
        style |= {"markersize": size, "markevery": (0.12 * j / len(lines), 0.12), "zorder": 2 if strong else 1.5}
        if not several and len(x) > 1:
            style["marker"] = None
        name = label if strong or len(lines) <= LISTED else "other lines"
        if bars and 1 < len(x) <= FEW:
            axis.plot(x, mean, color=style["color"], alpha=0.4)
            x = x + 0.4 * ((j + 0.5) / len(lines) - 0.5) * np.diff(x).min()
            axis.plot(x, mean, label=name, **style | {"markevery": None, "linestyle": "none"})
            axis.vlines(x, low, high, color=style["color"])  # type: ignore[arg-type]
            continue
        axis.plot(x, mean, label=name, **style)
        if strong and label not in diverged and low is not None and high is not None:
            axis.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)
    axis.dataLim.intervaly = min(before[0], heights[0]), max(before[1], heights[1])


def _heights(axis: plt.Axes, lines: Mapping[str, Line], diverged: Collection[str]) -> tuple[float, float]:
    """Return the range (low, high) that the y axis of a picture has to show.

    The range contains the mean of every line; of a line in which a run diverged, only the first value (unless all lines are
    such). Bands and the rest of diverged lines extend it on each side by at most half of its size, measured on the axis's
    scale.

    Args:
        axis: The axes of the picture, whose scale of the y axis is set.
        lines: label -> line.
        diverged: The labels of the lines in which a run diverged.
    """
    scale = axis.yaxis.get_transform()

    def ends(values: Sequence[np.ndarray | None]) -> np.ndarray:
        every = np.concatenate([np.empty(0), *(np.atleast_1d(array) for array in values if array is not None)])
        every = every[np.isfinite(every) & ((every > 0) | (axis.get_yscale() != "log"))]
        return scale.transform(np.array([every.min(), every.max()])) if len(every) else np.array([np.inf, -np.inf])

    counted = dict.fromkeys(diverged, 1) if not {*lines} <= {*diverged} else {}
    low, high = core = ends([line.mean[: counted.get(label)] for label, line in lines.items()])
    margin = (high - low) / 2 or np.inf
    every = ends([array for label, line in lines.items() for array in line[1 : 2 if label in diverged else 4]])
    if np.isfinite(core).all():
        low, high = scale.inverted().transform(np.clip(every, low - margin, high + margin))
    return float(low), float(high)


def cut(text: str) -> str:
    """Return a text for a figure: shortened if it is too long, and with unprintable characters escaped.

    Text between two $ is drawn as a formula if matplotlib can parse the whole text; otherwise each $ is shown as a
    character.
    """
    text = "\n".join(map(printable, (text if len(text) <= LONGEST else f"{text[:LONGEST]}…").split("\n")))
    return text if "$" not in text or all(map(is_mathematics, text.splitlines())) else text.replace("$", r"\$")


@contextmanager
def pictures(
    paths: Sequence[Path],
    count: int,
    columns: int | None = None,
    width: float | None = None,
    height: float | None = None,
    *,
    settings: Mapping[str, Any] = MappingProxyType({}),
    shared: Mapping[str, Any] = MappingProxyType({}),
    **written: Any,
) -> Iterator[list[plt.Axes]]:
    """Yield the axes of a new figure, row by row, to draw on; write the figure after the `with` block.

    Args:
        paths: The files; their endings choose the formats.
        count: The number of axes.
        columns: The number of axes in a row. None: at most three, and two if there are four.
        width: Inches of the whole figure. None: each of the axes is as wide as the column of a paper, and the figure is at most
            `PAGE` wide.
        height: Inches of the whole figure. None: it follows from the number of rows.
        settings: matplotlib settings in addition to `STYLE`.
        shared: Options of matplotlib's `subplots`, such as sharex.
        written: Further arguments of `save`: title, note, place and grows.

    Raises:
        UserError: The figure is too small for its axes.
    """
    columns = columns or (2 if count == 4 else min(count, 3))
    rows = -(-count // columns)
    size = width or min(WIDTH * columns, PAGE), height or HEIGHT * rows
    with styled(settings):
        figure = Figure(size, layout="constrained")  # not pyplot's: never shown by itself, usable in any thread
        axes = figure.subplots(rows, columns, squeeze=False, **shared).flat
        for empty in axes[count:]:
            empty.remove()
        yield [*axes[:count]]
        save(figure, *paths, **written)


def save(fig: Figure, *paths: Path, title: str = "", note: str = "", place: str = "above", grows: bool = True) -> None:
    """Add a title, one legend without repeated labels, and a note to a figure, and write it to files.

    Args:
        fig: The figure. Its texts are broken into lines, and its height may grow, in place.
        paths: The files; their endings choose the formats. Missing folders are created.
        title: A text above the pictures.
        note: A text below the pictures.
        place: Where the legend is placed, one of `LEGENDS`; inside means inside the first picture.
        grows: Whether the figure grows by the height of title, legend and note, so that the axes keep their height.

    Raises:
        UserError: The figure is too small for its axes.
    """
    width, height = fig.get_size_inches()
    cells: Any = fig.axes[0].get_gridspec()
    layout: Any = fig.get_layout_engine()
    handles: dict[str, Any] = {}
    for axis in fig.axes:
        handles |= {cut(label): handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        for text, side in ((axis.title, width / cells.ncols), (axis.xaxis.label, width / cells.ncols)):
            _fit(text, 0.8 * side)
        _fit(axis.yaxis.label, 0.65 * height / cells.nrows)
    above: list[Any] = []
    if place == "inside":
        fig.axes[0].legend(handles.values(), handles)
    elif place == "above" and handles:
        above, title = [_legend(fig, handles, title)], ""
    texts = [fig.suptitle(title)] if title else []
    texts += [fig.supxlabel(note, fontsize=plt.rcParams["legend.fontsize"])] if note else []
    for text in texts:
        _fit(text, 0.96 * width)
    if grows:
        heights = [item.get_window_extent().height / fig.dpi + GAP for item in [*above, *texts]]
        fig.set_figheight(height + sum(heights))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        try:
            layout.execute(fig)
        except UserWarning:
            size = f"{width:g} x {fig.get_figheight():.3g} inches"
            raise UserError(f"no space for the axes in {size}; make the figure larger, or the font smaller") from None
        fig.set_layout_engine(None)  # computed once for all formats, as it takes longer than drawing
        for path in paths:
            picture = BytesIO()
            fig.savefig(picture, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, picture.getvalue())


def _legend(figure: Any, handles: Mapping[str, Any], title: str) -> Legend:
    """Add a legend above the pictures, and return it. It is at most as wide as the figure, and its entries are ordered row
    by row.

    Args:
        figure: The figure.
        handles: label -> matplotlib's handle of the line.
        title: The legend's title.
    """
    labels, width = {label: label for label in handles}, figure.get_figwidth()
    for columns in range(min(len(labels), int(2.4 * width)), 0, -1):
        order = [label for column in range(columns) for label in [*labels][column::columns]]
        place = {"loc": "outside upper center", "ncols": columns, "title": title, "frameon": False}
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
    """Break a matplotlib text into lines that are not wider than a limit. The text is changed in place.

    Text that cannot be broken, such as a formula, gets a smaller font.

    Args:
        text: The matplotlib text.
        inches: The largest width; for a vertical text, the largest height.
    """

    def width() -> float:
        """Return the width of the text as a multiple of the limit."""
        extent = text.get_window_extent()
        return float(extent.height if text.get_rotation() else extent.width) / text.get_figure().dpi / max(inches, 0.1)

    text.set_text(cut(text.get_text()))
    words = re.sub(r"\$[^$]+\$", lambda formula: formula[0].replace(" ", "\u00a0"), text.get_text())
    letters = len(words)
    while (times := width()) > 1 and letters > 1:
        letters = max(int(letters / max(times, 1.1)), 1)
        lines = wrap(words, letters, break_long_words="$" not in words, break_on_hyphens=False)
        text.set_text("\n".join(lines).replace("\u00a0", " "))
    text.set_fontsize(text.get_fontsize() / max(times, 1))
