"""The figure of a published experiment, drawn from a table: of its runs, or of the reduced copy of their results."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fedopt.analysis import Recorded, explained, is_log, lines_of, mean_line
from fedopt.drawing import FEW, Line, PlotStyle, describe, draw_lines, is_share, look, pictures, within
from fedopt.papers.measure import Mark
from fedopt.papers.published import Published

NO_LINE: dict[str, Any] = {"linestyle": "none"}
STAR = NO_LINE | {"marker": "*", "markersize": 8, "markeredgecolor": "white", "markeredgewidth": 0.4}
END = NO_LINE | {"marker": "X", "markersize": 6, "color": "black", "clip_on": False}
CURVES = ("line", "metric", "title", "scale", "seeds", "diverged")  # before the figure's x and the line's points
LOGARITHMIC = {"auto": None, "linear": False, "log": True}


def curves(published: Published, lines: Mapping[str, list[Recorded]]) -> pd.DataFrame:
    """Return the points of all lines: the columns `CURVES`, then the figure's x, mean, low and high.

    In `CURVES`, title is that of the metric, scale is log or linear, seeds is the number of runs, and diverged tells whether
    a run did. A line whose runs lack the metric has no points.

    lines: label -> runs.
    """
    parts = []
    for metric in published.y:
        groups = {label: its for label, runs in lines.items() if (its := _with_values(published, runs, metric))}
        if not groups:
            continue
        log = is_log(groups, metric, LOGARITHMIC[published.scale])
        for label, line in lines_of(groups, metric, how=PlotStyle(logy=log)).lines.items():
            runs = groups[label]
            title, diverged = runs[0].metric(metric).title, any(run.status == "diverged" for run in runs)
            facts = (label, metric, title, "log" if log else "linear", len(runs), diverged)
            points = dict(zip((published.x, "mean", "low", "high"), line, strict=True))
            parts.append(pd.DataFrame(dict(zip(CURVES, facts, strict=True)) | points))
    columns = [*CURVES, published.x, "mean", "low", "high"]
    return pd.concat(parts) if parts else pd.DataFrame(columns=columns)


def draw_curves(paths: Sequence[Path], published: Published, table: pd.DataFrame) -> None:
    """Draw one picture for each panel and metric. With several metrics and at most four panels, each panel is a row.

    A line has the same colour in all pictures. Its name is the part of its label that differs within its panel.

    paths: the files to write. table: as `curves` returns it.
    """
    panels = published.panels or {"": list(published.lines)}
    parts = [(panel, labels, metric) for panel, labels in panels.items() for metric in published.y]
    columns = len(published.y)
    by_metric = len(published.y) > 1 and len(panels) <= 4
    if not by_metric:
        parts.sort(key=lambda part: published.y.index(part[2]))
        columns = 2 if len(panels) == 4 else min(len(panels), 3)
    names = {(panel, label): name for panel, labels in panels.items() for label, name in _names(panel, labels).items()}
    slots = {name: j for j, name in enumerate(dict.fromkeys(names.values()))}
    shared = {"sharex": True, "sharey": "col" if by_metric else "row"}
    words: Any = {"title": f"{published.paper}: {published.title}", "note": _note(published, table)}
    with pictures(paths, len(parts), columns, shared=shared, **words) as axes:
        marked, ends, limits = False, [], []
        for k, (axis, (panel, labels, metric)) in enumerate(zip(axes, parts, strict=True)):
            rows = table[(table["metric"] == metric) & table["line"].isin(labels)]
            drawn = {label: rows[rows["line"] == label] for label in labels if (rows["line"] == label).any()}
            title = next(iter(rows["title"]), metric)
            share = is_share(title, rows["mean"].to_numpy(dtype=float))
            lines = {label: _line(published, of_line, share) for label, of_line in drawn.items()}
            diverged = [label for label, of_line in drawn.items() if of_line["diverged"].any()]
            axis.set_yscale(next(iter(rows["scale"]), "linear"))
            named = {names[panel, label]: line for label, line in lines.items()}
            draw_lines(axis, named, slots, bars=True, diverged=[names[panel, label] for label in diverged])
            drawn_in: dict[Any, Any] = {line.get_label(): line.get_color() for line in axis.lines}
            colours = {label: drawn_in.get(names[panel, label], "grey") for label in lines}
            for label in diverged:
                lowest = -np.inf if published.y_from is None else published.y_from
                ends.append((axis, lines[label].x[-1], max(lines[label].mean[-1], lowest), colours[label]))
            for name, level in published.constants.items():
                axis.axhline(level, color="black", linestyle=":", linewidth=0.8, label=f"{level:g}, {name}")
            for claim in published.claims if published.transform == "none" else []:
                mark = claim.measure.mark(claim.paper, published.y[0], published.x)
                if mark and mark.label in drawn and mark.metric == metric:
                    _draw_mark(axis, mark, colours[mark.label])
                    marked = True
            title += ", squared" if published.transform == "square" else ""
            x_label, y_label = (_label(label, panel) for label in (published.x_label, published.y_label))
            describe(axis, x_label or published.x, y_label or title, panel)
            last_row = k + columns >= len(parts)
            axis.tick_params(labelbottom=last_row)
            axis.set_xlabel(axis.get_xlabel() if last_row else "")
            axis.set_ylabel("" if k % columns and not by_metric else axis.get_ylabel())
            cut = published.y_from is not None and rows["mean"].max() > published.y_from  # not so after a few rounds
            limits.append((axis, share, cut))
        for axis, share, cut in limits:  # when all that shares them is drawn
            axis.set_ylim(within(axis, share))
            axis.set_ylim(bottom=published.y_from if cut else None)
            if published.until is not None:
                axis.set_xlim(0, published.until)
        for axis, x, y, colour in ends:  # a line that leaves the picture ends at its edge
            low, high = sorted(axis.get_ylim())
            axis.plot(x, min(max(y, low), high), **END | {"color": colour})
        # The last picture's entries come last in the legend
        if marked:
            label = "the paper's numbers, in the line's colour"
            axes[-1].plot([], [], color="black", label=label, **STAR | {"linestyle": ":"})
        if ends:
            axes[-1].plot([], [], **END | {"clip_on": True}, label="the first of the line's runs diverges here")


def _line(published: Published, points: pd.DataFrame, share: bool) -> Line:
    line = Line(*points[[published.x, "mean", "low", "high"]].to_numpy(dtype=float).T)
    return line.clipped() if share else line


def _note(published: Published, table: pd.DataFrame) -> str:
    """Return a caption that says what lines and bands are; '' for an empty table."""
    if not len(table):
        return ""
    logs = {scale == "log" for scale in table["scale"]}
    text = explained({*table["seeds"]}, logs, x="" if published.x_label else published.x)
    return text.replace("bands:", "bars:") if table.groupby(["line", "metric"]).size().max() <= FEW else text


def _names(panel: str, labels: Sequence[str]) -> dict[str, str]:
    """Return label -> the line's name in its panel.

    A label consists of parts separated by commas. Parts that all labels share are left out; if the panel's title contains
    some of them, only those are.
    """
    parts = {label: label.split(", ") for label in labels}
    shared = set.intersection(*map(set, parts.values())) if panel else set()
    shared = {part for part in shared if part in panel} or (shared if len(parts) > 1 else set())
    return {label: ", ".join(part for part in words if part not in shared) or label for label, words in parts.items()}


def _with_values(published: Published, runs: Sequence[Recorded], metric: str) -> list[Recorded]:
    """Return the runs that have the metric, with values transformed as `Published.transform` says."""
    runs = [run for run in runs if metric in run.table]
    if published.transform == "square":
        runs = [replace(run, table=run.table.assign(**{metric: run.values(metric) ** 2})) for run in runs]
    return runs


def _draw_mark(axis: Axes, mark: Mark, colour: str) -> None:
    """Draw a number of the paper: a star if it belongs to one x, else a dotted line across the picture, or two around a range."""
    if mark.x:
        axis.plot(mark.x, mark.y, color=colour, clip_on=False, zorder=5, **STAR)
    else:
        axis.axhspan(*mark.y, color=colour, alpha=0.1, linewidth=0)
        for y in mark.y:
            axis.axhline(y, color=colour, linestyle=":", linewidth=0.8)


def _label(label: str | Mapping[str, str], panel: str) -> str:
    return label if isinstance(label, str) else label.get(panel, "")


def draw_points(paths: Sequence[Path], published: Published, table: pd.DataFrame) -> None:
    """Draw mean and standard deviation over seeds at each point. On a logarithmic axis logarithms are averaged.

    A point at which some seed has no finite value has no mean, and is left out.

    paths: the files to write. table: with the columns series, x, seed and y.
    """
    slopes = dict(filter(None, (claim.measure.slope(claim.paper) for claim in published.claims)))
    points = published.points
    panels = {panel: [name for name in names if name in points] for panel, names in published.panels.items()}
    panels = panels if panels and all(panels.values()) else {"": list(points)}
    finite = table.groupby(["series", "x"]).filter(lambda seeds: np.isfinite(seeds["y"]).all())
    logs = {panel: _decades(published, finite[finite["series"].isin(series)]) for panel, series in panels.items()}
    counts = set(finite.groupby(["series", "x"])["seed"].nunique()) or {1}
    note = explained(counts, {log["y"] for log in logs.values()})
    note = note.replace("lines:", "points:").replace("bands:", "bars:")
    title = f"{published.paper}: {published.title}"
    names = {name: shown for panel, series in panels.items() for name, shown in _names(panel, series).items()}
    slots = {name: j for j, name in enumerate(dict.fromkeys(names.values()))}
    with pictures(paths, len(panels), len(panels), title=title, note=note) as axes:
        for axis, (panel, series) in zip(axes, panels.items(), strict=True):
            log = logs[panel]
            for name in series:
                seeds = finite[finite["series"] == name].pivot_table(index="seed", columns="x", values="y")
                values = np.ma.masked_invalid(seeds.to_numpy())
                x, mean, low, high = mean_line(seeds.columns.to_numpy(), values, log["y"])
                style = look(slots[names[name]])
                axis.errorbar(x, mean, [mean - low, high - mean], label=names[name], capsize=3, **style)
                if name in slopes and len(mean) and log["x"] and log["y"]:
                    label = f"{names[name]}: slope {slopes[name]:g}, in the paper"
                    line = mean[0] * (x / x[0]) ** slopes[name]
                    axis.plot(x, line, label=label, color=style["color"], linestyle=":")
            describe(axis, _label(published.x_label, panel), _label(published.y_label, panel), panel)
            part = finite[finite["series"].isin(series)]
            axis.set(xscale="log" if log["x"] else "linear", yscale="log" if log["y"] else "linear")
            if len(part) and log["x"]:
                axis.set_xticks(part["x"].unique(), [f"{x:.4g}" for x in part["x"].unique()])
                axis.xaxis.minorticks_off()


def _decades(published: Published, part: pd.DataFrame) -> dict[str, bool]:
    """Return {'x': ..., 'y': ...}: whether each axis is logarithmic. With scale auto, it is if values are positive and span a
    decade.

    part: the points in a panel.
    """
    decades = {name: part[name].min() > 0 and part[name].max() >= 10 * part[name].min() for name in "xy"}
    return {
        name: (published.scale == "log" and len(part) > 0) or (published.scale == "auto" and decades[name])
        for name in "xy"
    }
