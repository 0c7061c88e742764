"""The figure of a published experiment."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedopt.comparing.curves import curve, draw_line, explained, from_to
from fedopt.comparing.recorded import Recorded
from fedopt.comparing.tables import moments
from fedopt.papers.measure import Mark
from fedopt.papers.published import Published
from fedopt.results.figures import describe, fill, grid, look, percent, plt, save_with_legend, spans_decades, styled
from fedopt.results.figures import marks as line_marks

NO_LINE: dict[str, Any] = {"linestyle": "none"}
STAR = NO_LINE | {"marker": "*", "markersize": 8, "markeredgecolor": "white", "markeredgewidth": 0.4}
END = NO_LINE | {"marker": "X", "markersize": 6, "color": "black", "clip_on": False}


@styled()
def draw_curves(paths: Sequence[Path], published: Published, lines: Mapping[str, list[Recorded]]) -> pd.DataFrame:
    """Draw a picture for each panel and metric: a row of them for each panel, or several panels in a row if there is one metric.

    A line has the same look in all pictures. Its name is what tells it apart from the others of its panel. lines: label -> its
    runs. Returns the curves, with the columns line, metric, the figure's x, mean, low, high.
    """
    panels = published.panels or {"": list(published.lines)}
    pictures = [(title, labels, metric) for title, labels in panels.items() for metric in published.y]
    columns = len(published.y) if len(published.y) > 1 else 2 if len(panels) == 4 else min(len(panels), 3)
    names = {label: name for labels in panels.values() for label, name in _names(labels, len(panels) > 1).items()}
    looks = {name: look(j) for j, name in enumerate(dict.fromkeys(names.values()))}
    figure, axes = grid(-(-len(pictures) // columns), columns)
    figure.suptitle(fill(f"{published.paper}: {published.title}", 54 * columns))
    logs, ends, parts = set(), [], []
    for axis, (title, labels, metric) in zip(axes.flat, pictures, strict=False):
        drawn = {label: runs for label in labels if (runs := _drawn(published, lines.get(label, []), metric))}
        log = _logarithmic(published, [run for runs in drawn.values() for run in runs], metric)
        logs.add(log)
        for j, (label, runs) in enumerate(drawn.items()):
            name, points = names[label], curve(runs, metric, log)
            cells = dict(zip((published.x, "mean", "low", "high"), points, strict=True))
            parts.append(pd.DataFrame({"line": label, "metric": metric, **cells}))
            if label in published.horizontal:
                level, colour = moments([run.values(metric)[-1] for run in runs])[0], looks[name]["color"]
                axis.axhline(level, color=colour, linestyle="--", label=f"{name} (last value)")
                continue
            draw_line(axis, name, points, looks[name] | line_marks(list(looks).index(name), j, len(drawn)))
            if any(run.status == "diverged" for run in runs):
                x, y = (part[-1] for part in points[:2])
                below = published.y_from is not None and y < published.y_from
                ends.append((axis, x, published.y_from if below else y, looks[name]["color"]))
        for name, level in published.constants.items():
            axis.axhline(level, color="black", linestyle=":", linewidth=0.8, label=f"{level:g}, {name}")
        for claim in published.claims if published.transform == "none" else []:
            mark = claim.measure.mark(claim.paper, published.y[0], published.x)
            if mark and mark.label in drawn and mark.metric == metric:
                _draw_mark(axis, mark, looks[names[mark.label]]["color"])
        titles = [runs[0].metric(metric).title for runs in drawn.values()] or [metric]
        y_label = published.y_label or titles[0] + (", squared" if published.transform == "square" else "")
        describe(axis, published.x_label or published.x, y_label, title)
        axis.set_yscale("log" if log else "linear")
        axis.set_ylim(percent(axis))
        if published.until is not None:
            axis.set_xlim(0, published.until)
        highest = max((np.nanmax(run.values(metric)) for runs in drawn.values() for run in runs), default=-np.inf)
        if published.y_from is not None and highest > published.y_from:  # not so after a few rounds
            axis.set_ylim(bottom=published.y_from)
    for axis, x, y, colour in ends:
        axis.plot(x, y, **END | {"color": colour})
        axis.plot([], [], **END | {"clip_on": True}, label="the first of the line's runs diverges here")  # no place
    for axis in axes.flat[len(pictures) :]:
        axis.remove()
    curves = [runs for label, runs in lines.items() if label not in published.horizontal]
    save_with_legend(figure, *paths, note=explained(curves, logs) if curves else "")
    empty = pd.DataFrame(columns=["line", "metric", published.x, "mean", "low", "high"])
    return pd.concat(parts).drop_duplicates() if parts else empty


def _names(labels: Sequence[str], several: bool) -> dict[str, str]:
    """label -> the line's name in its panel: of several panels, without what all lines of the panel have in common."""
    parts = {label: label.split(", ") for label in labels}
    shared = set.intersection(*map(set, parts.values())) if several and len(parts) > 1 else set()
    return {label: ", ".join(part for part in words if part not in shared) or label for label, words in parts.items()}


