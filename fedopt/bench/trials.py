"""Searches: every method gets the same number of trials, the same seeds and budget. No report uses these seeds.

A trial is a point: values of the searched keys. It has one run per seed, each a job as in a sweep. A search stores nothing
    besides the runs' folders. Trials are chosen in batches, and each batch depends only on earlier ones. So a search that is
    killed at any moment and resumed ends with the same trials, on any number of processes.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedopt.analysis import Recorded, read
from fedopt.bench import SAMPLERS
from fedopt.bench.space import Point, Range, cube, distinct, grid, words_of
from fedopt.config import compose, flat, key_of, quoted
from fedopt.errors import UserError, first_line, nearest
from fedopt.files import write_atomically
from fedopt.jobs import Job
from fedopt.metrics import COSTS, Metric
from fedopt.results import OVER, RunFolder, numbers_of, stamp

FIRST_SEED = 1_000_000  # of a search; smaller ones are for reports
BATCH = 4  # trials that are chosen at once
WARM_UP = 0.25  # share of the budget in which nothing is pruned
DRAWS = 20  # of points for each that is needed, before random ones are taken
BEFORE = 5  # trials whose median a run is pruned by, at least
STAGES = ("trial", "again")  # again: where the best value was at an edge


@dataclass(frozen=True)
class How:
    """The options of a search.

    Args:
        trials: The number of points to try, besides the defaults.
        seeds: The number of runs of each point.
        sampler: How points are chosen, one of `SAMPLERS`.
        seed: The seed of the sampler.
        prune: Whether to stop a run early once it is worse than the median of earlier trials at the same cost.
        again: Whether to add trials, half as many, around a best value that lies at the edge of its range.
    """

    trials: int = 30
    seeds: int = 2
    sampler: str = "tpe"
    seed: int = 0
    prune: bool = True
    again: bool = True

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            meant = nearest(self.sampler, [*SAMPLERS])
            raise UserError(f"sampler={self.sampler}: must be one of {', '.join(SAMPLERS)}{meant}")
        if self.trials < 1 or self.seeds < 1:
            raise UserError(f"trials={self.trials}, seeds={self.seeds}: both must be at least 1")


@dataclass(frozen=True)
class Worse:
    """A function of a row of metrics.csv: whether the metric is worse than a limit that depends on the cost. It stops a run
    early.

    columns: the columns whose sum is the cost. spent: [n], increasing costs. limits: [n]; limits[j] applies from spent[j] on.
        There is no limit before spent[0].
    """

    metric: Metric
    columns: tuple[str, ...]
    spent: tuple[float, ...]
    limits: tuple[float, ...]

    def __call__(self, row: Mapping[str, Any]) -> bool:
        place = np.searchsorted(self.spent, sum(row[column] for column in self.columns), side="right") - 1
        return bool(place >= 0 and not self.metric.reached(row[self.metric.name], self.limits[place]))


@dataclass(frozen=True)
class Trial:
    """A point and its outcome.

    stage: one of `STAGES`. number: its index in the stage, from 0. point: key -> value; empty for the defaults.
    values, statuses: one per seed; the value is None for a run without a last value.
    loss: the median of the values over seeds, negated if higher is better. A run that did not finish counts as infinite.
    """

    stage: str
    number: int
    point: Point
    values: list[float | None]
    statuses: list[str]
    loss: float

    @property
    def status(self) -> str:
        return ", ".join(dict.fromkeys(self.statuses)).replace("stopped", "pruned")


@dataclass(eq=False)
class Search:
    """The search for good values of one algorithm's keys.

    Args:
        algo: The algorithm.
        words: The overrides of all runs, without ranges and algo.
        folders: The user's config folders.
        ranges: key -> range, in the first stage.
        metric: The metric to optimise.
        x: The cost axis that the budget limits, a key of `COSTS`.
        how: The options.
        folder: The folder of the trials.

    Attributes:
        done: The trials that have ended, in order; empty until `update` is called.
    """

    algo: str
    words: tuple[str, ...]
    folders: tuple[str, ...]
    ranges: dict[str, Range]
    metric: Metric
    x: str
    how: How
    folder: Path
    done: list[Trial] = field(init=False)

    def __post_init__(self) -> None:
        self.done = []  # until `update`

    @property
    def name(self) -> str:
        return f"{self.algo} on {self.problem}"

    @property
    def problem(self) -> str:
        return next(word for word in self.words if key_of(word) == "problem").partition("=")[2]

    def command(self, point: Point) -> list[str]:
        """Return the overrides of a run at a point, without seed and folder."""
        return [f"algo={self.algo}", *self.words, *words_of(point)]

    @cached_property
    def defaults(self) -> dict[str, str]:
        """Return searched key -> its default value as text, written as in an override."""
        values = flat(compose(self.command({}), self.folders).nodes)
        return {key: quoted(v) if isinstance(v := values[key], str) else json.dumps(v) for key in self.ranges}

    @property
    def best(self) -> Trial:
        """Return the trial with the lowest loss, the earliest of equal ones. Raises UserError if no trial has a finite value."""
        best = min(self.done, key=lambda trial: trial.loss)
        if not math.isfinite(best.loss):
            ends = ", ".join(dict.fromkeys(status for trial in self.done for status in trial.statuses))
            none = f"none of {len(self.done)} trials has a value ({ends})"
            raise UserError(f"{self.name}: {none}; try smaller steps or a longer budget")
        return best

    def edges(self, trial: Trial) -> list[str]:
        """Return the keys whose value lies at an edge of its range, or beyond it. See `Range.at_edge`."""
        point = trial.point or self.defaults
        return [key for key, values in self.ranges_in(trial.stage).items() if values.at_edge(point[key])]

    @property
    def seeds(self) -> range:
        return range(FIRST_SEED, FIRST_SEED + self.how.seeds)

    def place(self, stage: str, number: int, seed: int) -> Path:
        """Return the folder of the run of a trial with a seed."""
        return self.folder / f"{stage}{number:03d}" / f"seed{seed}"

    def planned(self, stage: str) -> int:
        """Return the number of trials of a stage; the first stage includes the defaults.

        The second stage has 0 unless `how.again` is set, the best value of the first lies at an edge, and the sampler is not
        grid.
        """
        if stage == STAGES[0]:
            size = math.prod(values.size for values in self.ranges.values())
            size -= all(values.holds(self.defaults[key]) for key, values in self.ranges.items())
            if self.how.sampler == "grid":
                size = sum(point != self.defaults for point in grid(self.ranges, self.how.trials))
            return 1 + int(min(self.how.trials, size))
        best = self._best_at_first
        needed = self.how.again and self.how.sampler != "grid" and math.isfinite(best.loss) and bool(self._beyond(best))
        return -(-self.how.trials // 2) if needed else 0

    def expected(self, stage: str) -> int:
        """Return the number of runs from the beginning of the search to the end of a stage.

        Whether a later stage has trials is known only when this one has ended.
        """
        return self.how.seeds * sum(map(self.planned, STAGES[: STAGES.index(stage) + 1]))

    def batch(self, stage: str) -> "list[tuple[int, Point]]":
        """Return (number, point) of each trial in the next batch that is not in `done` yet; [] if the stage is complete.

        A trial that has begun keeps the point it began with.
        """
        there, planned = [trial for trial in self.done if trial.stage == stage], self.planned(stage)
        size = BATCH if self.how.sampler == "tpe" or self.how.prune else planned  # else no trial depends on another
        first = len(there) - len(there) % size if planned else 0
        numbers = range(first, min(first + size, planned))
        if not numbers or len(there) >= planned:
            return []
        points = self._points(stage, numbers)
        pairs = zip(numbers, points, strict=True)
        return [(number, self._begun(stage, number) or point) for number, point in pairs if number >= len(there)]

    def jobs(self, stage: str, batch: Sequence[tuple[int, Point]]) -> list[Job]:
        """Return the runs of the trials of a batch, with the limits at which each is stopped early. The trial of the defaults
        has none.
        """
        limits, nothing = [self._limit(stage, seed) for seed in range(self.how.seeds)], [None] * self.how.seeds
        runs = (self._runs(stage, n, at, limits if n or stage != STAGES[0] else nothing) for n, at in batch)
        return [job for of_trial in runs for job in of_trial]

    def ended_jobs(self) -> list[Job]:
        """Return the runs of the trials in `done`."""
        nothing = [None] * self.how.seeds
        return [job for t in self.done for job in self._runs(t.stage, t.number, t.point, nothing)]

    def _runs(self, stage: str, number: int, point: Point, prunes: Sequence[Worse | None]) -> list[Job]:
        """Return the runs of a trial, one per seed. prunes: for each seed, the function that stops the run early, or None."""
        first = compose([*self.command(point), f"seed={FIRST_SEED}"], self.folders)
        places = {seed: self.place(stage, number, seed) for seed in self.seeds}
        jobs = []
        for (seed, place), prune in zip(places.items(), prunes, strict=True):
            composed, words = (
                first.changed(seed=seed, output_dir=str(place)),
                f"{self.algo} {stage} {number}, seed {seed}",
            )
            jobs.append(Job(place, composed, words, prune))
        return jobs

    def update(self) -> None:
        """Append to `done` the trials that have ended since, in order. Raises UserError if a file of one is damaged."""
        for stage in STAGES:
            there, planned = sum(trial.stage == stage for trial in self.done), self.planned(stage)
            for number in range(there, planned):
                if (trial := self._ended(stage, number)) is None:
                    return
                self.done.append(trial)

    def _ended(self, stage: str, number: int) -> Trial | None:
        """Return a trial as its folders record it. Return None while some of its runs are still to be done.

        A trial of the defaults that the algorithm refuses also gives None. Raises UserError if a file is damaged, or belongs
        to another search.
        """
        folders = [RunFolder(self.place(stage, number, seed)) for seed in self.seeds]
        point = self._begun(stage, number)
        refused = number == 0 and stage == STAGES[0] and any(folder.status() is None for folder in folders)
        if refused or not all(folder.settled for folder in folders):
            return None  # a search whose defaults are refused cannot begin
        if point is None:
            where = folders[0].path.parent
            raise UserError(f"{where}: its run.json is damaged, or belongs to another search; delete this folder")
        summaries = [folder.summary() for folder in folders]
        statuses = [summary["status"] for summary in summaries]
        for folder in folders:
            if folder.status() in OVER:
                ended(folder.path, self.x)
        values = [numbers_of(summary.get("final")).get(self.metric.name) for summary in summaries]
        ends = zip(values, statuses, strict=True)
        losses = [
            self.metric.sign * v if v is not None and math.isfinite(v) and how == "finished" else math.inf
            for v, how in ends
        ]
        return Trial(stage, number, point, values, statuses, float(np.median(losses)))

    def _begun(self, stage: str, number: int) -> Point | None:
        """Return the point of a trial, read from the overrides of its first run; {} for the trial of the defaults.

        Return None if the trial has not begun, or belongs to another search.
        """
        words = RunFolder(self.place(stage, number, FIRST_SEED)).card().get("overrides", ())
        if number == 0 and stage == STAGES[0]:
            return {} if words else None
        found = dict(word.partition("=")[::2] for word in words)
        point = {key: found.get(key, "") for key in self.ranges}
        return point if all(math.isfinite(self.ranges[key].share(text)) for key, text in point.items()) else None

    def write_journal(self) -> None:
        """Write journal.log, with a study per stage, for Optuna's dashboard. fedopt does not read it."""
        from fedopt.bench.parzen import journal

        self.folder.mkdir(exist_ok=True)
        studies = {}
        for stage in dict.fromkeys(trial.stage for trial in self.done):
            trials = [(trial.point or self.defaults, trial) for trial in self.done if trial.stage == stage]
            studies[f"{self.algo} {stage}"] = (self.ranges_in(stage), trials)
        write_atomically(self.folder / "journal.log", journal(studies).encode())

    @property
    def _best_at_first(self) -> Trial:
        """Return the best trial of the first stage. Its loss is infinite if none has a value."""
        return min((trial for trial in self.done if trial.stage == STAGES[0]), key=lambda trial: trial.loss)

    @property
    def best_run(self) -> RunFolder:
        """Return the folder of the best trial's first run."""
        return RunFolder(self.place(self.best.stage, self.best.number, FIRST_SEED))

    def _beyond(self, best: Trial) -> list[str]:
        """Return the keys whose range the second stage moves: log and uniform ones with the best value at an edge."""
        return [key for key in self.edges(best) if best.point and self.ranges[key].kind in ("log", "uniform")]

    def ranges_in(self, stage: str) -> dict[str, Range]:
        """Return key -> range in a stage. In the second stage, ranges whose best value lay at an edge are centred on that
        value.
        """
        if stage == STAGES[0]:
            return self.ranges
        best = self._best_at_first
        return self.ranges | {key: self.ranges[key].around(best.point[key]) for key in self._beyond(best)}

    def _points(self, stage: str, numbers: range) -> list[Point]:
        """Return the points of the trials with these numbers. Trial 0 of the first stage is the defaults, an empty point."""
        ranges, points = self.ranges_in(stage), [Point()] if (stage, numbers.start) == (STAGES[0], 0) else []
        before = [t for t in self.done if t.stage != stage or t.number < numbers.start]
        wanted = len(numbers) - len(points)
        if self.how.sampler == "tpe":
            from fedopt.bench.parzen import proposed

            new = proposed(ranges, before, DRAWS * wanted, self._seed(stage, numbers.start), self.how.trials)
        else:
            count = self.how.trials if self.how.sampler == "grid" else DRAWS * self.planned(stage)
            new = cube(self.how.sampler, ranges, count, self._seed(stage, 0))
        others = cube("random", ranges, 10_000, 0)  # among them are all points of a space that has too few
        return points + distinct(chain(new, others), [self.defaults, *(t.point for t in before)], wanted)

    def _seed(self, stage: str, number: int) -> int:
        return int(np.random.SeedSequence([self.how.seed, STAGES.index(stage), number]).generate_state(1)[0])

    def _limit(self, stage: str, j: int) -> Worse | None:
        """Return the function that tells when to stop a run with the j-th seed.

        It stops a run that is worse than the median of the trials of earlier batches at the same cost. Return None if
        `how.prune` is False, or fewer than `BEFORE` trials have finished.
        """
        full = len([t for t in self.done if t.stage == stage]) // BATCH * BATCH
        earlier = [t for t in self.done if (t.stage != stage or t.number < full) and t.statuses[j] == "finished"]
        if not self.how.prune or len(earlier) < BEFORE:
            return None
        runs = [read(self.place(trial.stage, trial.number, self.seeds[j]), self.x) for trial in earlier]
        spent = np.unique(np.concatenate([run.cost() for run in runs]))
        spent = spent[spent >= WARM_UP * max(run.cost()[-1] for run in runs)]
        rows = [run.values(self.metric.name)[np.searchsorted(run.cost(), spent, side="right") - 1] for run in runs]
        limits = np.nanmedian(rows, axis=0)
        return Worse(self.metric, COSTS[self.x].columns, tuple(spent.tolist()), tuple(limits.tolist()))


def ended(path: Path, x: str) -> Recorded:
    """Read a run that is over, as `read` does, and check that its files agree with each other. x: the cost axis, a key of
    `COSTS`.

    A missing checkpoint is allowed: users remove it to save space.

    Raises:
        UserError: A file is damaged, or a needed one is missing.
    """
    from fedopt.results import checkpoint  # which imports torch
    from fedopt.running import counted_rows

    folder = RunFolder(path)
    try:
        run, summary = read(path, x), folder.summary()
        if os.path.lexists(folder.checkpoint):
            metadata = checkpoint.read(folder.checkpoint)[1]
            checkpoint.refuse_foreign(folder.checkpoint, metadata, stamp(folder.config())["run"])
            counted_rows(folder, metadata)
        last = {name: run.table[name].iloc[-1] for name in run.table}
        if {"round": summary.get("round"), **numbers_of(summary.get("final"))}.items() - last.items():
            raise UserError("metrics.csv does not end as summary.json records")
    except (OSError, ValueError, UserError) as error:
        where = "" if str(path) in str(error) else f"{path}: "
        raise UserError(f"{where}{first_line(error)}; delete {path} and repeat the command") from None
    return run
