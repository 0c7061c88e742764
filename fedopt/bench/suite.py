"""The benchmark: tasks with rules that were fixed before the results; the trials and reports of each method on them.

A task is a file conf/bench/<name>.yaml. Methods are tuned with the same Sobol trials, then reported on other seeds.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedopt.bench.trials import STAGES, How, Search, Trial
from fedopt.bench.tune import search_all, searches
from fedopt.comparing.recorded import Recorded, read
from fedopt.config.build import build
from fedopt.config.compose import Composed, compose
from fedopt.config.files import CONF, content
from fedopt.config.words import key_of
from fedopt.errors import UserError, unknown
from fedopt.jobs.job import Job
from fedopt.jobs.local import Launcher, run_all
from fedopt.results.folder import OVER, RunFolder

CURRENCIES = ("comm_rounds", "bytes", "oracle_calls")
POINTS = 40  # evaluations of a run between a hundredth and all of each budget
UNUSUAL = {"claims": [], "twin": [], "refuses": {}, "relative": False, "smoke": False}  # what some files leave out


@dataclass(frozen=True)
class Claim:
    """That one method spends less than another, as papers say it or as one would think."""

    says: str
    one: str
    other: str
    by: list[str]


@dataclass(frozen=True)
class Task:
    """A problem with its goals, as of its file.

    board: tasks of a board make one score. words: of every run; metric: what the targets are of; targets: from easy to hard;
    relative: shares of the value at the start. budget: by currency; a run ends when the last is spent. methods: names of
    algorithms; refuses: why others cannot take part. claims: the pairs that are tested. twin: words that make the clients equal.
    smoke: whether the smallest form has it.
    """

    version: str
    board: str
    title: str
    words: list[str]
    metric: str
    targets: list[float]
    budget: dict[str, float]
    methods: list[str]
    refuses: dict[str, str]
    claims: list[Claim]
    twin: list[str]
    relative: bool
    smoke: bool
    name: str


def tasks(names: Sequence[str], folders: Sequence[str] = (), smoke: bool = False) -> list[Task]:
    """The tasks of these names, all of them without one. Raises UserError for a name that there is not, and for a broken file."""
    roots = [CONF, *map(Path, folders)]
    files = {path.stem: path for root in roots for path in sorted((root / "bench").glob("*.yaml"))}
    for name in names:
        if name not in files:
            raise UserError(unknown("task", name, [*files]))
    chosen = [
        build(Task, {**UNUSUAL, **content(files[name]), "name": name}, f"bench.{name}") for name in names or files
    ]
    for task in chosen:
        if {*task.budget} != {*CURRENCIES}:
            raise UserError(f"bench.{task.name}: its budget has {', '.join(CURRENCIES)}")
    return [task for task in chosen if task.smoke or names or not smoke]


@dataclass(frozen=True)
class Result:
    """What the trials of a method on a task gave. best: by currency, the trial that is reported.

    spent: by number of the trial, of each of its seeds by currency, what `spent` gives.
    """

    search: Search
    best: dict[str, Trial]
    spent: dict[int, list[dict[str, list[float]]]]


@dataclass(frozen=True)
class Report:
    """A run on a seed that no trial had. kind: report; twin, of equal clients, on half of these seeds; again, on further ones."""

    kind: str
    seed: int
    folder: Path
    words: list[str]


@dataclass(frozen=True)
class Suite:
    """All runs of the tasks in a folder. folders: your config folders.

    trials: of each method, besides its defaults; tuning: seeds of each; seeds: of a report; further: seeds after these, on which
    methods of a claim are reported again.
    """

    out: Path
    folders: Sequence[str] = field(default=())
    trials: int = 12
    tuning: int = 2
    seeds: int = 10
    further: int = 10

    def run(self, task: Task, methods: Sequence[str], launcher: Launcher) -> None:
        """Do what is missing of a task: the trials of these methods, and the reports of their winners. Raises UserError."""
        search_all(self._searches(task, methods), self.out / task.name, launcher)
        jobs = []
        for result in self.results(task, methods):
            for number in {trial.number for trial in result.best.values()}:
                for report in self.reports(task, result.search, number):
                    title = f"{task.name} {result.search.algo}, {report.kind}, seed {report.seed}"
                    jobs.append((report, title))
        jobs = [(report, title) for report, title in jobs if RunFolder(report.folder).status() not in OVER]
        refused = run_all([Job(report.folder, self._composed(report), title) for report, title in jobs], launcher)
        lost = [f"{job.folder}: {why}" for job, why in refused.items() if RunFolder(job.folder).status() is None]
        if lost:
            raise UserError(lost[0])

    def runs(self, methods: Sequence[str]) -> float:
        """How many runs a task has, about: for most methods two trials are reported."""
        return len(methods) * ((self.trials + 1) * self.tuning + 2 * (1.5 * self.seeds + 0.7 * self.further))

    def results(self, task: Task, methods: Sequence[str]) -> list[Result]:
        """Of each method. Raises UserError for one that was not tried."""
        results = []
        for search in self._searches(task, methods):
            trials = [trial for trial in search.done if trial.stage == STAGES[0]]
            if not trials:
                raise UserError(
                    f"{task.name}: {search.algo} has no trials in {self.out}; fedopt-bench run {task.name} does them"
                )
            costs = {
                trial.number: [spent(task, search.place(trial.stage, trial.number, seed)) for seed in search.seeds]
                for trial in trials
            }
            best = {currency: _best(trials, costs, currency) for currency in CURRENCIES}
            results.append(Result(search, best, costs))
        return results

    def reports(self, task: Task, search: Search, number: int) -> Iterator[Report]:
        """Of a trial: on the seeds of the report, those of its twin, and further ones where the task has a claim on the method."""
        point = next(trial.point for trial in search.done if trial.stage == STAGES[0] and trial.number == number)
        words = search.command(point)
        equal = [*{key_of(word): word for word in (*words, *task.twin)}.values()]
        claimed = any(search.algo in (claim.one, claim.other) for claim in task.claims)
        seeds = range(self.seeds)
        kinds = (
            ("report", words, seeds),
            ("twin", equal, seeds[: -(-self.seeds // 2)] if task.twin else ()),
            ("again", words, range(self.seeds, self.seeds + self.further) if claimed else ()),
        )
        for kind, of_kind, numbers in kinds:
            for seed in numbers:
                folder = self.out / task.name / kind / f"{search.algo}-trial{number:03d}" / f"seed{seed}"
                yield Report(kind, seed, folder, of_kind)

    def hits(self, task: Task, results: Sequence[Result]) -> pd.DataFrame:
        """A row a (kind, currency, method, seed, target): its cost as a share of the budget, as `rank` takes them.

        kind: of `Report`; default and tuned are the first trial and the best one on the seeds of the trials.
        """
        table: list[dict[str, Any]] = []
        for result in results:
            by_trial = {
                number: [
                    *(("default", seed, costs) for seed, costs in enumerate(result.spent[0])),
                    *(("tuned", seed, costs) for seed, costs in enumerate(result.spent[number])),
                    *((r.kind, r.seed, spent(task, r.folder)) for r in self.reports(task, result.search, number)),
                ]
                for number in {trial.number for trial in result.best.values()}
            }
            table += [
                {"task": task.name, "kind": kind, "currency": currency, "method": result.search.algo, "seed": seed}
                | {"target": target, "cost": cost, "trial": best.number}
                for currency, best in result.best.items()
                for kind, seed, costs in by_trial[best.number]
                for target, cost in enumerate(costs[currency])
            ]
        return pd.DataFrame(table)

    def _searches(self, task: Task, methods: Sequence[str]) -> list[Search]:
        limits = [f"budget.{currency}={limit:g}" for currency, limit in task.budget.items()]
        words = [*task.words, *limits, "budget.until=last", f"eval.points={POINTS}"]
        how = How(self.trials, self.tuning, "sobol", prune=False, again=False)
        folder = self.out / task.name
        return searches([f"algo={','.join(methods)}", *words], self.folders, task.metric, None, how, folder)

    def _composed(self, report: Report) -> Composed:
        return compose([*report.words, f"seed={report.seed}", f"output_dir={report.folder}"], self.folders)


def spent(task: Task, folder: Path) -> dict[str, list[float]]:
    """By currency, what a run had spent of the budget when it reached each target, as `reached`; infinite without rows."""
    recorded = rows(folder)
    if recorded is None:
        return {currency: [math.inf] * len(task.targets) for currency in CURRENCIES}
    return {currency: reached(task, recorded, currency) for currency in CURRENCIES}


@cache
def rows(folder: Path) -> Recorded | None:
    """A run that has ended; None for one without rows."""
    try:
        return read(folder, CURRENCIES[0])
    except (OSError, ValueError, UserError):
        return None


def reached(task: Task, recorded: Recorded, currency: str) -> list[float]:
    """What a run had spent of the budget when it reached each target and was still there at the next evaluation; else infinite."""
    metric, values = recorded.metric(task.metric), recorded.values(task.metric)
    cost = recorded.cost(currency) / task.budget[currency]
    costs = []
    for target in task.targets:
        goal = target * values[0] if task.relative else target
        good = np.array([math.isfinite(value) and metric.reached(value, goal) for value in values])
        places = np.flatnonzero(good[:-1] & good[1:])
        share = float(cost[places[0] + 1]) if len(places) else math.inf
        costs.append(share if share <= 1 else math.inf)
    return costs


def _best(trials: Sequence[Trial], costs: Mapping[int, list[dict[str, list[float]]]], currency: str) -> Trial:
    """The trial that misses the fewest targets, then reaches the hardest of them soonest, then ends best: medians over seeds."""

    def order(trial: Trial) -> tuple[float, float, float]:
        medians = np.median([of_seed[currency] for of_seed in costs[trial.number]], axis=0)
        within = medians[np.isfinite(medians)]
        return len(medians) - len(within), float(within[-1]) if len(within) else math.inf, trial.loss

    return min(trials, key=order)