def _drawn(published: Published, runs: Sequence[Recorded], metric: str) -> list[Recorded]:
    """Those that have the metric, with the values that are drawn."""
    runs = [run for run in runs if metric in run.table]
    if published.transform == "square":
        runs = [replace(run, table=run.table.assign(**{metric: run.values(metric) ** 2})) for run in runs]
    return runs


def _logarithmic(published: Published, runs: Sequence[Recorded], metric: str) -> bool:
    if published.scale != "auto" or not runs:
        return published.scale == "log"
    return spans_decades(runs[0].metric(metric), np.concatenate([run.values(metric) for run in runs]))


def _draw_mark(axis: plt.Axes, mark: Mark, colour: str) -> None:
    """A star at the x that the paper's number belongs to; else dotted lines over the whole picture, a band between two of them."""
    if mark.x:
        axis.plot(mark.x, mark.y, color=colour, clip_on=False, zorder=5, **STAR)
    else:
        axis.axhspan(*mark.y, color=colour, alpha=0.1, linewidth=0)
        for y in mark.y:
            axis.axhline(y, color=colour, linestyle=":", linewidth=0.8)
    axis.plot([], [], color="black", label="the paper's numbers, in the line's colour", **STAR | {"linestyle": ":"})


@styled()
def draw_points(paths: Sequence[Path], published: Published, table: pd.DataFrame) -> None:
    """Draw the mean and the standard deviation of each point's finite values, on a logarithmic axis of their logarithms."""
    slopes = dict(filter(None, (claim.measure.slope(claim.paper) for claim in published.claims)))
    figure, ((axes,),) = grid(1, 1)
    figure.suptitle(fill(f"{published.paper}: {published.title}", 54))
    finite = table[np.isfinite(table["y"])]
    decades = {axis: finite[axis].min() > 0 and finite[axis].max() >= 10 * finite[axis].min() for axis in "xy"}
    log = {axis: published.scale == "log" or (published.scale == "auto" and decades[axis]) for axis in "xy"}
    for j, series in enumerate(published.points):
        rows = finite[finite["series"] == series]
        seeds = rows.assign(y=np.log(rows["y"]) if log["y"] else rows["y"]).groupby("x")["y"]
        mean, std = seeds.mean(), seeds.std().fillna(0)
        low, high = mean - std, mean + std
        mean, low, high = (np.exp(part) if log["y"] else part for part in (mean, low, high))
        axes.errorbar(mean.index, mean, [mean - low, high - mean], label=series, marker="o", capsize=3, **look(j))
        if series in slopes and len(mean) and log["x"] and log["y"]:
            line = mean.iloc[0] * (mean.index / mean.index[0]) ** slopes[series]
            label = f"{series}: slope {slopes[series]:g}, in the paper"
            axes.plot(mean.index, line, label=label, color=look(j)["color"], linestyle=":")
    describe(axes, published.x_label, published.y_label)
    if len(finite):
        axes.set_xscale("log" if log["x"] else "linear")
        if log["x"]:
            axes.set_xticks(finite["x"].unique(), [f"{x:.4g}" for x in finite["x"].unique()])
            axes.xaxis.minorticks_off()
        axes.set_yscale("log" if log["y"] else "linear")
    counts = set(finite.groupby(["series", "x"])["seed"].nunique())
    note = "points: 1 seed"
    if max(counts, default=1) > 1:
        mean, scale = ("geometric mean", " of the logarithm") if log["y"] else ("mean", "")
        note = f"points: {mean} of {from_to(counts)} seeds; bars: ± one standard deviation{scale}"
    save_with_legend(figure, *paths, note=fill(note, 62))
