"""Hyperparameter search for one algorithm: its trials, and what is left to run.

All algorithms get the same number of trials, the same seeds and the same budget per run. Reports use other seeds.

A trial is a point of the search space, run with each seed of the search. The trials of a batch are computed together, and their
curves are kept in a table. The defaults and the best trial also have ordinary run folders. Each batch depends only on
earlier ones, so a search that is killed at any moment and resumed ends with the same result, on any number of processes.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedopt.analysis import read
from fedopt.bench import SAMPLERS
from fedopt.bench.curves import TABLE, Stack, read_rows
from fedopt.bench.space import Point, Range, cube, distinct, grid, overrides_of
from fedopt.config import compose, flat, quoted
from fedopt.errors import UserError, first_line, unknown
from fedopt.jobs import Job, alike
from fedopt.metrics import Metric
from fedopt.results import OVER, RunFolder, numbers_of, stamp

FIRST_SEED = 1_000_000  # of a search; smaller seeds are for reports
BATCH = 16  # trials that the model-based sampler proposes together
CANDIDATES = 20  # points proposed for each trial, before random points replace repeated ones


@dataclass(frozen=True)
class How:
    """The options of a search.

    Args:
        trials: The number of points to try, in addition to the defaults.
        seeds: The number of seeds with which each point is run.
        sampler: How points are chosen, one of `SAMPLERS`.
        seed: The seed of the sampler.
    """

    trials: int = 30
    seeds: int = 2
    sampler: str = "tpe"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise UserError(unknown("sampler", self.sampler, [*SAMPLERS]))
        if self.trials < 1 or self.seeds < 1:
            raise UserError(f"trials={self.trials}, seeds={self.seeds}: both must be at least 1")


@dataclass(frozen=True)
class Trial:
    """A point and its result.

    Args:
        number: The trial's index, from 0.
        point: key -> value; empty for trial 0, the defaults.
        values: The last value of the metric with each seed; None if it is not finite.
        statuses: How the run with each seed ended.
        loss: The median of the values, negated if higher is better. A run that did not finish counts as infinite.
        found: The loss as the search found it, before standalone runs.
        standalone: Whether the values and statuses come from run folders.
    """

    number: int
    point: Point
    values: Sequence[float | None]
    statuses: Sequence[str]
    loss: float
    found: float
    standalone: bool

    @property
    def status(self) -> str:
        return ", ".join(dict.fromkeys(self.statuses))


@dataclass(eq=False)
class Search:
    """The search for good values of one algorithm's keys.

    Args:
        algo: The algorithm.
        problem: The problem.
        overrides: The overrides of all runs, without ranges and algo.
        folders: The user's config folders.
        ranges: key -> range.
        metric: The metric to optimise.
        how: The options.
        folder: The folder of the algorithm's runs and curves.

    Attributes:
        done: The trials that have ended, in order; empty until `update` is called.
        ends: (trial, seed) -> the last row of its curve, as text.
    """

    algo: str
    problem: str
    overrides: tuple[str, ...]
    folders: tuple[str, ...]
    ranges: dict[str, Range]
    metric: Metric
    how: How
    folder: Path
    done: list[Trial] = field(default_factory=list, init=False)
    ends: dict[tuple[int, int], dict[str, str]] = field(default_factory=dict, init=False)

    @property
    def name(self) -> str:
        return f"{self.algo} on {self.problem}"

    def command(self, point: Point) -> list[str]:
        """Return the overrides of a run at a point, without seed and folder."""
        return [f"algo={self.algo}", *self.overrides, *overrides_of(point)]

    @cached_property
    def defaults(self) -> dict[str, str]:
        """Searched key -> its default value as text, written as in an override."""
        values = flat(compose(self.command({}), self.folders).nodes)
        return {key: quoted(v) if isinstance(v := values[key], str) else json.dumps(v) for key in self.ranges}

    @property
    def best(self) -> Trial:
        """The trial with the lowest loss, the earliest of equal ones."""
        return min(self.done, key=lambda trial: trial.loss)

    @property
    def edges(self) -> dict[str, str]:
        """The best trial's values that lie at an edge of their range, or outside it, by key. See `Range.at_edge`."""
        point = self.best.point or self.defaults
        return {key: point[key] for key, values in self.ranges.items() if values.at_edge(point[key])}

    @property
    def seeds(self) -> range:
        return range(FIRST_SEED, FIRST_SEED + self.how.seeds)

    def place(self, number: int, seed: int) -> Path:
        """Return the folder of the standalone run of a trial with a seed.

        Args:
            number: The index of the trial.
            seed: The seed.
        """
        return self.folder / f"trial{number:03d}" / f"seed{seed}"

    @property
    def batch(self) -> int:
        """The number of trials that are chosen together. Only the model-based sampler uses the results of earlier trials."""
        return BATCH if self.how.sampler == "tpe" else self.planned

    @property
    def expected(self) -> int:
        """The number of jobs of the search: for each seed, the defaults, the batches of trials, and the best trial."""
        return self.how.seeds * (2 + math.ceil((self.planned - 1) / self.batch))

    @property
    def best_run(self) -> RunFolder:
        """The run folder of the best trial with the first seed."""
        return RunFolder(self.place(self.best.number, FIRST_SEED))

    @cached_property
    def planned(self) -> int:
        """The number of trials, including the defaults: fewer than requested if the ranges contain fewer points."""
        size = math.prod(values.size for values in self.ranges.values())
        size -= all(values.holds(self.defaults[key]) for key, values in self.ranges.items())
        if self.how.sampler == "grid":
            size = sum(point != self.defaults for point in grid(self.ranges, self.how.trials))
        return 1 + int(min(self.how.trials, size))

    def jobs(self, standalone: bool = False) -> list[Job | Stack]:
        """Return what is to be run next: the defaults, then batch after batch, then the best trial as a standalone run.

        If the standalone result is worse, so that another trial is now the best, that one is also run standalone. The list is
        empty if the search is complete. A trial that was interrupted continues with the same values.

        Args:
            standalone: Whether every trial is run in a run folder, instead of together with others.
        """
        if (first := len(self.done)) == 0:
            return [*self.runs(0, {})]
        if first == self.planned:
            best = self.best
            return [] if best.standalone or math.isinf(best.loss) else [*self.runs(best.number, best.point)]
        first -= (first - 1) % self.batch
        proposed = enumerate(self._points(first, min(self.batch, self.planned - first)), first)
        points = {n: self._begun(n) or point for n, point in proposed if n >= len(self.done)}
        if standalone:
            return [job for number, point in points.items() for job in self.runs(number, point)]
        return [*self._stacks(points)]

    def runs(self, number: int, point: Point) -> Iterator[Job]:
        """Yield the jobs that run a trial standalone, in a run folder, instead of together with other trials: one per seed.

        Args:
            number: The index of the trial.
            point: Its point; empty for the defaults.
        """
        first = compose([*self.command(point), f"seed={FIRST_SEED}"], self.folders)
        for seed in self.seeds:
            place, title = self.place(number, seed), f"{self.algo} trial {number}, seed {seed}"
            yield Job(place, first.changed(seed=seed, output_dir=str(place)), title)

    def _stacks(self, points: Mapping[int, Point]) -> Iterator[Stack]:
        """Yield the jobs that compute trials together, with each seed, as far as the table lacks them.

        Args:
            points: trial -> its point.
        """
        first = [f"seed={FIRST_SEED}"]
        configs = {n: compose([*self.command(point), *first], self.folders) for n, point in points.items()}
        for seed in self.seeds:
            left = {n: one.changed(seed=seed) for n, one in configs.items() if (n, seed) not in self.ends}
            for numbers in alike(left):
                title = f"{self.algo} trials {numbers[0]} to {numbers[-1]}, seed {seed}"
                together = [left[n] for n in numbers]
                yield Stack(self.folder, together[0], title, points={n: points[n] for n in numbers}, configs=together)

    def update(self) -> None:
        """Read which trials have ended.

        Raises:
            UserError: The table or a run is damaged, or the folder has more trials than this search.
        """
        self.ends = {(int(row["trial"]), int(row["seed"])): row for row in read_rows(self.folder / TABLE)}
        if self.place(self.planned, FIRST_SEED).exists() or any(number >= self.planned for number, _ in self.ends):
            raise UserError(f"{self.folder.parent}: has over {self.planned} {self.algo} trials; give a larger --trials")
        self.done = [*self._ended()]

    def _ended(self) -> Iterator[Trial]:
        """Yield the trials that have ended, in order, up to the first one that has not.

        The result of standalone runs comes before the table's. If the algorithm refuses the defaults, the search cannot begin, and
        no trial has ended.
        """
        for number in range(self.planned):
            folders = [RunFolder(self.place(number, seed)) for seed in self.seeds]
            rows = [self.ends[number, seed] for seed in self.seeds if (number, seed) in self.ends]
            found = result = self._result(rows) if len(rows) == len(folders) else None
            if standalone := all(folder.settled for folder in folders):
                if number == 0 and any(folder.status() is None for folder in folders):
                    return
                result = self._result([*map(end_of, folders)])
            if result is None:
                return
            if (point := self._begun(number)) is None:
                where = self.folder / TABLE if found else folders[0].path.parent
                raise UserError(f"{where}: is damaged, or belongs to another search; delete it and repeat the command")
            yield Trial(number, point, *result, (found or result)[2], standalone)

    def _result(self, ends: Sequence[Mapping[str, Any]]) -> tuple[list[float | None], list[str], float]:
        """Return the values and statuses of a trial, one for each seed, and its loss.

        The loss is the median over seeds of the metric, with the sign that makes lower values better. A value that is not
        finite is None. A seed without a value, or whose run did not finish, counts as infinite.

        Args:
            ends: For each seed, the status and the last metrics of the run, by name.
        """
        texts, statuses = [str(end.get(self.metric.name, "")) for end in ends], [end["status"] for end in ends]
        values = [float(text) if text and math.isfinite(float(text)) else None for text in texts]
        pairs = zip(values, statuses, strict=True)
        losses = [math.inf if v is None or status != "finished" else self.metric.sign * v for v, status in pairs]
        return values, statuses, float(np.median(losses))

    def _begun(self, number: int) -> Point | None:
        """Return the point of a trial as the table or its first run has it; an empty point for the defaults.

        Return None if the trial has not begun, or does not belong to this search.

        Args:
            number: The index of the trial.
        """
        of_run = RunFolder(self.place(number, FIRST_SEED)).card().get("overrides", ())
        rows = (self.ends.get((number, seed)) for seed in self.seeds)
        found = next(filter(None, rows), dict(text.partition("=")[::2] for text in of_run))
        point = {key: found.get(key, "") for key in self.ranges} if number else Point()
        return point if found and all(math.isfinite(self.ranges[key].share(v)) for key, v in point.items()) else None

    def _points(self, first: int, count: int) -> list[Point]:
        """Return the points of consecutive trials.

        Args:
            first: The index of the first trial.
            count: The number of trials.
        """
        before = self.done[:first]
        if self.how.sampler == "tpe":
            from fedopt.bench.parzen import proposed

            outcomes = [(trial.point, trial.found) for trial in before]
            new = proposed(self.ranges, outcomes, CANDIDATES * count, self._seed(first), self.how.trials)
        else:
            many = self.how.trials if self.how.sampler == "grid" else CANDIDATES * self.planned
            new = cube(self.how.sampler, self.ranges, many, self._seed(0))
        others = cube("random", self.ranges, 10_000, 0)  # contains all points of a small search space
        return distinct(chain(new, others), [self.defaults, *(trial.point for trial in before)], count)

    def _seed(self, number: int) -> int:
        return int(np.random.SeedSequence([self.how.seed, 0, number]).generate_state(1)[0])


