"""Sections of an HTML page: a table of all runs, then the curves, tables and data partitions of each problem."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from fedopt.analysis.grouped import GroupedRuns
from fedopt.analysis.groups import first_metric, legend_labels, repeats
from fedopt.analysis.lines import BANDS, is_log, lines_of
from fedopt.analysis.runs import ABSENT, CHOSEN, DATA, PROBLEM, Recorded, by_problem, noting, problem_name
from fedopt.analysis.summary import paired_by, shown_table, tests_shown
from fedopt.analysis.tables import mean_text
from fedopt.analysis.unequal import unequal, with_status
from fedopt.config import display_name
from fedopt.console import counted, heard, order, printable
from fedopt.drawing import PlotStyle, Section, Table, look, styled
from fedopt.files import read_as
from fedopt.metrics import COSTS
from fedopt.results import LOST, OVER, RunFolder

LINES = f"Lines: means over seeds, geometric if the y axis is initially logarithmic. Bands: {BANDS['std']}."
SPENT = {x: f"{cost.label} (bytes)" if x == "bytes" else cost.label for x, cost in COSTS.items()}
LARGEST_MAP = 2**24  # bytes of partition.csv
Runs = Mapping[str, list[Recorded]]  # label -> runs of the group


def sections(comparison: GroupedRuns, title: str = "") -> list[Section]:
    """Return one page section per problem.

    Args:
        comparison: The groups of runs.
        title: A text to put before the name of the problem.
    """
    of_problems = []
    for problem, runs in by_problem(comparison.groups).items():
        legend = legend_labels(runs)
        groups = {legend[label]: list(members) for label, members in runs.items()}
        slots = {legend[label]: slot for label, slot in comparison.slots.items() if label in legend}
        chart, views = _drawn(replace(comparison, groups=groups, slots=slots))
        facts = [LINES] if any(len(members) > 1 for members in groups.values()) else []
        notes = [*unequal(comparison.by, groups, comparison.metric, comparison.at)]
        heading = ": ".join(filter(None, [title, problem_name(problem)]))
        of_problems.append(Section(heading, facts, "", chart, views, [_differences(groups)], _maps(groups), notes))
    return of_problems


def all_runs(runs: Iterable[Recorded], without_values: Mapping[str, str] = MappingProxyType({})) -> Section:
    """Return the page section with the table of all runs. The best value of the ended runs on each problem is bold.

    The column why is left out if no run failed, diverged or was left out.

    Args:
        runs: The runs that have recorded values.
        without_values: Folder of a run without recorded values -> the reason.
    """
    rows = []
    for run in runs:
        metric = run.metric(first_metric([run]))
        best = metric.best(run.good(metric.name))
        time = f"{run.cost('seconds')[-1]:.4g}" if run.knows("seconds") else ABSENT
        row = {"metric": metric.title, "best": mean_text(best), "time (s)": time}
        loss = metric.sign * best if run.status in OVER and math.isfinite(best) else math.inf
        rows.append({**_facts(run.folder, run.keys), **row, "loss": loss})
    for path, why in without_values.items():
        card = RunFolder(Path(path)).card()
        facts = _facts(Path(path), {**card.get("chosen", {}), "seed": str(card.get("seed", ABSENT))})
        rows.append({**facts, "why": facts["why"] or why})
    heads = ["state", "method", "problem", "best", "time (s)", "why", "metric", "seed", "folder"]
    table = pd.DataFrame(rows, columns=[*heads, "loss"])
    least = table.groupby(["problem", "metric"])["loss"].transform("min")
    cells = table.drop(columns=["loss"] if table["why"].any() else ["loss", "why"]).fillna(ABSENT)
    bold = pd.DataFrame(False, cells.index, cells.columns).assign(best=table["loss"].eq(least) & least.lt(math.inf))
    states = Counter(table["state"])
    title = f"{counted(len(rows), 'run')}: {', '.join(f'{number} {state}' for state, number in states.items())}"
    return Section("Runs", tables=[Table(title, cells, bold)])


def _facts(folder: Path, keys: Mapping[str, str]) -> dict[str, str]:
    """Return the cells of a run that do not depend on its metrics: column -> text.

    The columns are state, method, problem, seed, why (the reason why the run failed or diverged, else '') and folder.

    Args:
        folder: The run's folder.
        keys: The run's config: dotted key -> value as text.
    """
    problem = problem_name(tuple(keys.get(key, ABSENT) for key in PROBLEM)) or ABSENT
    names = {"method": display_name(keys.get("algo", ABSENT)), "problem": problem}
    facts = {"state": RunFolder(folder).seen() or ABSENT, **names, "seed": keys.get("seed", ABSENT)}
    return {**facts, "why": RunFolder(folder).summary().get("error", ""), "folder": str(folder)}


def _drawn(c: GroupedRuns) -> tuple[dict[str, Any], dict[str, tuple[list[Table], list[str]]]]:
    """Return what a page shows for the groups on one problem: the interactive chart, and the tables and notes of each metric.

    Args:
        c: The groups of runs.

    Returns:
        The data of the chart of every metric against every cost (`Section` describes its keys), and the mapping metric ->
        (tables, notes).
    """
    xs = {x: SPENT[x] for x in dict.fromkeys([c.x, *COSTS])}
    metrics = dict.fromkeys([c.metric, *(name for runs in c.groups.values() for run in runs for name in run.metrics)])
    chart: dict[str, Any] = {"xs": xs, "ys": {}, "logs": {}, "curves": {}, "targets": {c.metric: c.target}, "lines": []}
    with styled():
        for j, (label, runs) in enumerate(c.groups.items()):
            style = look(c.slots.get(label, j))
            line = {"name": label, "label": printable(with_status(label, runs))}
            lost = any(run.status in LOST for run in runs)  # its values do not set the limits of an axis
            chart["lines"].append({**line, "lost": lost, "colour": style["color"], "dash": style["linestyle"]})
    views = {}
    for y in metrics:
        have = {label: [run for run in runs if y in run.table] for label, runs in c.groups.items()}
        groups = {label: runs for label, runs in have.items() if runs}
        by_y = replace(c, metric=y, target=c.target if y == c.metric else None, groups=groups)
        if by_y.groups:
            chart["ys"][y], chart["logs"][y] = by_y.described.title, is_log(groups, y)
            chart["curves"][y] = {x: _curves(have, y, x, chart["logs"][y]) for x in xs}
            with heard() as notes:
                tested = by_y.paired
            how = f"T-tests {paired_by(tested)}, two-sided, and with Holm's correction over all pairs"
            views[y] = [shown_table(by_y, first="line"), Table(how, tests_shown(tested))], notes
    return chart, views


def _curves(groups: Runs, y: str, x: str, log: bool) -> list[list[list[float | None]] | None]:
    """Return the points of each group's line, as lists [x, mean, low, high], or [x, mean] for a single run.

    None stands for the points of a group that has no runs, or of which a run lacks this cost.

    Args:
        groups: label -> runs.
        y: The metric.
        x: The cost axis, a key of `COSTS`.
        log: Whether the y axis is logarithmic.
    """
    known = {label: runs for label, runs in groups.items() if runs and all(run.knows(x) for run in runs)}
    lines = lines_of(known, y, x, PlotStyle(logy=log)).drawn if known else {}
    return [_points(lines[k][: 4 if len(runs) > 1 else 2]) if k in lines else None for k, runs in groups.items()]


def _points(line: Sequence[np.ndarray | None]) -> list[list[float | None]]:
    """Return the points of a line, as lists [x, mean, low, high] of numbers with six digits; None for a number not finite.

    Args:
        line: The arrays x, mean, low and high, each [points]. Arrays that are None are left out.
    """
    arrays = (array for array in line if array is not None)
    return [[float(f"{value:.6g}") if math.isfinite(value) else None for value in array] for array in arrays]


def _differences(groups: Runs) -> Table:
    """Return a table of the config keys in which the runs differ, with one row per key and one column per group.

    A cell lists all values that the group's runs have for the key.

    Args:
        groups: label -> runs of the group.
    """
    runs = [run for members in groups.values() for run in members]
    keys = dict.fromkeys([*CHOSEN, *(key for run in runs for key in run.apart), DATA, "tuned"])
    apart = [key for key in keys if len({run.group([key]) for run in runs}) > 1]
    values = {
        label: [", ".join(sorted({run.keys.get(key, ABSENT) for run in members}, key=order)) for key in apart]
        for label, members in groups.items()
    }
    return Table("What differs in the configs", pd.DataFrame({"key": apart, **values}), open=False)


def _maps(groups: Runs) -> dict[str, Any]:
    """Return a heat map for each distinct partition of the data, by its title.

    The title consists of the label of the first group with this partition and the seeds of the run. A heat map is a dictionary
    with the names of ``clients`` and ``classes``, and the ``counts`` of examples, [clients, classes]. A broken partition.csv
    is left out, and a note names it.

    Args:
        groups: label -> runs of the group.
    """
    maps: dict[str, Any] = {}
    for label, run in ((label, run) for label, members in groups.items() for run in members):
        path, seeds = run.folder / "partition.csv", {k.rpartition(".")[2]: v for k, v in run.keys.items() if repeats(k)}
        with noting(path):
            counts = read_as(path, _counts, LARGEST_MAP) if path.exists() else []
            if counts and counts not in [other["counts"] for other in maps.values()]:
                card, sizes = RunFolder(run.folder).card(), {"clients": len(counts), "classes": len(counts[0])}
                names = {name: card.get(name, []) for name in sizes}
                names |= {name: [*map(str, range(n))] for name, n in sizes.items() if len(names[name]) != n}
                title = ", ".join([label, *(f"{key} {value}" for key, value in seeds.items())])
                maps[printable(title)] = {**names, "counts": counts}
    return maps


def _counts(text: str) -> list[list[int]]:
    """Parse partition.csv, and return the number of examples of each class on each client, [clients, classes].

    Args:
        text: The content of the file: one line per client, with its numbers of examples separated by commas.

    Raises:
        ValueError: Lines differ in length, or a cell is not a whole number of at least 0.
    """
    rows = [[int(cell) for cell in line.split(",")] for line in text.splitlines()]
    if len({*map(len, rows)}) != 1 or min(map(min, rows)) < 0:
        raise ValueError("must be a table of counts, with one client per line")
    return rows
