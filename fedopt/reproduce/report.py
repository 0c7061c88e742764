"""The figure, the table and the claims of a published experiment, from its runs."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from fedopt.reproduce import claims
from fedopt.reproduce.claims import Measures, Unmeasurable
from fedopt.reproduce.compare import Recorded, colour, draw_line, moments, plus_minus, read
from fedopt.reproduce.published import Published, Task
from fedopt.results.figures import COSTS, plt
from fedopt.results.folder import ENDED, RunFolder, write_atomically


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
        Console(width=None if sys.stdout.isatty() else 250).print(_shown(published, cells))
    rows = [claims.verdict(claim, seeds) for claim in published.claims]
    for row in rows:
        print(claims.sentence(row))
    write_table(folder / "claims.csv", pd.DataFrame(rows, columns=claims.COLUMNS))
    if published.points:
        table = _points(published, seeds)
        draw_points(folder / "figure.png", published, table)
    else:
        lines = {label: [of[label] for of in ended.values() if label in of] for label in published.lines}
        table = _curves(published, ended)
        draw_curves(folder / "figure.png", published, {label: found for label, found in lines.items() if found})
    write_table(folder / "figure.csv", table)


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write the table as CSV, all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, table.to_csv(index=False).encode())


def _curves(published: Published, ended: Mapping[int, Mapping[str, Recorded]]) -> pd.DataFrame:
    """A row for each evaluation, with the columns line, seed, the figure's x and its metrics y."""
    parts = [
        pd.DataFrame({"line": label, "seed": seed, published.x: lines[label].cost, **_columns(published, lines[label])})
        for label in published.lines
        for seed, lines in ended.items()
        if label in lines
    ]
    return pd.concat(parts) if parts else pd.DataFrame(columns=["line", "seed", published.x, *published.y])


def _columns(published: Published, run: Recorded) -> dict[str, np.ndarray]:
    return {metric: run.values(metric) for metric in published.y if metric in run.columns}


def _points(published: Published, seeds: Mapping[int, Measures]) -> pd.DataFrame:
    """A row for each point and seed, with the columns series, x, seed, y; y is nan where it cannot be measured."""
    rows = []
    for series, points in published.points.items():
        for x, label in points.items():
            for seed, measures in seeds.items():
                try:
                    y = measures.point(series, x, label)
                except Unmeasurable:
                    y = np.nan
                rows.append({"series": series, "x": x, "seed": seed, "y": y})
    return pd.DataFrame(rows)


def _table(published: Published, seeds: Mapping[int, Measures]) -> pd.DataFrame:
    """A row for each cell of the paper's table, over the seeds that can be measured."""
    rows = []
    for row, cells in published.table.items():
        for column, (label, paper) in cells.items():
            values = []
            for measures in seeds.values():
                with suppress(Unmeasurable):
                    values.append(measures.evaluate(published.cell, {"line": label}))
            rows.append((row, column, paper, *moments(values), len(values)))
    return pd.DataFrame(rows, columns=["row", "column", "paper", "mean", "std", "seeds"])


def _shown(published: Published, cells: pd.DataFrame) -> Table:
    """The table in the paper's layout, with the paper's numbers in brackets."""
    columns = list(dict.fromkeys(cells["column"]))
    table = Table("", *columns, caption="measured (paper)")
    for row in published.table:
        of = cells[cells["row"] == row].set_index("column")
        table.add_row(row, *(_beside_paper(of.loc[c]) if c in of.index else "" for c in columns))
    return table


def _beside_paper(cell: pd.Series) -> str:
    measured = plus_minus(cell["mean"], cell["std"]) if cell["seeds"] else "-"
    return measured if pd.isna(cell["paper"]) else f"{measured} ({cell['paper']:g})"


def draw_curves(path: Path, published: Published, lines: Mapping[str, list[Recorded]]) -> None:
    """Draw a row of pictures for each panel and a column for each metric. A line has the same colour in all of them."""
    panels = published.panels or {"": list(published.lines)}
    shape = len(panels), len(published.y)
    figure, grid = _figure(published, *shape, len(lines))
    colours = {label: colour(j, len(published.lines)) for j, label in enumerate(published.lines)}
    handles: dict[str, Any] = {}
    for row, (title, labels) in zip(grid, panels.items(), strict=True):
        for axes, metric in zip(row, published.y, strict=True):
            for label in labels:
                runs = [_transformed(run, metric, published) for run in lines.get(label, []) if metric in run.columns]
                if not runs:
                    continue
                if label in published.horizontal:
                    level = moments([run.values(metric)[-1] for run in runs])[0]
                    axes.axhline(level, color=colours[label], linestyle="--", label=label)
                else:
                    draw_line(axes, label, runs, metric, colours[label])
            handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
            drawn = [run.metric(metric) for label in labels for run in lines.get(label, [])]
            name = drawn[0].title if drawn else metric
            y_label = published.y_label or (f"{name}, squared" if published.transform == "square" else name)
            _finish(axes, title, published.x_label or COSTS[published.x][1], y_label)
            axes.set_yscale(published.scale)
            if published.until is not None:
                axes.set_xlim(0, published.until)
            if published.y_from is not None:
                axes.set_ylim(bottom=published.y_from)
    _save(figure, path, handles)


def _transformed(run: Recorded, metric: str, published: Published) -> Recorded:
    if published.transform == "none":
        return run
    return replace(run, table=run.table.assign(**{metric: run.values(metric) ** 2}))


def draw_points(path: Path, published: Published, table: pd.DataFrame) -> None:
    """Draw the mean and the standard deviation of each point, over its finite values."""
    figure, grid = _figure(published, 1, 1, len(published.points))
    axes = grid[0][0]
    for j, series in enumerate(published.points):
        of = table[(table["series"] == series) & np.isfinite(table["y"])].groupby("x")["y"]
        mean, std = of.mean(), of.std().fillna(0)
        look = {"color": colour(j, len(published.points)), "marker": "o", "capsize": 3}
        axes.errorbar(mean.index, mean, std, label=series, **look)
    _finish(axes, "", published.x_label, published.y_label)
    if np.isfinite(table["y"]).any():
        axes.set_xscale(published.scale)
        axes.set_yscale(published.scale)
    _save(figure, path, dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True)))


def _figure(published: Published, rows: int, columns: int, labels: int) -> tuple[plt.Figure, Any]:
    size = (max(7, 5 * columns), 3.8 * rows + 0.22 * labels + 0.4)
    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    figure.suptitle(f"{published.paper}: {published.title}")
    return figure, grid


def _finish(axes: plt.Axes, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)


def _save(figure: plt.Figure, path: Path, handles: Mapping[str, Any]) -> None:
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)
