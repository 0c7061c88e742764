"""The figure, the table and the claims of a published experiment, from its runs."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd

from fedopt.comparing.curves import curve, draw_line, explained
from fedopt.comparing.recorded import Recorded, read
from fedopt.comparing.tables import beside_paper, moments, print_table, write_table
from fedopt.papers import claims
from fedopt.papers.measure import Mark, Measure, SeedRuns, Unmeasurable
from fedopt.papers.published import Published, Task
from fedopt.results.figures import describe, grid, look, percent, plt, save_with_legend, spans_decades, styled
from fedopt.results.figures import marks as marks_of
from fedopt.results.files import read_json
from fedopt.results.folder import ENDED, RunFolder

SHORT = 120.0  # seconds that a run takes of which more seeds are made where they are needed
STAR: dict[str, Any] = {
    "marker": "*",
    "markersize": 8,
    "linestyle": "none",
    "markeredgecolor": "white",
    "markeredgewidth": 0.4,
}


END: dict[str, Any] = {"marker": "X", "markersize": 6, "linestyle": "none", "color": "black", "clip_on": False}
Ended = Mapping[int, Mapping[str, Recorded]]  # seed -> line -> its run


def ended_runs(published: Published, needed: Sequence[Task], runs: Path) -> Ended:
    """The runs that have ended, of all seeds that are asked for."""
    found: dict[int, dict[str, Recorded]] = {task.seed: {} for task in needed}
    for task in needed:
        if RunFolder(runs / task.folder).status() in ENDED:
            found[task.seed][task.line] = read(runs / task.folder, published.x)
    return found


def judged(published: Published, needed: Sequence[Task], ended: Ended) -> list[dict[str, Any]]:
    """A row of claims.csv for each claim, over the seeds that are asked for of all its lines."""
    asked = {(task.line, task.seed) for task in needed}
    seeds = _measures(published, ended)
    rows = []
    for claim in published.claims:
        lines = claim.measure.lines(published.points)
        of = {seed: measures for seed, measures in seeds.items() if all((line, seed) in asked for line in lines)}
        made = _made([ended[seed][line].folder for seed in of for line in lines if line in ended[seed]])
        rows.append(claims.judge(claim, of) | made)
    return rows


def _made(folders: Sequence[Path]) -> dict[str, str]:
    """When, by which commits and on which machines runs were made."""
    cards = [read_json(folder / "run.json") for folder in folders]
    machines = [card.get("machine", {}) for card in cards]
    said = (
        [max((card.get("started", "") for card in cards), default="")[:10]],
        [card.get("commit") for card in cards],
        [machine.get("gpu") or machine.get("platform") for machine in machines],
    )
    texts = (", ".join(dict.fromkeys(str(text) for text in texts if text)) for texts in said)
    return dict(zip(claims.MADE, texts, strict=True))


def undecided(published: Published, needed: Sequence[Task], ended: Ended) -> list[str]:
    """The lines of the claims that are undecided, where all runs of these lines were short."""
    found: dict[str, None] = {}
    for claim, row in zip(published.claims, judged(published, needed, ended), strict=True):
        lines = claim.measure.lines(published.points)
        seconds = [of[line].table["train_seconds"].iloc[-1] for of in ended.values() for line in lines if line in of]
        if row["holds"].startswith(claims.UNDECIDED) and max(seconds, default=SHORT) < SHORT:
            found |= dict.fromkeys(lines)
    return list(found)


def report(
    published: Published,
    needed: Sequence[Task],
    runs: Path,
    folder: Path,
    with_claims: bool = True,
    formats: Sequence[str] = ("png",),
) -> None:
    """Write figure.csv, the figure in the formats or table.csv, curves.csv where curves are drawn, and claims.csv `with_claims`;
    print the table and the claims."""
    ended = ended_runs(published, needed, runs)
    seeds = _measures(published, ended)
    if published.table:
        cells = _table(published, seeds)
        write_table(folder / "table.csv", cells)
        print_table(beside_paper(cells), caption="measured (paper)")
    if with_claims:
        rows = judged(published, needed, ended)
        for row in rows:
            print(claims.sentence(row))
        write_table(folder / "claims.csv", pd.DataFrame(rows, columns=[*claims.COLUMNS, *claims.MADE]))
    if published.points:
        table = _points(published, seeds)
        if np.isfinite(table["y"].astype(float)).any():
            draw_points(folder / "figure.png", published, table, formats)
    else:
        lines = {label: [of[label] for of in ended.values() if label in of] for label in published.lines}
        lines = {label: found for label, found in lines.items() if found}
        table = _curves(published, lines)
        if lines and not published.table:
            draw_curves(folder / "figure.png", published, lines, formats)
            write_table(folder / "curves.csv", _as_drawn(published, lines))
    write_table(folder / "figure.csv", table)


def _measures(published: Published, ended: Ended) -> dict[int, SeedRuns]:
    return {
        seed: SeedRuns(lines, published.x, published.y[0], published.points, published.point)
        for seed, lines in ended.items()
    }


def _curves(published: Published, lines: Mapping[str, Sequence[Recorded]]) -> pd.DataFrame:
    """A row for each evaluation, with the columns line, seed, the figure's x and its metrics y."""
    parts = []
    for label, run in ((label, run) for label, runs in lines.items() for run in runs):
        y = {metric: run.values(metric) for metric in published.y if metric in run.table}
        parts.append(pd.DataFrame({"line": label, "seed": run.keys["seed"], published.x: run.cost(), **y}))
    return pd.concat(parts) if parts else pd.DataFrame(columns=["line", "seed", published.x, *published.y])


