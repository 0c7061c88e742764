"""Reduced copies of an experiment's results without its runs: the figure, its curves, and the claims with the value of each
seed.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedopt.analysis import plus_minus, thinned, write_table
from fedopt.errors import UserError
from fedopt.files import read_bytes, read_table, write_atomically
from fedopt.papers import claims
from fedopt.papers.figure import CURVES, draw_curves, draw_points
from fedopt.papers.published import load, tasks

POINTS = 100  # of a curve that is kept
TYPES = defaultdict(lambda: str, mean=float, std=float, seeds=int, seed=int)  # of columns
LARGEST = 2**22  # bytes of a table of results, whose rows need 60 times as much memory
REMEDY = "the experiment writes it anew when it is run again"
FIGURE = "figure.svg"
COPIED = ("claims.csv", "runs.csv", "table.csv")
HEADS = {"kind": "whose", "says": "claim", "bound": "asked", "measured": "measured (seeds)", "holds": "verdict"}


def keep(name: str, folders: Sequence[Path], folder: Path, into: Path) -> None:
    """Copy an experiment's results in reduced form: curves of at most `POINTS` points with five digits, and the figure drawn
    from them.

    The points of an experiment with `points` are copied unchanged. Files of an earlier copy are replaced.

    name: <paper>/<name>. folders: the user's config folders. folder: the results. into: where to copy them.

    Raises UserError if the experiment or a table is broken.
    """
    into.mkdir(parents=True, exist_ok=True)
    for file in (*COPIED, "curves.csv", FIGURE):
        (into / file).unlink(missing_ok=True)
    for file in COPIED:
        if (folder / file).exists():
            write_atomically(into / file, read_bytes(folder / file))
    if (folder / "figure.png").exists():
        curves = folder / "curves.csv"
        drawn = read_table(curves if curves.exists() else folder / "figure.csv", remedy=REMEDY)
        write_table(into / "curves.csv", _kept(drawn))
        draw_again(name, folders, into)


def draw_again(name: str, folders: Sequence[Path], folder: Path) -> None:
    """Draw figure.svg in a folder of kept results again, with the titles, panels and claims that the experiment's file has now.

    Does nothing if the folder has no curves.csv.

    name: <paper>/<name>. folders: the user's config folders. folder: the kept results.

    Raises UserError if the experiment or a table is broken.
    """
    if not (folder / "curves.csv").exists():
        return
    published, table = load(name, folders), read_table(folder / "curves.csv", remedy=REMEDY)
    draw, columns = draw_points, {"series", "x", "seed", "y"}
    if "line" in table:
        draw, columns = draw_curves, {*CURVES, published.x, "mean"}
    if lacking := ", ".join(sorted(columns - {*table})):
        raise UserError(f"{folder / 'curves.csv'}: lacks the columns {lacking}; run the experiment again")
    draw([folder / FIGURE], published, table)


def _kept(curves: pd.DataFrame) -> pd.DataFrame:
    """Return at most `POINTS` points of each line and metric, always with the first and the last; values are rounded to five
    digits.

    A table of points against a setting is returned unchanged.
    """
    if "line" not in curves:
        return curves
    parts = [thinned(points, POINTS) for _, points in curves.groupby(["line", "metric"], sort=False)]
    thin = pd.concat(parts) if parts else curves
    numbers = ["mean", "low", "high"]
    return thin.assign(**thin[numbers].map(lambda value: float(f"{value:.5g}")))


def judged_again(name: str, folders: Sequence[Path], folder: Path) -> list[dict[str, Any]]:
    """Judge the claims that the experiment's file has now on the values measured before; write claims.csv and return its rows.

    A claim whose measure or runs have changed since counts as not measured.

    name: <paper>/<name>. folders: the user's config folders. folder: has claims.csv and runs.csv; without them, nothing
        counts as measured.

    Raises UserError if the experiment or a table is broken.
    """
    published = load(name, folders)
    measured = {row["measure"]: row for row in rows_of(folder / "claims.csv", claims.MEASURED)}
    before = {(row["line"], row["seed"]): row["run"] for row in rows_of(folder / "runs.csv", ("line", "seed", "run"))}
    about = [claim.measure.lines(published.points) for claim in published.claims]
    seeds = max((seed for _, seed in before), default=0) + 1
    needed = tasks(name, published, seeds, (), folders, [*chain(*about)])
    now = {(task.line, task.seed): task.folder for task in needed}
    rows = []
    for claim, lines in zip(published.claims, about, strict=True):
        runs = {key: run for key, run in before.items() if key[0] in lines}
        same = {line for line, _ in runs} == {*lines} and runs.items() <= now.items()
        row = measured.get(claim.measure.text)
        if row and same:
            again = claims.row(claim, row["mean"], row["std"], row["seeds"], row["note"], row["values"])
            rows.append(again | {column: row[column] for column in claims.MADE})
        else:
            note = "its runs are others now" if row else "not run yet"
            rows.append(claims.row(claim, np.nan, np.nan, 0, note, "") | dict.fromkeys(claims.MADE, ""))
    write_table(folder / "claims.csv", pd.DataFrame(rows, columns=claims.COLUMNS))
    return rows


def claims_shown(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows of claims.csv as a table of texts.

    It has a column for the experiment if the rows name one, and one for the kind unless all claims are the paper's.
    """
    cells = []
    for row in rows:
        measured = f"{plus_minus(row['mean'], row['std'])} ({claims.seeds_of(row)})" if row["seeds"] else ""
        why = " ".join(filter(None, (row["why"], f"[{row['note']}]" if row["note"] else "")))
        cells.append({**row, "measured": measured, "why": why})
    columns = ["experiment"] * any("experiment" in row for row in rows)
    columns += ["kind"] * any(row["kind"] != "paper" for row in rows)
    columns += ["says", "bound", "paper", "measured", "holds"] + ["why"] * any(cell["why"] for cell in cells)
    return pd.DataFrame(cells, columns=columns).rename(columns=HEADS)


def rows_of(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a table that fedopt-reproduce wrote; [] if the file does not exist. Raises UserError if it is broken."""
    if not path.exists():
        return []
    how: dict[str, Any] = {"keep_default_na": False, "na_values": {"mean": "", "std": ""}, "dtype": TYPES}
    table = read_table(path, columns, most=LARGEST, remedy=REMEDY, **how)[[*columns]]
    table = table.replace("^'(?=[=@+-])", "", regex=True)  # the quote of `csv_cell`
    return [{str(column): value for column, value in row.items()} for row in table.to_dict("records")]
