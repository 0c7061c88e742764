"""The runs of an entry on a task, and the table of all their evaluations that is kept.

The sampled configurations of an entry are computed together, as the trials of `fedopt tune` are. The best of them are run again
with other seeds, for a report.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from shutil import rmtree

import pandas as pd

from fedopt.bench.curves import TABLE, Stack, read_rows
from fedopt.bench.rank import THEORY, pools_of
from fedopt.bench.release import COLUMNS, NAMES, read_table, rounded, write_table
from fedopt.bench.space import Point, overrides_of
from fedopt.bench.suite import COUNTS, REPORTS, SEEDS, VERSION, Entries, Entry, Task
from fedopt.bench.trials import FIRST_SEED
from fedopt.bench.tune import refuse_unfinished
from fedopt.config import compose
from fedopt.console import note
from fedopt.errors import UserError
from fedopt.jobs import Launcher, run_all
from fedopt.machine import processor

# Kinds of runs: sampled, sampled a second time, and with the seeds of reports
POOL, NULL, REPORT = "pool", "null", "report"
REPORTED = 8  # one of so many sampled configurations is reported: in 4 of 5 searches of 12, the best one is


@dataclass(frozen=True)
class Pools:
    """The runs of the benchmark in one folder.

    Args:
        out: The folder.
        entries: All entries.
        commit: The commit of the code, for the table.
        most: The largest number of sampled configurations of an entry, if it is smaller than the task's.
    """

    out: Path
    entries: Entries
    commit: str
    most: int = 10_000

    def kept(self, task: Task, name: str) -> Path:
        """Return the path of the file with all evaluations of an entry on a task."""
        return self.out / task.name / f"{name}.parquet"

    def run(self, task: Task, names: Sequence[str], launcher: Launcher) -> None:
        """Do the missing runs of these entries on a task, and keep their tables. Repeat the call to resume.

        Args:
            task: The task.
            names: The names of the entries.
            launcher: Does the runs.

        Raises:
            UserError: An entry cannot run on the task, or a table is damaged.
            Unfinished: Some runs did not finish.
        """
        pools = [_Pool(self, task, self.entries[name]) for name in names if not self._is_kept(task, name)]
        self._do(pools, launcher)
        for pool in pools:
            pool.choose()
        self._do(pools, launcher)
        for pool in pools:
            write_table(self.kept(task, pool.entry.name), pool.table())
            rmtree(pool.folder)

    def _do(self, pools: "Sequence[_Pool]", launcher: Launcher) -> None:
        refuse_unfinished(run_all([batch for pool in pools for batch in pool.batches()], launcher))

    def table(self, chosen: Sequence[Task]) -> pd.DataFrame:
        """Return the stored evaluations of all methods on these tasks as one table, one row per evaluation."""
        tables = [read_table(path) for task in chosen for path in sorted((self.out / task.name).glob("*.parquet"))]
        table = pd.concat(tables or [pd.DataFrame(columns=COLUMNS)], ignore_index=True)
        return table.astype(dict.fromkeys(NAMES, "category"))

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
        runs = {*read_table(path, ["task_digest", "commit"]).itertuples(index=False, name=None)}
        if runs != {(self.entries.digest(task, self.entries[name]), self.commit)}:
            of = f"its runs have other rules than bench/{task.name}.yaml, or another commit than {self.commit}"
            raise UserError(f"{path}: {of}; choose another --out")
        return True


class _Pool:
    """The runs of one entry on a task, in a folder named after what they depend on.

    Attributes:
        points: kind of runs -> point of the pool -> its configuration.
    """

    def __init__(self, pools: Pools, task: Task, entry: Entry):
        self.task, self.entry, digest = task, entry, pools.entries.digest(task, entry)
        self.points = dict[str, dict[int, Point]]()
        for n, kind in enumerate([POOL, *[NULL] * (entry.name in task.null)]):  # the null control has no defaults
            self.points[kind] = dict([*enumerate(pools.entries.points(task, entry, n)[: pools.most + 2])][n:])
        self.about = {"bench_version": VERSION, "commit": pools.commit, "torch": version("torch"), "cpu": processor()}
        self.about |= {"task": task.name, "task_digest": digest, "method": entry.name, "metric": task.metric}
        self.folder = pools.out / task.name / f"{entry.name} {digest} {pools.commit}"
        self.composed = compose(task.command(entry, {}), pools.entries.folders)

    def batches(self) -> Iterator[Stack]:
        """Yield the jobs that compute the missing runs, one for each kind and seed."""
        for kind, points in self.points.items():
            done = {(int(row["trial"]), int(row["seed"])) for row in read_rows(self.folder / kind / TABLE)}
            for seed in range(REPORTS) if kind == REPORT else range(FIRST_SEED, FIRST_SEED + SEEDS):
                if left := {number: point for number, point in points.items() if (number, seed) not in done}:
                    title = f"{self.task.name}, {self.entry.name}: {len(left)} of {kind}, seed {seed}"
                    yield Stack(self.folder / kind, self.composed.changed(seed=seed), title, points=left)

    def choose(self) -> None:
        """Choose the configurations of the pool that are reported.

        They are the defaults, the theory point, the best ones by the mean score over all currencies, and the best in each one.
        """
        table = self.table()
        pools = pools_of(self.task, table[table["kind"] == POOL])
        scores = pd.DataFrame({name: pools[name][self.entry.name].scores.mean(axis=1) for name in sorted(pools)})
        best = scores.mean(axis=1).nlargest(-(-len(scores) // REPORTED))
        numbers = (0, THEORY, *(THEORY + n for n in (*best.index, *scores.idxmax())))
        self.points[REPORT] = {n: self.points[POOL][n] for n in numbers}

    def table(self) -> pd.DataFrame:
        """Return the evaluations of the runs, one row each. A run that failed has one row, without a value."""
        tables = []
        for kind, points in self.points.items():
            found = pd.DataFrame(read_rows(self.folder / kind / TABLE))
            numbers = found.reindex(columns=[*COUNTS.values(), self.task.metric])
            numbers = numbers.apply(pd.to_numeric, errors="coerce")  # '' and 'nan' become nan
            rows = pd.DataFrame({name: numbers[column].fillna(0).astype(int) for name, column in COUNTS.items()})
            rows["value"], rows["status"] = rounded(numbers[self.task.metric]), found["status"]
            rows["point"], rows["seed"] = found["trial"].astype(int), found["seed"].astype(int)
            words = rows["point"].map({number: " ".join(overrides_of(point)) for number, point in points.items()})
            tables.append(rows.assign(kind=kind, words=words, threads=1, **self.about))
        return pd.concat(tables, ignore_index=True)
