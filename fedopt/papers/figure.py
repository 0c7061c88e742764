"""The figure of a published experiment, drawn from a table of its runs or from the stored small copy of their results."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fedopt.analysis import Recorded, explained, is_log, lines_of, mean_line
from fedopt.drawing import FEW, Line, PlotStyle, describe, draw_lines, is_share, look, pictures, within
from fedopt.papers.published import Published

END: dict[str, Any] = {"linestyle": "none", "marker": "X", "markersize": 6, "color": "black", "clip_on": False}
CURVES = ("line", "metric", "title", "scale", "seeds", "diverged")  # before the figure's x and the line's points
BAND = ("mean", "low", "high")
LOGARITHMIC = {"auto": None, "linear": False, "log": True}


def curves(published: Published, lines: Mapping[str, list[Recorded]]) -> pd.DataFrame:
    """Return the points of all lines of the figure, one row per point.

    The columns are: line (its label), metric, title (of the metric), scale (of the y axis, log or linear), seeds (number of
    runs), diverged (whether a run diverged), the cost (named as the cost axis), mean, low and high (the ends of the band). A
    line whose runs lack the metric has no points.

    Args:
        published: The experiment.
        lines: label -> runs of the line.
    """
    points = []
    for metric in published.y:
        groups = {label: its for label, runs in lines.items() if (its := _with_values(published, runs, metric))}
        if not groups:
            continue
        log = is_log(groups, metric, LOGARITHMIC[published.scale])
        for label, line in lines_of(groups, metric, how=PlotStyle(logy=log)).lines.items():
            runs = groups[label]
            title, diverged = runs[0].metric(metric).title, any(run.status == "diverged" for run in runs)
            facts = (label, metric, title, "log" if log else "linear", len(runs), diverged)
            points.append(pd.DataFrame(dict(zip((*CURVES, published.x, *BAND), (*facts, *line), strict=True))))
    return pd.concat(points) if points else pd.DataFrame(columns=[*CURVES, published.x, *BAND])


def draw(paths: Sequence[Path], published: Published, table: pd.DataFrame) -> None:
    """Draw the figure of an experiment: its points if the experiment defines ``points``, otherwise its curves.

    Nothing is written if there is nothing to draw.

    Args:
        paths: The files to write.
        published: The experiment.
        table: The points or the curves, as stored in curves.csv.
    """
    if published.points:
        table = table.groupby(["series", "x"]).filter(lambda seeds: np.isfinite(seeds["y"]).all())
    if np.isfinite(table["y" if published.points else "mean"].astype(float)).any():
        (draw_points if published.points else draw_curves)(paths, published, table)


def draw_curves(paths: Sequence[Path], published: Published, table: pd.DataFrame) -> None:
    """Draw one picture for each panel and metric. With several metrics and at most four panels, each panel has a row of
    pictures.

    A line has the same colour in all pictures. Its name consists of the items of its label that differ within its panel.

    Args:
        paths: The files to write.
        published: The experiment.
        table: The points of all lines, as `curves` returns them.
    """
    panels, metrics = published.panels or {"": list(published.lines)}, published.y
    row_is_panel = len(metrics) > 1 and len(panels) <= 4
    if row_is_panel:
        shown, columns = [(panel, metric) for panel in panels for metric in metrics], len(metrics)
    else:
        shown = [(panel, metric) for metric in metrics for panel in panels]
        columns = 2 if len(panels) == 4 else min(len(panels), 3)
    names = {panel: _names(panel, labels) for panel, labels in panels.items()}
    slots = {name: j for j, name in enumerate(dict.fromkeys(chain(*(of.values() for of in names.values()))))}
    how: Any = {"shared": {"sharex": True, "sharey": "col" if row_is_panel else "row"}, "note": _note(published, table)}
    limits: list[tuple[Axes, float, bool]] = []
    ends: list[tuple[Axes, float, float, str]] = []
    with pictures(paths, len(shown), columns, title=f"{published.paper}: {published.title}", **how) as axes:
        for k, (axis, (panel, metric)) in enumerate(zip(axes, shown, strict=True)):
            rows = table[(table["metric"] == metric) & table["line"].isin(panels[panel])]
            title = next(iter(rows["title"]), metric)
            share = is_share(title, rows["mean"].to_numpy(dtype=float))
            limits.append((axis, rows["mean"].max(), share))
            named = {names[panel][str(label)]: of_line for label, of_line in rows.groupby("line", sort=False)}
            lines = {name: _line(published, of_line, share) for name, of_line in named.items()}
            diverged = [name for name, of_line in named.items() if of_line["diverged"].any()]
            axis.set_yscale(next(iter(rows["scale"]), "linear"))
            draw_lines(axis, lines, slots, bars=True, diverged=diverged)
            colours: dict[Any, Any] = {line.get_label(): line.get_color() for line in axis.lines}
            ends += [(axis, lines[name].x[-1], lines[name].mean[-1], colours.get(name, "grey")) for name in diverged]
            for name, level in published.constants.items():
                axis.axhline(level, color="black", linestyle=":", linewidth=0.8, label=f"{level:g}, {name}")
            x_label, y_label = (_label(label, panel) for label in (published.x_label, published.y_label))
            title += ", squared" if published.transform == "square" else ""
            describe(axis, x_label or published.x, y_label or title, panel)
            is_lowest, is_first = k + columns >= len(shown), row_is_panel or k % columns == 0
            axis.tick_params(labelbottom=is_lowest)
            axis.set_xlabel(axis.get_xlabel() if is_lowest else "")
            axis.set_ylabel(axis.get_ylabel() if is_first else "")
        for axis, highest, share in limits:  # after all lines that share the axes are drawn
            axis.set_ylim(within(axis, share))
            if published.y_from is not None and highest > published.y_from:  # not after only a few rounds
                axis.set_ylim(bottom=published.y_from)
            if published.until is not None:
                axis.set_xlim(0, published.until)
        for axis, x, y, colour in ends:  # a line that leaves the picture ends at its edge
            low, high = sorted(axis.get_ylim())
            axis.plot(x, np.clip(y, low, high), **END | {"color": colour})
        if ends:  # last in the legend
            axes[-1].plot([], [], **END | {"clip_on": True}, label="the first of the line's runs diverges here")


def _line(published: Published, points: pd.DataFrame, share: bool) -> Line:
    """Return the line through some points, with its band.

    Args:
        published: The experiment, which names the cost axis.
        points: The points of the line: rows of the table that `curves` returns.
        share: Whether the values are percentages. The band is then clipped to the range 0 to 100.
    """
    line = Line(*points[[published.x, *BAND]].to_numpy(dtype=float).T)
    return line.clipped() if share else line


def _note(published: Published, table: pd.DataFrame) -> str:
    """Return a caption that explains the lines and the bands or bars; '' for an empty table.

    Args:
        published: The experiment.
        table: The points of all lines, as `curves` returns them.
    """
    if not len(table):
        return ""
    logs = {scale == "log" for scale in table["scale"]}
    text = explained({*table["seeds"]}, logs, x="" if published.x_label else published.x)
    return text.replace("bands:", "bars:") if table.groupby(["line", "metric"]).size().max() <= FEW else text


def _names(panel: str, labels: Sequence[str]) -> dict[str, str]:
    """Return a mapping from the label of each line to the line's name in its panel.

    A label consists of items separated by commas. The items that all labels share are left out of the names; if the title of
    the panel contains some of these items, only these are left out.

    Args:
        panel: The title of the panel.
        labels: The labels of its lines.
    """
    every = {label: label.split(", ") for label in labels}
    shared = set.intersection(*map(set, every.values())) if panel else set()
    shared = {item for item in shared if item in panel} or (shared if len(every) > 1 else set())
    return {label: ", ".join(item for item in items if item not in shared) or label for label, items in every.items()}


def _with_values(published: Published, runs: Sequence[Recorded], metric: str) -> list[Recorded]:
    """Return the runs that have the metric, with its values transformed as the experiment's ``transform`` says.

    Args:
        published: The experiment.
        runs: The runs of a line.
        metric: A column of metrics.csv.
    """
    runs = [run for run in runs if metric in run.table]
    if published.transform == "square":
        runs = [replace(run, table=run.table.assign(**{metric: run.values(metric) ** 2})) for run in runs]
    return runs


def _label(label: str | Mapping[str, str], panel: str) -> str:
    """Return the label of an axis of a panel.

    Args:
        label: One text for all panels, or panel title -> text.
        panel: The title of the panel.
    """
    return label if isinstance(label, str) else label.get(panel, "")


def draw_points(paths: Sequence[Path], published: Published, table: pd.DataFrame) -> None:
    """Draw the mean and the standard deviation over seeds at each point. On a logarithmic axis, logarithms are averaged.

    Args:
        paths: The files to write.
        published: The experiment.
        table: One row per point and seed, with the columns series, x, seed and y. All y are finite.
    """
    panels = published.panels or {"": list(published.points)}
    of_panels = {panel: table[table["series"].isin(series)] for panel, series in panels.items()}
    counts = set(table.groupby(["series", "x"])["seed"].nunique())
    note = explained(counts, {_is_log(published, points["y"]) for points in of_panels.values()})
    note = note.replace("lines:", "points:").replace("bands:", "bars:")
    names = {name: shown for panel, series in panels.items() for name, shown in _names(panel, series).items()}
    slots = {name: j for j, name in enumerate(dict.fromkeys(names.values()))}
    title = f"{published.paper}: {published.title}"
    with pictures(paths, len(panels), len(panels), title=title, note=note) as axes:
        for axis, (panel, points) in zip(axes, of_panels.items(), strict=True):
            log = {name: _is_log(published, points[name]) for name in "xy"}
            for name in panels[panel]:
                seeds = points[points["series"] == name].pivot_table(index="seed", columns="x", values="y")
                values = np.ma.masked_invalid(seeds.to_numpy())
                x, mean, low, high = mean_line(seeds.columns.to_numpy(), values, log["y"])
                style = look(slots[names[name]])
                axis.errorbar(x, mean, [mean - low, high - mean], label=names[name], capsize=3, **style)
            describe(axis, _label(published.x_label, panel), _label(published.y_label, panel), panel)
            axis.set(**{f"{name}scale": "log" if log[name] else "linear" for name in "xy"})
            if log["x"]:
                axis.set_xticks(points["x"].unique(), [f"{x:.4g}" for x in points["x"].unique()])
                axis.xaxis.minorticks_off()


def _is_log(published: Published, values: pd.Series) -> bool:
    """Return whether an axis of a figure of points is logarithmic.

    If the experiment's scale is auto, the axis is logarithmic if all values are positive and span a decade.

    Args:
        published: The experiment.
        values: The values on this axis.
    """
    if not len(values) or published.scale != "auto":
        return len(values) > 0 and published.scale == "log"
    return bool(0 < 10 * values.min() <= values.max())
