"""The runs of an entry on a task, and the table of all their evaluations that is kept.

The sampled configurations of an entry are run with two seeds each. A tuning run is a random choice of `SEARCH` of them. The
configurations that tuning runs select most often are run again with the seeds of a report.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedopt.bench.rank import SEARCH, chances, hits, values_of
from fedopt.bench.release import COLUMNS, read_table, rounded, write_table
from fedopt.bench.space import Point, overrides_of
from fedopt.bench.suite import COUNTS, CURRENCIES, VERSION, Entries, Entry, Task
from fedopt.bench.trials import FIRST_SEED, ended
from fedopt.bench.tune import refuse_unfinished
from fedopt.config import compose, quoted
from fedopt.console import note
from fedopt.errors import UserError
from fedopt.files import read_json
from fedopt.jobs import Job, Launcher, run_all
from fedopt.results import OVER, RunFolder

CARD = {"commit": str | None, "versions": dict[str, Any], "machine": dict[str, Any]}  # of run.json
COVERED = 0.8  # fraction of tuning runs whose selected configuration is reported


@dataclass(frozen=True)
class Pools:
    """The runs of the benchmark in one folder.

    Args:
        out: The folder.
        entries: All entries.
        seeds: The number of seeds of a sampled configuration, of a report, and of the control with equal clients.
        most: The largest number of sampled configurations of an entry, if it is smaller than the task's.
    """

    out: Path
    entries: Entries
    seeds: tuple[int, int, int] = (2, 10, 5)
    most: int = 10_000

    def kept(self, task: Task, name: str) -> Path:
        """Return the file of the table of an entry on a task."""
        return self.out / task.name / f"{name}.parquet"

    def run(self, task: Task, names: Sequence[str], launcher: Launcher) -> None:
        """Do the missing runs of these entries on a task, and keep their tables. Repeat the call to resume.

        Args:
            task: The task.
            names: The names of the entries.
            launcher: Does the runs.

        Raises:
            UserError: An entry cannot run on the task, or a run is damaged.
            Unfinished: Some runs did not finish.
        """
        missing = [self.entries[name] for name in names if not self._is_kept(task, name)]
        for entry in missing:
            compose(task.command(entry, {}), self.entries.folders)  # reports errors before the first run
        pools = {entry.name: self.entries.points(task, entry)[: self.most + 1] for entry in missing}
        of_pool = [
            run
            for entry in missing
            for number, point in enumerate(pools[entry.name])
            for run in self._runs(task, entry, "pool", number, point)
        ]
        self._do(task, of_pool, launcher)
        reports = list[Run]()
        for entry in missing:
            points = pools[entry.name]
            tried = self._table(task, [run for run in of_pool if run.entry == entry])
            for number in [0, *chosen(task, tried)]:
                reports += self._runs(task, entry, "report", number, points[number])
            if task.twin and not entry.reference:
                for number in chosen(task, tried, covered=0.0):
                    reports += self._runs(task, entry, "twin", number, points[number])
        self._do(task, reports, launcher)
        for entry in missing:
            own = [run for run in (*of_pool, *reports) if run.entry == entry]
            write_table(self.kept(task, entry.name), self._table(task, own))
            rmtree(self.out / task.name / entry.name)

    def table(self, chosen: Sequence[Task]) -> pd.DataFrame:
        """Return the kept rows of all entries on these tasks."""
        parts = [read_table(path) for task in chosen for path in sorted((self.out / task.name).glob("*.parquet"))]
        return pd.concat(parts or [pd.DataFrame(columns=COLUMNS)], ignore_index=True)

    def fits(self, task: Task, name: str) -> bool:
        """Return whether the data exist and an entry's config can be composed. If not, print a note that says why."""
        try:
            if task.data and not task.file.exists():
                raise UserError(f"{task.file} does not exist; make it with scripts/data {task.file.stem}")
            compose(task.command(self.entries[name], {}), self.entries.folders)
        except UserError as error:
            note(f"{task.name} is left out: {error}")
            return False
        return True

    def _is_kept(self, task: Task, name: str) -> bool:
        path = self.kept(task, name)
        if not path.exists():
            return False
        if {*read_table(path, ["task_digest"])["task_digest"]} != {self.entries.digest(task, self.entries[name])}:
            why = f"the rules in bench/{task.name}.yaml have changed since its runs"
            raise UserError(f"{path}: {why}; choose another --out")
        return True

    def _runs(self, task: Task, entry: Entry, kind: str, number: int, point: Point) -> "Iterator[Run]":
        of_pool, of_report, of_twin = self.seeds
        first, count = {"pool": (FIRST_SEED, of_pool), "report": (0, of_report), "twin": (0, of_twin)}[kind]
        place = self.out / task.name / entry.name / kind / f"point{number:03d}"
        for seed in range(first, first + count):
            yield Run(entry, kind, number, point, seed, place / f"seed{seed}")

    def _do(self, task: Task, runs: "Sequence[Run]", launcher: Launcher) -> None:
        """Do the runs that have not ended. A configuration that an algorithm refuses is not an error: it counts as diverged."""
        jobs = []
        for run in runs:
            if not RunFolder(run.folder).settled:
                words = task.command(run.entry, run.point, run.kind == "twin")
                words += [f"seed={run.seed}", f"output_dir={quoted(str(run.folder))}"]
                composed, title = compose(words, self.entries.folders), str(run.folder.relative_to(self.out))
                jobs.append(Job(run.folder, composed, title, AllReached(task)))
        refuse_unfinished(run_all(jobs, launcher))

    def _table(self, task: Task, runs: "Sequence[Run]") -> pd.DataFrame:
        return pd.concat([self._rows(task, run) for run in runs], ignore_index=True)

    def _rows(self, task: Task, run: "Run") -> pd.DataFrame:
        """Return the evaluations of a run, one row each. A run that failed has one row, without a value.

        Raises:
            UserError: The files of the run are damaged.
        """
        folder = RunFolder(run.folder)
        card, status = read_json(run.folder / "run.json", CARD), str(folder.status())
        versions, machine = card.get("versions", {}), card.get("machine", {})
        if status in OVER:
            found = ended(run.folder).table
            rows = pd.DataFrame({name: found[column] for name, column in COUNTS.items()})
            rows["value"] = rounded(found[task.metric])
        else:
            rows = pd.DataFrame({name: [0] for name in COUNTS} | {"value": [np.nan]})
        about = {"bench_version": VERSION, "commit": card.get("commit"), "torch": versions.get("torch")}
        about |= {"cpu": machine.get("processor"), "threads": machine.get("threads", 0)}
        about |= {"task": task.name, "task_digest": self.entries.digest(task, run.entry), "method": run.entry.name}
        about |= {"words": " ".join(overrides_of(run.point)), "kind": run.kind, "metric": task.metric, "status": status}
        return rows.assign(**about, point=run.number, seed=run.seed)