def _measured(seeds: Mapping[int, SeedRuns], measure: Measure, **names: str | float) -> dict[int, float]:
    """seed -> value, for the seeds in which the measure has one."""
    values = {}
    for seed, runs in seeds.items():
        with suppress(Unmeasurable):
            values[seed] = measure.value(runs, **names)
    return values


def _points(published: Published, seeds: Mapping[int, SeedRuns]) -> pd.DataFrame:
    """A row for each point and seed whose run has ended, with the columns series, x, seed, y; y is nan where it cannot be
    measured."""
    rows = []
    for series, points in published.points.items():
        for x, label in points.items():
            values = _measured(seeds, published.point[series], x=x, line=label)
            rows += [(series, x, seed, values.get(seed, np.nan)) for seed, of in seeds.items() if label in of.runs]
    return pd.DataFrame(rows, columns=["series", "x", "seed", "y"])


def _table(published: Published, seeds: Mapping[int, SeedRuns]) -> pd.DataFrame:
    """A row for each cell of the paper's table, over the seeds that can be measured."""
    rows = []
    for row, cells in published.table.items():
        for column, (label, paper) in cells.items():
            values = list(_measured(seeds, published.cell, line=label).values())
            rows.append((row, column, paper, *moments(values), len(values)))
    return pd.DataFrame(rows, columns=["row", "column", "paper", "mean", "std", "seeds"])


