"""The tables of a comparison, as text and as files."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedopt.analysis.grouped import GroupedRuns
from fedopt.analysis.runs import ABSENT
from fedopt.analysis.tables import alike, in_bytes, latex, markdown, mean_text, plus_minus, unit_of_bytes, write_table
from fedopt.analysis.unequal import amount
from fedopt.drawing import Table
from fedopt.errors import UserError
from fedopt.files import write_atomically
from fedopt.metrics import COSTS
from fedopt.results import LOST, OVER

# For the tables that people read
COLUMNS = ("runs", "seeds", "status", "spent", "final", "test", "best", "test_at_best", "to_target", "reached")


def shown_table(
    comparison: GroupedRuns,
    columns: Sequence[str] = (),
    decimals: int | None = None,
    short: bool = False,
    first: str = "",
) -> Table:
    """Return the table of a comparison as text. The best value on each problem is bold, among the groups without a run in
    progress.

    Args:
        comparison: The comparison.
        columns: The columns to show, such as runs, seeds and final. Empty: the columns that are informative for these runs.
        decimals: The number of decimals of the metric, 0 to 15. None: as many as give the standard deviation two significant
            digits.
        short: Whether the column headings are short names, such as best, instead of phrases, such as best test accuracy (%).
        first: The heading of the column of labels. Empty: the keys that define the groups.

    Raises:
        UserError: The comparison lacks a column, or the decimals are not from 0 to 15.
    """
    if decimals is not None and decimals not in range(16):
        raise UserError(f"decimals={decimals}: must be a whole number from 0 to 15")
    c, rows, runs = comparison, comparison.table, [members[0] for members in comparison.groups.values()]
    metrics, test_metric = [run.metric(c.metric) for run in runs], c.test_metric
    signs = pd.Series([math.nan if its.better == "neither" else its.sign for its in metrics])
    title, test, cost = metrics[0].title, runs[0].metric(test_metric).title, COSTS[c.x].label
    final = "final" if c.at is None else f"at {amount(c.x, c.at)}:"
    of_metric, of_spent = partial(plus_minus, decimals=decimals), in_bytes if c.x == "bytes" else plus_minus
    # Heading, column of the CSV, format of (mean, std), and the sign that makes lower values better (nan: neither direction is)
    measured: dict[str, tuple[str, str, Callable[[float, float], str], pd.Series | float]] = {
        "spent": (cost, f"spent_{c.x}", of_spent, math.nan),
        "final": (f"{final} {title}", f"final_{c.metric}", of_metric, signs),
        "test": (f"{final} {test}", f"final_{test_metric}", of_metric, math.nan),
        "best": (f"best {title}", f"best_{c.metric}", of_metric, signs),
        "test_at_best": (f"{test} at best", f"{test_metric}_at_best", of_metric, math.nan),
        "to_target": (f"{cost} to {c.target or 0:g}", f"{c.x}_to_target", of_spent, 1),
    }
    counts = {name: rows[name].astype(str) for name in ("runs", "seeds", "status")}
    if c.target is not None:
        counts["reached"] = rows["reached"].astype(str) + " of " + counts["runs"]
    measured = {name: column for name, column in measured.items() if f"{column[1]}_mean" in rows}
    present = [name for name in COLUMNS if name in counts or name in measured]
    if missing := [name for name in columns if name not in present]:
        raise UserError(f"--columns={missing[0]}: choose from {', '.join(present)} (to_target needs --target)")
    over = pd.Series([all(run.status in (*OVER, *LOST) for run in its) for its in c.groups.values()])
    tells_nothing = {"runs": (rows["runs"] == rows["seeds"]).all(), "spent": c.at is None}
    tells_nothing["status"] = rows["status"].str.fullmatch(r"\d+ finished").all()
    shown = pd.DataFrame({first or ", ".join(c.by): rows["label"].astype(str)})
    best = pd.DataFrame({shown.columns[0]: np.zeros(len(rows), dtype=bool)})
    for name in columns or [name for name in present if not tells_nothing.get(name)]:
        if name in counts:
            head = "reached by" if name == "reached" else name
            shown[head], best[head] = counts[name], False
            continue
        head, column, show, sign = measured[name]
        head = name.replace("_", " ") if short else head
        mean, std = rows[f"{column}_mean"], rows[f"{column}_std"]
        if show is in_bytes:
            show = partial(in_bytes, unit=unit_of_bytes(mean.tolist()))
        cells = [mean_text(*pair, show) for pair in zip(mean, std, strict=True)]
        if show is of_metric and decimals is None and std.isna().all() and np.isfinite(mean).all():  # of single runs
            cells = alike(mean.tolist(), 4)
        if name == "to_target":  # a mean over the runs that reached it
            few = rows["reached"].between(1, rows["runs"] - 1)
            cells = [f"{c} ({by})" if noted else c for c, by, noted in zip(cells, counts["reached"], few, strict=True)]
            mean = mean.where(rows["reached"] == rows["runs"])
        mean = mean.where(over)
        problems = pd.Series([run.problem for run in runs])
        shown[head], best[head] = cells, _best(mean, std, show, problems, sign)
    return Table("Last and best values", shown, best)


def _best(mean: pd.Series, std: pd.Series, show: Any, problems: pd.Series, sign: pd.Series | float) -> list[bool]:
    """Return, for each group, whether its mean is the best on its problem or is shown with the same digits as the best.

    The result is False if the mean is nan, or if the group is the only one on its problem.

    Args:
        mean: The mean of each group.
        std: The standard deviation of each group.
        show: A function that formats (mean, std) as text.
        problems: The problem of each group.
        sign: 1 if lower values are better, -1 if higher values are, nan if neither; one number for all groups or one per
            group.
    """
    tops = (sign * mean).groupby(problems).transform("min") * sign
    several = problems.map(Counter(problems)) > 1
    return [
        bool(more and math.isfinite(top) and math.isfinite(value) and show(value, spread) == show(top, spread))
        for value, spread, top, more in zip(mean, std, tops, several, strict=True)
    ]


def tests_shown(tested: pd.DataFrame) -> pd.DataFrame:
    """Return the table of `fedopt.analysis.stats.tests` as text, with three significant digits; nan becomes `ABSENT`."""
    tested = tested.drop(columns="paired by")
    texts = tested.map(lambda v: alike([v], 3)[0] if isinstance(v, float) else str(v))
    apart = tested.columns[1]
    return texts.assign(**{apart: alike(tested[apart].tolist(), 3)}).where(tested.notna(), ABSENT)


def paired_by(tested: pd.DataFrame) -> str:
    """Return a text that names the keys by which the runs are paired and the numbers of pairs, such as 'paired by seed (5)'.

    Args:
        tested: The table of paired tests.
    """
    each = dict.fromkeys(f"{keys} ({n})" for keys, n in zip(tested["paired by"], tested["pairs"], strict=True))
    return f"paired by {', '.join(each)}"


def write_shown(base: Path, name: str, table: pd.DataFrame, shown: Table) -> Path:
    """Write a table to a file in one format, and return the path of the file.

    Args:
        base: The path of the file without its ending.
        name: The format: csv, latex or markdown.
        table: The values, for CSV.
        shown: The same table as text, for the other formats.
    """
    if name == "csv":
        write_table(path := base.with_suffix(".csv"), table)
        return path
    path, made = (base.with_suffix(".tex"), latex) if name == "latex" else (base.with_suffix(".md"), markdown)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f"{made(shown.cells, shown.bold).rstrip()}\n".encode())
    return path
