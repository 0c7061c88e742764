"""The figure of a published experiment, drawn from a table: of its runs, or of what is kept of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedopt.analysis.lines import FEW, curve, draw_line, explained
from fedopt.analysis.runs import Recorded
from fedopt.drawing.figures import describe, grid, is_share, look, plt, save, spans_decades, styled, within
from fedopt.drawing.figures import marks as line_marks
from fedopt.papers.measure import Mark
from fedopt.papers.published import Published

NO_LINE: dict[str, Any] = {"linestyle": "none"}
STAR = NO_LINE | {"marker": "*", "markersize": 8, "markeredgecolor": "white", "markeredgewidth": 0.4}
END = NO_LINE | {"marker": "X", "markersize": 6, "color": "black", "clip_on": False}
CURVES = ("line", "metric", "title", "scale", "seeds", "diverged")  # before the figure's x and what `curve` gives


def curves(published: Published, lines: Mapping[str, list[Recorded]]) -> pd.DataFrame:
    """Return the points of all lines, in the columns `CURVES`, then the figure's x, mean, low and high.

    title: of the metric; scale: of its axes; seeds: their number; diverged: whether a run did.

    lines: label -> its runs.
    """
    parts = []
    for metric in published.y:
        drawn = {label: its for label, runs in lines.items() if (its := _drawn(published, runs, metric))}
        log = _logarithmic(published, [run for runs in drawn.values() for run in runs], metric)
        for label, runs in drawn.items():
            title, diverged = runs[0].metric(metric).title, any(run.status == "diverged" for run in runs)
            facts = (label, metric, title, "log" if log else "linear", len(runs), diverged)
            points = dict(zip((published.x, "mean", "low", "high"), curve(runs, metric, log), strict=True))
            parts.append(pd.DataFrame(dict(zip(CURVES, facts, strict=True)) | points))
    columns = [*CURVES, published.x, "mean", "low", "high"]
    return pd.concat(parts) if parts else pd.DataFrame(columns=columns)


@styled()
def draw_curves(paths: Sequence[Path], published: Published, table: pd.DataFrame) -> None:
    """Draw one picture for each metric and panel: a row of pictures for each panel, or several panels in a row.

    A line has the same look in all pictures, and its name is what differs from the other lines of its panel.

    paths: the files to write. table: as `curves` returns it.
    """
    panels = published.panels or {"": list(published.lines)}
    pictures = [(title, labels, metric) for title, labels in panels.items() for metric in published.y]
    columns = len(published.y)
    by_metric = len(published.y) > 1 and len(panels) <= 4
    if not by_metric:
        pictures.sort(key=lambda picture: published.y.index(picture[2]))
        columns = 2 if len(panels) == 4 else min(len(panels), 3)
    names = {(t, label): name for t, labels in panels.items() for label, name in _names(t, labels).items()}
    looks = {name: look(j) for j, name in enumerate(dict.fromkeys(names.values()))}
    rows = -(-len(pictures) // columns)
    figure, axes = grid(rows, columns, sharex=True, sharey="col" if by_metric else "row")
    ends, limits, marked = [], [], False
    for k, (axis, (panel, labels, metric)) in enumerate(zip(axes.flat, pictures, strict=False)):
        part = table[(table["metric"] == metric) & table["line"].isin(labels)]
        drawn = {label: its for label in labels if len(its := part[part["line"] == label])}
        title, highest = next(iter(part["title"]), metric), part["mean"].max()
        share = is_share(title, part["mean"].to_numpy(dtype=float))
        for j, (label, of_line) in enumerate(drawn.items()):
            name = names[panel, label]
            style = looks[name]
            points = of_line[[published.x, "mean", "low", "high"]].to_numpy(dtype=float, copy=True).T
            points[2:] = points[2:].clip(0, 100) if share else points[2:]
            if label in published.horizontal:
                axis.axhline(points[1][-1], color=style["color"], linestyle="--", label=f"{name} (last value)")
                continue
            beside = (j - (len(drawn) - 1) / 2) / len(drawn)
            draw_line(axis, name, points, style | line_marks(list(looks).index(name), j, len(drawn)), beside)
            if of_line["diverged"].any():
                x, y = points[:2, -1]
                below = published.y_from is not None and y < published.y_from
                ends.append((axis, x, published.y_from if below else y, style["color"]))
        for name, level in published.constants.items():
            axis.axhline(level, color="black", linestyle=":", linewidth=0.8, label=f"{level:g}, {name}")
        for claim in published.claims if published.transform == "none" else []:
            mark = claim.measure.mark(claim.paper, published.y[0], published.x)
            if mark and mark.label in drawn and mark.metric == metric:
                _draw_mark(axis, mark, looks[names[panel, mark.label]]["color"])
                marked = True
        title += ", squared" * (published.transform == "square")
        describe(
            axis, _label(published.x_label, panel) or published.x, _label(published.y_label, panel) or title, panel
        )
        if k + columns < len(pictures):
            axis.set_xlabel("")
        if k % columns and not by_metric:
            axis.set_ylabel("")
        axis.tick_params(labelbottom=k + columns >= len(pictures))
        axis.set_yscale(next(iter(part["scale"]), "linear"))
        limits.append(
            (axis, share, published.y_from is not None and highest > published.y_from)
        )  # not so after a few rounds
    for axis, share, cut in limits:  # when all that shares them is drawn
        axis.set_ylim(within(axis, share))
        if cut:
            axis.set_ylim(bottom=published.y_from)
        if published.until is not None:
            axis.set_xlim(0, published.until)
    for axis, x, y, colour in ends:
        axis.plot(x, y, **END | {"color": colour})
    last = axes.flat[len(pictures) - 1]  # whose entries come last in the legend
    if marked:
        last.plot([], [], color="black", label="the paper's numbers, in the line's colour", **STAR | {"linestyle": ":"})
    if ends:
        last.plot([], [], **END | {"clip_on": True}, label="the first of the line's runs diverges here")  # no place
    for axis in axes.flat[len(pictures) :]:
        axis.remove()
    note = ""
    if len(table):
        logs, x = {scale == "log" for scale in table["scale"]}, "" if published.x_label else published.x
        few = table.groupby(["line", "metric"]).size().max() <= FEW
        note = explained({*table["seeds"]}, logs, x=x).replace("bands:", "bars:" if few else "bands:")
    save(figure, *paths, title=f"{published.paper}: {published.title}", note=note)


def _names(panel: str, labels: Sequence[str]) -> dict[str, str]:
    """Return label -> the line's name in its panel.

    The name leaves out what all labels have in common: what of it the panel's title says, or, if that is nothing, all of it.
    """
    parts = {label: label.split(", ") for label in labels}
    shared = set.intersection(*map(set, parts.values())) if panel and len(parts) > 1 else set()
    shared = {part for part in shared if part in panel} or shared
    return {label: ", ".join(part for part in words if part not in shared) or label for label, words in parts.items()}


def _drawn(published: Published, runs: Sequence[Recorded], metric: str) -> list[Recorded]:
    """Return the runs that have the metric, with their values transformed as the figure draws them."""
    runs = [run for run in runs if metric in run.table]
    if published.transform == "square":
        runs = [replace(run, table=run.table.assign(**{metric: run.values(metric) ** 2})) for run in runs]
    return runs


def _logarithmic(published: Published, runs: Sequence[Recorded], metric: str) -> bool:
    if published.scale != "auto" or not runs:
        return published.scale == "log"
    return spans_decades(runs[0].metric(metric), np.concatenate([run.values(metric) for run in runs]))


def _draw_mark(axis: plt.Axes, mark: Mark, colour: str) -> None:
    """Draw a number of the paper: a star at the x where it holds; else a dotted line over the full width, or two for a band."""
    if mark.x:
        axis.plot(mark.x, mark.y, color=colour, clip_on=False, zorder=5, **STAR)
    else:
        axis.axhspan(*mark.y, color=colour, alpha=0.1, linewidth=0)
        for y in mark.y:
            axis.axhline(y, color=colour, linestyle=":", linewidth=0.8)


def _label(label: str | Mapping[str, str], panel: str) -> str:
    return label if isinstance(label, str) else label.get(panel, "")


@styled()
def draw_points(paths: Sequence[Path], published: Published, table: pd.DataFrame) -> None:
    """Draw the mean and the standard deviation of each point's finite values; on a logarithmic axis those of their logarithms.

    paths: the files to write. table: with the columns series, x, seed and y.
    """
    slopes = dict(filter(None, (claim.measure.slope(claim.paper) for claim in published.claims)))
    of_series = {
        panel: [name for name in names if name in published.points] for panel, names in published.panels.items()
    }
    panels = of_series if all(of_series.values()) and of_series else {"": list(published.points)}
    figure, axes = grid(1, len(panels))
    finite, logs = table[np.isfinite(table["y"])], set()
    for axis, (panel, series) in zip(axes.flat, panels.items(), strict=True):
        part = finite[finite["series"].isin(series)]
        decades = {name: part[name].min() > 0 and part[name].max() >= 10 * part[name].min() for name in "xy"}
        log = {name: published.scale == "log" or (published.scale == "auto" and decades[name]) for name in "xy"}
        logs.add(log["y"])
        for name in series:
            rows, colour = part[part["series"] == name], look(list(published.points).index(name))
            seeds = rows.assign(y=np.log(rows["y"]) if log["y"] else rows["y"]).groupby("x")["y"]
            mean, std = seeds.mean(), seeds.std().fillna(0)
            low, high = mean - std, mean + std
            mean, low, high = (np.exp(line) if log["y"] else line for line in (mean, low, high))
            axis.errorbar(mean.index, mean, [mean - low, high - mean], label=name, marker="o", capsize=3, **colour)
            if name in slopes and len(mean) and log["x"] and log["y"]:
                line = mean.iloc[0] * (mean.index / mean.index[0]) ** slopes[name]
                label = f"{name}: slope {slopes[name]:g}, in the paper"
                axis.plot(mean.index, line, label=label, color=colour["color"], linestyle=":")
        describe(axis, _label(published.x_label, panel), _label(published.y_label, panel), panel)
        if len(part):
            axis.set_xscale("log" if log["x"] else "linear")
            if log["x"]:
                axis.set_xticks(part["x"].unique(), [f"{x:.4g}" for x in part["x"].unique()])
                axis.xaxis.minorticks_off()
            axis.set_yscale("log" if log["y"] else "linear")
    counts = set(finite.groupby(["series", "x"])["seed"].nunique()) or {1}
    note = explained(counts, logs).replace("lines:", "points:").replace("bands:", "bars:")
    save(figure, *paths, title=f"{published.paper}: {published.title}", note=note)
