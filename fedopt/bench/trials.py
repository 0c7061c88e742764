"""Searches: every method gets the same number of trials, the same seeds and budget. No report uses these seeds.

A trial is a point: values of the searched keys. It has one run per seed, each a job as in a sweep. A search stores nothing
    besides the runs' folders. Trials are chosen in batches, and each batch depends only on earlier ones. So a search that is
    killed at any moment and resumed ends with the same trials, on any number of processes.
"""

import json
import math
import os
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np

from fedopt.analysis import Recorded, read
from fedopt.bench import SAMPLERS
from fedopt.bench.space import Point, Range, cube, distinct, grid, words_of
from fedopt.config import compose, flat, key_of, quoted
from fedopt.errors import UserError, first_line, nearest
from fedopt.jobs import Job
from fedopt.metrics import Metric
from fedopt.results import OVER, RunFolder, numbers_of, stamp

FIRST_SEED = 1_000_000  # of a search; smaller ones are for reports
BATCH = 4  # trials that are chosen at once
DRAWS = 20  # of points for each that is needed, before random ones are taken


@dataclass(frozen=True)
class How:
    """The options of a search.

    Args:
        trials: The number of points to try, besides the defaults.
        seeds: The number of runs of each point.
        sampler: How points are chosen, one of `SAMPLERS`.
        seed: The seed of the sampler.
    """

    trials: int = 30
    seeds: int = 2
    sampler: str = "tpe"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            meant = nearest(self.sampler, [*SAMPLERS])
            raise UserError(f"sampler={self.sampler}: must be one of {', '.join(SAMPLERS)}{meant}")
        if self.trials < 1 or self.seeds < 1:
            raise UserError(f"trials={self.trials}, seeds={self.seeds}: both must be at least 1")


@dataclass(frozen=True)
class Trial:
    """A point and its outcome.

    number: its index, from 0. point: key -> value; empty for the defaults.
    values, statuses: one per seed; the value is None for a run without a last value.
    loss: the median of the values over seeds, negated if higher is better. A run that did not finish counts as infinite.
    """

    number: int
    point: Point
    values: list[float | None]
    statuses: list[str]
    loss: float

    @property
    def status(self) -> str:
        return ", ".join(dict.fromkeys(self.statuses))


@dataclass(eq=False)
class Search:
    """The search for good values of one algorithm's keys.

    Args:
        algo: The algorithm.
        words: The overrides of all runs, without ranges and algo.
        folders: The user's config folders.
        ranges: key -> range.
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
    done: list[Trial] = field(default_factory=list, init=False)  # until `update`

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
        return [key for key, values in self.ranges.items() if values.at_edge(point[key])]

    @property
    def seeds(self) -> range:
        return range(FIRST_SEED, FIRST_SEED + self.how.seeds)

    def place(self, number: int, seed: int) -> Path:
        """Return the folder of the run of a trial with a seed."""
        return self.folder / f"trial{number:03d}" / f"seed{seed}"

    @cached_property
    def planned(self) -> int:
        """The number of trials, with the defaults: fewer than asked for where the ranges hold fewer points."""
        size = math.prod(values.size for values in self.ranges.values())
        size -= all(values.holds(self.defaults[key]) for key, values in self.ranges.items())
        if self.how.sampler == "grid":
            size = sum(point != self.defaults for point in grid(self.ranges, self.how.trials))
        return 1 + int(min(self.how.trials, size))

    def batch(self) -> list[tuple[int, Point]]:
        """Return (number, point) of each trial in the next batch that is not in `done` yet; [] if the search is complete.

        A trial that has begun keeps the point it began with.
        """
        size = BATCH if self.how.sampler == "tpe" else self.planned  # else no trial depends on another
        first = len(self.done) - len(self.done) % size
        numbers = range(first, min(first + size, self.planned))
        if len(self.done) >= self.planned:
            return []
        pairs = zip(numbers, self._points(numbers), strict=True)
        return [(number, self._begun(number) or point) for number, point in pairs if number >= len(self.done)]

    def jobs(self, number: int, point: Point) -> list[Job]:
        """Return the runs of a trial, one per seed."""
        first = compose([*self.command(point), f"seed={FIRST_SEED}"], self.folders)
        places = {seed: self.place(number, seed) for seed in self.seeds}
        return [
            Job(place, first.changed(seed=seed, output_dir=str(place)), f"{self.algo} trial {number}, seed {seed}")
            for seed, place in places.items()
        ]

    def update(self) -> None:
        """Append to `done` the trials that have ended since, in order. Raises UserError if a file of one is damaged."""
        while len(self.done) < self.planned and (trial := self._ended(len(self.done))) is not None:
            self.done.append(trial)

    def _ended(self, number: int) -> Trial | None:
        """Return a trial as its folders record it. Return None while some of its runs are still to be done.

        A trial of the defaults that the algorithm refuses also gives None. Raises UserError if a file is damaged, or belongs
        to another search.
        """
        folders = [RunFolder(self.place(number, seed)) for seed in self.seeds]
        point = self._begun(number)
        refused = number == 0 and any(folder.status() is None for folder in folders)
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
        return Trial(number, point, values, statuses, float(np.median(losses)))

    def _begun(self, number: int) -> Point | None:
        """Return the point of a trial, read from the overrides of its first run; {} for the trial of the defaults.

        Return None if the trial has not begun, or belongs to another search.
        """
        words = RunFolder(self.place(number, FIRST_SEED)).card().get("overrides", ())
        if number == 0:
            return {} if words else None
        found = dict(word.partition("=")[::2] for word in words)
        point = {key: found.get(key, "") for key in self.ranges}
        return point if all(math.isfinite(self.ranges[key].share(text)) for key, text in point.items()) else None

    @property
    def best_run(self) -> RunFolder:
        """Return the folder of the best trial's first run."""
        return RunFolder(self.place(self.best.number, FIRST_SEED))

    def _points(self, numbers: range) -> list[Point]:
        """Return the points of the trials with these numbers. Trial 0 is the defaults, an empty point."""
        points, before = [Point()] if numbers.start == 0 else [], self.done[: numbers.start]
        wanted, seed = len(numbers) - len(points), self._seed(numbers.start)
        if self.how.sampler == "tpe":
            from fedopt.bench.parzen import proposed

            outcomes = [(trial.point, trial.loss) for trial in before]
            new = proposed(self.ranges, outcomes, DRAWS * wanted, seed, self.how.trials)
        else:
            count = self.how.trials if self.how.sampler == "grid" else DRAWS * self.planned
            new = cube(self.how.sampler, self.ranges, count, self._seed(0))
        others = cube("random", self.ranges, 10_000, 0)  # among them are all points of a space that has too few
        return points + distinct(chain(new, others), [self.defaults, *(t.point for t in before)], wanted)

    def _seed(self, number: int) -> int:
        return int(np.random.SeedSequence([self.how.seed, 0, number]).generate_state(1)[0])


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