def end_of(folder: RunFolder) -> dict[str, Any]:
    """Return the status and the last metrics of a run, and check that the files of a run that has ended agree with each other.

    A missing checkpoint is allowed, because users delete checkpoints to save space.

    Args:
        folder: The run's folder.

    Raises:
        UserError: A file is damaged, or a necessary file is missing.
    """
    from fedopt.results import checkpoint  # imports torch
    from fedopt.running import counted_rows

    summary = folder.summary()
    final = numbers_of(summary.get("final"))
    try:
        if folder.status() in OVER:
            rows = read(folder.path, "comm_rounds").table
            if os.path.lexists(folder.checkpoint):
                metadata = checkpoint.read(folder.checkpoint)[1]
                checkpoint.refuse_foreign(folder.checkpoint, metadata, stamp(folder.config())["run"])
                counted_rows(folder, metadata)
            if {"round": summary.get("round"), **final}.items() - rows.iloc[-1].to_dict().items():
                raise UserError("the last row of metrics.csv differs from the final values in summary.json")
    except (OSError, ValueError, UserError) as error:
        where = "" if str(folder.path) in str(error) else f"{folder.path}: "
        raise UserError(f"{where}{first_line(error)}; delete {folder.path} and repeat the command") from None
    return {**final, "status": summary["status"]}