@styled()
def draw_curves(
    path: Path, published: Published, lines: Mapping[str, list[Recorded]], formats: Sequence[str] = ("png",)
) -> None:
    """Draw a picture for each panel and metric: a row of them for each panel, or several panels in a row where there is one metric.
    A line has the same look in all of them, and is called what tells it apart from the others of its panel."""
    panels = published.panels or {"": list(published.lines)}
    pictures = [(title, labels, metric) for title, labels in panels.items() for metric in published.y]
    columns = len(published.y) if len(published.y) > 1 else 2 if len(panels) == 4 else min(len(panels), 3)
    names = {label: name for labels in panels.values() for label, name in _names(labels, len(panels) > 1).items()}
    looks = {name: look(j) for j, name in enumerate(dict.fromkeys(names.values()))}
    figure, axes = grid(-(-len(pictures) // columns), columns)
    figure.suptitle(fill(f"{published.paper}: {published.title}", 54 * columns))
    marks, logs, ends = _marks(published), set(), []
    for axis, (title, labels, metric) in zip(axes.flat, pictures, strict=False):
        drawn = {label: _of(published, lines.get(label, []), metric) for label in labels}
        drawn = {label: runs for label, runs in drawn.items() if runs}
        log = _logarithmic(published, [run for runs in drawn.values() for run in runs], metric)
        logs.add(log)
        for j, (label, runs) in enumerate(drawn.items()):
            if label in published.horizontal:
                level, colour = moments([run.values(metric)[-1] for run in runs])[0], looks[names[label]]["color"]
                axis.axhline(level, color=colour, linestyle="--", label=f"{names[label]} (last value)")
            else:
                style = looks[names[label]] | marks_of(list(looks).index(names[label]), j, len(drawn))
                drawn_at = draw_line(axis, names[label], runs, metric, style, log)
                if any(run.status == "diverged" for run in runs):
                    x, y = drawn_at[[published.x, metric]].iloc[-1]
                    below = published.y_from is not None and y < published.y_from
                    ends.append((axis, x, published.y_from if below else y, looks[names[label]]["color"]))
        for name, level in published.constants.items():
            axis.axhline(level, color="black", linestyle=":", linewidth=0.8, label=f"{level:g}, {name}")
        for mark in marks:
            if mark.label in drawn and mark.metric == metric:
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
    save_with_legend(
        figure, *(path.with_suffix(f".{name}") for name in formats), note=explained(curves, logs) if curves else ""
    )


def _as_drawn(published: Published, lines: Mapping[str, list[Recorded]]) -> pd.DataFrame:
    """The curves that `draw_curves` draws, with the columns line, metric, the figure's x, mean, low, high."""
    parts = []
    for labels in (published.panels or {"": list(published.lines)}).values():
        for metric in published.y:
            drawn = {label: runs for label in labels if (runs := _of(published, lines.get(label, []), metric))}
            log = _logarithmic(published, [run for runs in drawn.values() for run in runs], metric)
            for label, runs in drawn.items():
                x, *band = curve(runs, metric, log)
                cells = dict(zip((published.x, "mean", "low", "high"), (x, *band), strict=True))
                parts.append(pd.DataFrame({"line": label, "metric": metric, **cells}))
    columns = ["line", "metric", published.x, "mean", "low", "high"]
    return pd.concat(parts).drop_duplicates() if parts else pd.DataFrame(columns=columns)


def _names(labels: Sequence[str], several: bool) -> dict[str, str]:
    """What the lines of a panel are called: where there are several panels, without what all lines of the panel have in common."""
    parts = {label: label.split(", ") for label in labels}
    shared = set.intersection(*map(set, parts.values())) if several and len(parts) > 1 else set()
    return {label: ", ".join(part for part in of if part not in shared) or label for label, of in parts.items()}


def _of(published: Published, runs: Sequence[Recorded], metric: str) -> list[Recorded]:
    """Those that have the metric, with the values that are drawn."""
    runs = [run for run in runs if metric in run.table]
    if published.transform == "square":
        runs = [replace(run, table=run.table.assign(**{metric: run.values(metric) ** 2})) for run in runs]
    return runs


def _logarithmic(published: Published, runs: Sequence[Recorded], metric: str) -> bool:
    if published.scale != "auto" or not runs:
        return published.scale == "log"
    return spans_decades(runs[0].metric(metric), np.concatenate([run.values(metric) for run in runs]))


def _marks(published: Published) -> list[Mark]:
    """The paper's numbers on the axes of the figure."""
    marks = (claim.measure.mark(claim.paper, published.y[0], published.x) for claim in published.claims)
    return [mark for mark in marks if mark and published.transform == "none"]


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
def draw_points(path: Path, published: Published, table: pd.DataFrame, formats: Sequence[str] = ("png",)) -> None:
    """Draw the mean and the standard deviation of each point, over its finite values; on a logarithmic axis, of the logarithm."""
    slopes = dict(filter(None, (claim.measure.slope(claim.paper) for claim in published.claims)))
    figure, ((axes,),) = grid(1, 1)
    figure.suptitle(fill(f"{published.paper}: {published.title}", 54))
    finite = table[np.isfinite(table["y"])]
    log = {axis: published.scale == "log" or (published.scale == "auto" and _decades(finite[axis])) for axis in "xy"}
    for j, series in enumerate(published.points):
        of = finite[finite["series"] == series]
        of = of.assign(y=np.log(of["y"]) if log["y"] else of["y"]).groupby("x")["y"]
        mean, std = of.mean(), of.std().fillna(0)
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
    counts = sorted(set(finite.groupby(["series", "x"])["seed"].nunique())) or [0]
    number = " to ".join(map(str, dict.fromkeys([counts[0], counts[-1]])))
    kind = "geometric mean" if log["y"] else "mean"
    note = f"points: {kind} of {number} seeds; bars: ± one standard deviation" + " of the logarithm" * log["y"]
    save_with_legend(
        figure,
        *(path.with_suffix(f".{name}") for name in formats),
        note=fill(note, 62) if counts[-1] > 1 else "points: 1 seed",
    )


def _decades(values: pd.Series) -> bool:
    return bool(len(values) and values.min() > 0 and values.max() >= 10 * values.min())
