"""The figure, the table and the claims of a published experiment, from its runs."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from fedopt.reproduce import claims
from fedopt.reproduce.claims import Measures, Unmeasurable
from fedopt.reproduce.compare import Recorded, colour, draw_line, moments, plus_minus, print_table, read, write_table
from fedopt.reproduce.published import Published, Task
from fedopt.results.figures import COSTS, describe, grid, save_with_legend
from fedopt.results.folder import ENDED, RunFolder


def report(published: Published, needed: Sequence[Task], runs: Path, folder: Path) -> None:
    """Write figure.png, figure.csv, claims.csv and table.csv, and print the claims and the table."""
    ended: dict[int, dict[str, Recorded]] = {task.seed: {} for task in needed}
    for task in needed:
        if RunFolder(runs / task.folder).status() in ENDED:
            ended[task.seed][task.line] = read(runs / task.folder, published.x)
    seeds = {
        seed: Measures(lines, published.x, published.y[0], published.points, published.measured)
        for seed, lines in ended.items()
    }
    if published.table:
        cells = _table(published, seeds)
        write_table(folder / "table.csv", cells)
        _print_beside_paper(cells)
    rows = [claims.verdict(claim, seeds) for claim in published.claims]
    for row in rows:
        print(claims.sentence(row))
    write_table(folder / "claims.csv", pd.DataFrame(rows, columns=claims.COLUMNS))
    if published.points:
        table = _points(published, seeds)
        draw_points(folder / "figure.png", published, table)
    else:
        lines = {label: [of[label] for of in ended.values() if label in of] for label in published.lines}
        lines = {label: found for label, found in lines.items() if found}
        table = _curves(published, lines)
        draw_curves(folder / "figure.png", published, lines)
    write_table(folder / "figure.csv", table)


def _curves(published: Published, lines: Mapping[str, Sequence[Recorded]]) -> pd.DataFrame:
    """A row for each evaluation, with the columns line, seed, the figure's x and its metrics y."""
    parts = []
    for label, run in ((label, run) for label, runs in lines.items() for run in runs):
        y = {metric: run.values(metric) for metric in published.y if metric in run.table}
        parts.append(pd.DataFrame({"line": label, "seed": run.keys["seed"], published.x: run.cost(), **y}))
    return pd.concat(parts) if parts else pd.DataFrame(columns=["line", "seed", published.x, *published.y])


def _measured(seeds: Mapping[int, Measures], expression: str, **names: str | float) -> dict[int, float]:
    """The values of an expression in those of the seeds in which it can be measured."""
    values = {}
    for seed, measures in seeds.items():
        with suppress(Unmeasurable):
            values[seed] = measures.evaluate(expression, **names)
    return values


def _points(published: Published, seeds: Mapping[int, Measures]) -> pd.DataFrame:
    """A row for each point and seed, with the columns series, x, seed, y; y is nan where it cannot be measured."""
    rows = []
    for series, points in published.points.items():
        for x, label in points.items():
            values = _measured(seeds, published.measured[series], x=x, line=label)
            rows += [(series, x, seed, values.get(seed, np.nan)) for seed in seeds]
    return pd.DataFrame(rows, columns=["series", "x", "seed", "y"])


def _table(published: Published, seeds: Mapping[int, Measures]) -> pd.DataFrame:
    """A row for each cell of the paper's table, over the seeds that can be measured."""
    rows = []
    for row, cells in published.table.items():
        for column, (label, paper) in cells.items():
            values = list(_measured(seeds, published.cell, line=label).values())
            rows.append((row, column, paper, *moments(values), len(values)))
    return pd.DataFrame(rows, columns=["row", "column", "paper", "mean", "std", "seeds"])


def _print_beside_paper(cells: pd.DataFrame) -> None:
    """Print the table in the paper's layout, with the paper's numbers in brackets."""
    measured = cells.apply(lambda cell: plus_minus(cell["mean"], cell["std"]) if cell["seeds"] else "-", axis=1)
    paper = ["" if pd.isna(number) else f" ({number:g})" for number in cells["paper"]]
    shown = cells.assign(text=measured + paper).pivot(index="row", columns="column", values="text")
    shown = shown.reindex(index=cells["row"].unique(), columns=cells["column"].unique()).fillna("")
    print_table(shown.reset_index(names=""), caption="measured (paper)")


def draw_curves(path: Path, published: Published, lines: Mapping[str, list[Recorded]]) -> None:
    """Draw a row of pictures for each panel and a column for each metric. A line has the same colour in all of them."""
    panels = published.panels or {"": list(published.lines)}
    figure, axes = grid(len(panels), len(published.y), len(lines))
    figure.suptitle(f"{published.paper}: {published.title}")
    colours = {label: colour(j, len(published.lines)) for j, label in enumerate(published.lines)}
    for row, (title, labels) in zip(axes, panels.items(), strict=True):
        for axis, metric in zip(row, published.y, strict=True):
            for label in labels:
                runs = [run for run in lines.get(label, []) if metric in run.table]
                if published.transform == "square":
                    runs = [replace(run, table=run.table.assign(**{metric: run.values(metric) ** 2})) for run in runs]
                if runs and label in published.horizontal:
                    level = moments([run.values(metric)[-1] for run in runs])[0]
                    axis.axhline(level, color=colours[label], linestyle="--", label=label)
                elif runs:
                    draw_line(axis, label, runs, metric, colours[label])
            titles = [run.metric(metric).title for label in labels for run in lines.get(label, [])] or [metric]
            y_label = published.y_label or titles[0] + (", squared" if published.transform == "square" else "")
            describe(axis, published.x_label or COSTS[published.x][1], y_label, title)
            axis.set_yscale(published.scale)
            if published.until is not None:
                axis.set_xlim(0, published.until)
            if published.y_from is not None:
                axis.set_ylim(bottom=published.y_from)
    save_with_legend(figure, path)


def draw_points(path: Path, published: Published, table: pd.DataFrame) -> None:
    """Draw the mean and the standard deviation of each point, over its finite values."""
    figure, ((axes,),) = grid(1, 1, len(published.points))
    figure.suptitle(f"{published.paper}: {published.title}")
    finite = table[np.isfinite(table["y"])]
    for j, series in enumerate(published.points):
        of = finite[finite["series"] == series].groupby("x")["y"]
        look = {"color": colour(j, len(published.points)), "marker": "o", "capsize": 3}
        axes.errorbar(of.mean().index, of.mean(), of.std().fillna(0), label=series, **look)
    describe(axes, published.x_label, published.y_label)
    if len(finite):
        axes.set_xscale(published.scale)
        axes.set_yscale(published.scale)
    save_with_legend(figure, path)