class Run(NamedTuple):
    """A run of an entry. number: the index of its configuration."""

    entry: Entry
    kind: str
    number: int
    point: Point
    seed: int
    folder: Path


@dataclass
class AllReached:
    """A function of a row of metrics.csv that returns whether this row and the previous one have reached the hardest target.

    It stops the run, because later rows do not count. A resumed run continues to the end of its budget.

    Args:
        task: The task.
        goal: The value of the hardest target.
        before: Whether the previous row has reached it.
    """

    task: Task
    goal: float = math.nan
    before: bool = False

    def __call__(self, row: Mapping[str, Any]) -> bool:
        value, targets = float(rounded(pd.Series([row[self.task.metric]]))[0]), self.task.targets
        if row["round"] == 0:
            self.goal = targets[-1] * value if self.task.relative else targets[-1]
        before, self.before = self.before, value >= self.goal if targets[-1] > targets[0] else value <= self.goal
        return before and self.before


def chosen(task: Task, tried: pd.DataFrame, covered: float = COVERED) -> list[int]:
    """Return the configurations that tuning runs select most often.

    They are the most frequent one in each currency, and the most frequent ones in all currencies that together are selected by
    a fraction ``covered`` of the tuning runs.
    """
    reached = hits(task, tried)
    by_currency = np.array(
        [chances(*values_of(reached[reached["currency"] == currency], tried, task), SEARCH) for currency in CURRENCIES]
    )
    together = by_currency.mean(axis=0)
    order = np.argsort(-together, kind="stable")
    enough = int(np.searchsorted(np.cumsum(together[order]), covered - 1e-9)) + 1
    return [*dict.fromkeys((np.concatenate([order[:enough], by_currency.argmax(axis=1)]) + 1).tolist())]
