"""The `Plan` of a published experiment, with the runs that it needs, and its results: claims, table and figure."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedopt.analysis import Recorded, beside_paper, moments, noting, print_table, read, write_table
from fedopt.console import tell
from fedopt.files import refuse_linked
from fedopt.papers import claims
from fedopt.papers.figure import curves, draw
from fedopt.papers.measure import Measure
from fedopt.papers.published import Published, Task, load, tasks
from fedopt.papers.seed_runs import SeedRuns, Unmeasurable
from fedopt.results import ENDED, RunFolder

RUNS = "runs"  # the folder of all runs, in the output folder
MOST_SEEDS = 10  # the largest number of seeds for the lines of an undecided claim
SHORT = 120.0  # seconds: a line whose runs all take less gets more seeds


@dataclass(kw_only=True)
class Plan:
    """A published experiment as `fedopt reproduce` executes it: the runs that it needs and the folder of its results.

    Args:
        name: <paper>/<name>.
        output: The folder of all results and runs.
        folders: The user's config folders.
        overrides: Overrides that take precedence over the overrides of the lines (configurations).
        seeds: The number of seeds of each line. None: the number in the experiment's file, and more for the lines of
            undecided claims.
        quick: Whether the runs of each line have only a few rounds and one seed. Claims are then not judged.

    Attributes:
        published: The experiment.
        runs: The folder of all runs.
        results: The folder of its results.
        tasks: The runs that are needed so far.

    Raises:
        UserError: The experiment's file or an override is invalid.
    """

    name: str
    output: Path
    folders: Sequence[Path] = ()
    overrides: Sequence[str] = ()
    seeds: int | None = None
    quick: bool = False

    def __post_init__(self) -> None:
        self.published = load(self.name, self.folders)
        self.runs, self.results = self.output / RUNS, self.output / self.name
        seeds = self.published.seeds
        if self.quick:
            self.published = replace(self.published, title=f"{self.published.title} (a few rounds, no result)")
            self.overrides = [*self.overrides, *self.published.quick]
            self.results, seeds = self.output / "quick" / self.name, 1
        for folder in (self.results, self.runs):
            refuse_linked(folder, self.output)
        self.tasks: list[Task] = []
        self.add(self.seeds or seeds)

    def add(self, seeds: int, lines: Sequence[str] | None = None) -> int:
        """Add runs to `tasks`, and return the number of new runs.

        Args:
            seeds: The number of seeds, from seed 0 on.
            lines: The labels of the lines. None: all lines.
        """
        known = {(task.line, task.seed) for task in self.tasks}
        needed = tasks(self.name, self.published, seeds, self.overrides, self.folders, lines)
        new = [task for task in needed if (task.line, task.seed) not in known]
        self.tasks += new
        return len(new)

    def add_undecided(self) -> int:
        """Add runs with further seeds to the lines of undecided claims, and return the number of new runs.

        Each line then has `MOST_SEEDS` (10) seeds. A claim is skipped if none of its runs has ended, or if one of its runs
        took `SHORT` (120) seconds or more.
        """
        if self.quick or self.seeds:
            return 0
        seeds, lines = self.ended(), []
        for claim, row in zip(self.published.claims, judged(self, seeds), strict=True):
            about = claim.measure.lines(self.published.points)
            ended = [runs.runs[line] for runs in seeds.values() for line in about if line in runs.runs]
            longest = max((run.table["train_seconds"].iloc[-1] for run in ended), default=SHORT)
            if claim.verdict(row["mean"], row["std"], row["seeds"]).startswith(claims.UNDECIDED) and longest < SHORT:
                lines += about
        return self.add(MOST_SEEDS, lines)

    def ended(self) -> dict[int, SeedRuns]:
        """Return a mapping from each seed of the tasks to the runs of this seed that have ended.

        A run that cannot be read is left out, and a note names it.
        """
        ended: dict[int, dict[str, Recorded]] = {task.seed: {} for task in self.tasks}
        for task in self.tasks:
            if RunFolder(folder := self.runs / task.folder).status() in ENDED:
                with noting(folder):
                    ended[task.seed][task.line] = read(folder, self.published.x)
        defaults = self.published.x, self.published.y[0], self.published.points, self.published.point
        return {seed: SeedRuns(runs, *defaults) for seed, runs in ended.items()}


def report(plan: Plan, formats: Sequence[str]) -> None:
    """Write the results of a plan into its folder, and print its table and its claims.

    The claims are written to claims.csv, unless the plan is `quick`. For an experiment with a table, table.csv is written.
    For any other experiment, the points or the lines of the figure are written to curves.csv, and the figure is drawn if
    there is something to draw.

    Args:
        plan: The plan, whose runs have been executed.
        formats: The file formats of the figure, such as png.
    """
    published, seeds = plan.published, plan.ended()
    if published.table:
        cells = _table(published, seeds)
        write_table(plan.results / "table.csv", cells)
        print_table(beside_paper(cells), caption="measured (paper)")
    if not plan.quick:
        rows = judged(plan, seeds)
        for row in rows:
            tell(claims.sentence(row))
        tell(claims.totals(rows))
        write_table(plan.results / "claims.csv", pd.DataFrame(rows, columns=claims.COLUMNS))
    if published.table:
        return
    lines = {label: [of.runs[label] for of in seeds.values() if label in of.runs] for label in published.lines}
    drawn = _points(published, seeds) if published.points else curves(published, lines)
    write_table(plan.results / "curves.csv", drawn)
    draw([plan.results / f"figure.{name}" for name in formats], published, drawn)


def judged(plan: Plan, seeds: Mapping[int, SeedRuns]) -> list[dict[str, Any]]:
    """Return one row of claims.csv per claim. A claim is judged on the seeds that are planned for all its lines.

    Args:
        plan: The plan.
        seeds: Seed -> the runs of this seed that have ended.
    """
    asked = {(task.line, task.seed) for task in plan.tasks}
    rows = []
    for claim in plan.published.claims:
        lines = claim.measure.lines(plan.published.points)
        its = {seed: runs for seed, runs in seeds.items() if all((line, seed) in asked for line in lines)}
        made = _made([runs.runs[line].folder for runs in its.values() for line in lines if line in runs.runs])
        rows.append(claims.judge(claim, its) | made)
    return rows


def _made(folders: Sequence[Path]) -> dict[str, str]:
    """Return when and where some runs were made, as the columns date, commit and machine of claims.csv.

    The date is the latest day on which one of the runs began. Several commits or machines are separated by commas.

    Args:
        folders: The folders of the runs.
    """
    cards = [RunFolder(folder).card() for folder in folders]
    machines = [card.get("machine", {}) for card in cards]
    latest = max((card.get("started", "") for card in cards), default="")
    commits = [card.get("commit") for card in cards]
    computers = [machine.get("gpu") or machine.get("platform") for machine in machines]
    columns = dict(zip(claims.MADE, ([latest[:10]], commits, computers), strict=True))
    return {name: ", ".join(dict.fromkeys(str(value) for value in values if value)) for name, values in columns.items()}


def _value(measure: Measure, runs: SeedRuns, **names: str | float) -> float:
    """Return the value of a measure on the runs of one seed; nan if the measure has no value.

    Args:
        measure: The measure.
        runs: The runs of the seed.
        names: Values for `line` and `x` in the measure.
    """
    with suppress(Unmeasurable):
        return measure.value(runs, **names)
    return np.nan


def _points(published: Published, seeds: Mapping[int, SeedRuns]) -> pd.DataFrame:
    """Return the points of the figure: one row, with the columns series, x, seed and y, for each point and each seed whose run
    has ended. y is nan if it cannot be measured.

    Args:
        published: The experiment.
        seeds: Seed -> the runs of this seed that have ended.
    """
    rows = []
    for series, points in published.points.items():
        for x, label in points.items():
            of_label = {seed: runs for seed, runs in seeds.items() if label in runs.runs}
            measure = published.point[series]
            rows += [(series, x, seed, _value(measure, runs, x=x, line=label)) for seed, runs in of_label.items()]
    return pd.DataFrame(rows, columns=["series", "x", "seed", "y"])


def _table(published: Published, seeds: Mapping[int, SeedRuns]) -> pd.DataFrame:
    """Return the content of table.csv, with one row per cell of the paper's table: the number in the paper, and fedopt's mean
    and standard deviation over the seeds for which the cell has a value.

    Args:
        published: The experiment.
        seeds: Seed -> the runs of this seed that have ended.
    """
    rows = []
    for row, cells in published.table.items():
        for column, (label, paper) in cells.items():
            values = [v for runs in seeds.values() if not np.isnan(v := _value(published.cell, runs, line=label))]
            rows.append((row, column, paper, *moments(values), len(values)))
    return pd.DataFrame(rows, columns=["row", "column", "paper", "mean", "std", "seeds"])
