"""The benchmark: tasks whose rules were fixed before the results, and the trials and reports of each method on them.

A task is a file conf/bench/<name>.yaml. All methods are tuned with the same number of Sobol trials, then reported on other
seeds.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedopt.analysis import Recorded
from fedopt.bench.trials import STAGES, How, Search, Trial, ended
from fedopt.bench.tune import planned_searches, refuse_unfinished, search_all
from fedopt.config import CONF, compose, content, key_of, options, quoted
from fedopt.config.build import build
from fedopt.console import note
from fedopt.errors import UserError, unknown
from fedopt.files import read_json
from fedopt.jobs import Job, Launcher, run_all
from fedopt.results import OVER, RunFolder

CURRENCIES = ("comm_rounds", "bytes", "oracle_calls")
POINTS = 40  # evaluations of a run between a hundredth and all of each budget
FIXED = ("version", "words", "metric", "targets", "relative", "budget", "claims", "twin")  # of a task, before it is run
UNUSUAL = {"claims": [], "twin": [], "refuses": {}, "relative": False, "smoke": False}  # what some files leave out


@dataclass(frozen=True)
class Claim:
    """A registered claim that method `one` spends less than method `other`.

    says: the rest of the sentence that begins with the name of `one`. by: the currencies it is tested in.
    """

    says: str
    one: str
    other: str
    by: list[str]


@dataclass(frozen=True)
class Task:
    """A benchmark task: a problem with its targets and budgets, as read from conf/bench/<name>.yaml.

    Args:
        version: Changes whenever the rules change.
        board: The board on which the task counts. A method has one score per board.
        title: A short description.
        words: The overrides of every run.
        metric: The metric to which the targets refer.
        targets: Values of the metric to reach, from easy to hard.
        budget: currency (comm_rounds, bytes, oracle_calls) -> limit; a run ends when all limits are spent.
        methods: Names of algorithms.
        refuses: algorithm -> why it cannot take part.
        claims: The claims to test.
        twin: Overrides that make all clients equal, for the control runs; empty: no control.
        relative: Whether targets are fractions of the metric's first value.
        smoke: Whether the smallest form of the benchmark includes this task.
        name: The name of the file, without ending.
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
    """Return the tasks with the given names; without names, all tasks.

    folders: the user's config folders. smoke: without names, return only the tasks marked smoke.

    Raises:
        UserError: There is no task of this name, or a file is broken.
    """
    roots = [CONF, *map(Path, folders)]
    files = {path.stem: path for root in roots for path in sorted((root / "bench").glob("*.yaml"))}
    for name in names:
        if name not in files:
            raise UserError(unknown("task", name, [*files]))
    nodes = {name: {**UNUSUAL, **content(files[name]), "name": name} for name in names or files}
    chosen = [build(Task, node, f"bench.{name}") for name, node in nodes.items()]
    for task in chosen:
        for name in (task.name, task.board, *task.methods, *task.refuses):  # files and folders have these names
            if not re.fullmatch(r"\w[\w -]{0,60}", name):
                raise UserError(
                    f"bench.{task.name}: {name!r} cannot be a name; use letters, digits, blanks, _ and - only"
                )
        if {*task.budget} != {*CURRENCIES}:
            raise UserError(f"bench.{task.name}: its budget must have {', '.join(CURRENCIES)}")
        for claim in task.claims:
            if not ({claim.one, claim.other} <= {*task.methods} and {*claim.by} <= {*CURRENCIES}):
                raise UserError(
                    f"bench.{task.name}: a claim must be about two of its methods, by one of {', '.join(CURRENCIES)}"
                )
    return [task for task in chosen if task.smoke or names or not smoke]


@dataclass(frozen=True)
class Result:
    """The trials of a method on a task. best: currency -> its best trial, whose values are reported."""

    search: Search
    best: dict[str, Trial]


@dataclass(frozen=True)
class Report:
    """A run by which a method is judged.

    Args:
        kind: default: the first trial, on the seeds of the search. tuned: the best trial, on the same seeds. report: the best
            trial's values on other seeds. twin: as report with equal clients, on half of its seeds. further: as report on
            still other seeds, only for methods in a claim.
        trial: The number of the trial.
        seed: The seed.
        folder: The run's folder.
        words: The run's overrides without seed and folder; empty if the run belongs to a trial (default, tuned).
    """

    kind: str
    trial: int
    seed: int
    folder: Path
    words: list[str]


@dataclass(frozen=True)
class Suite:
    """The benchmark's runs of all tasks, in one folder.

    Args:
        out: The folder.
        folders: The user's config folders.
        trials: The number of trials of each method, besides its defaults.
        tuning: The number of seeds of each trial.
        seeds: The number of seeds of a report.
        further: The number of additional seeds, used for claims only.
    """

    out: Path
    folders: Sequence[str] = ()
    trials: int = 12
    tuning: int = 2
    seeds: int = 10
    further: int = 10

    def methods(self, task: Task) -> list[str]:
        """Return the methods that a task lists, followed by those that the user entered. An entered method without a config is
        left out.
        """
        tried = read_json(self.out / task.name / "search.json", {}, others=dict[str, Any])
        return [*dict.fromkeys([*task.methods, *(name for name in tried if name in options("algo", self.folders))])]

    def fits(self, task: Task, method: str) -> bool:
        """Return whether the config of a method on a task can be composed. If not, print a note that says why."""
        try:
            compose([f"algo={method}", *task.words], self.folders)
        except UserError as error:
            note(f"{task.name} is left out, since {method} cannot run on it: {error}")
            return False
        return True

    def missing(self, task: Task, methods: Sequence[str]) -> int:
        """Estimate how many runs of a task are still to be done. The estimate assumes that two trials per method are reported."""
        needed = len(methods) * ((self.trials + 1) * self.tuning + 3 * self.seeds + self.further)
        return max(needed - len([*(self.out / task.name).rglob("summary.json")]), 0)

    def run(self, task: Task, methods: Sequence[str], launcher: Launcher) -> None:
        """Do the missing runs of a task: all trials of the methods, then the reports of the best trials.

        Raises UserError if the task changed since its runs began, or a method cannot run with its defaults. Raises Unfinished
        if some runs did not finish.
        """
        searches = self._searches(task, methods)
        (self.out / task.name).mkdir(parents=True, exist_ok=True)
        RunFolder(self.out / task.name).write_json("task.json", {key: asdict(task)[key] for key in FIXED})
        search_all(searches, self.out / task.name, launcher)
        results = [self._result(task, search) for search in searches]
        reports = {report.folder: report for result in results for report in self.reports(task, result) if report.words}
        jobs = []
        for folder, report in reports.items():
            words = [*report.words, f"seed={report.seed}", f"output_dir={quoted(str(folder))}"]
            jobs.append(Job(folder, compose(words, self.folders), str(folder.relative_to(self.out))))
        refuse_unfinished(jobs, run_all(jobs, launcher))

    def results(self, task: Task) -> list[Result]:
        """Return one result per method. Raises UserError if a method lacks trials, or the task changed since its runs began."""
        return [self._result(task, search) for search in self._searches(task, self.methods(task))]

    def _result(self, task: Task, search: Search) -> Result:
        trials = [trial for trial in search.done if trial.stage == STAGES[0]]
        if len(trials) < search.planned(STAGES[0]):
            lacks = f"{search.algo} has only {len(trials)} of {search.planned(STAGES[0])} trials in {self.out}"
            raise UserError(f"{task.name}: {lacks}; do them with fedopt-bench run {task.name}")
        runs = {t.number: [rows(search.place(t.stage, t.number, seed)) for seed in search.seeds] for t in trials}
        best = {c: min(trials, key=lambda trial: _order(task, trial, runs[trial.number], c)) for c in CURRENCIES}
        return Result(search, best)

    def reports(self, task: Task, result: Result, currency: str = "") -> list[Report]:
        """Return the runs by which a method is judged: all kinds of `Report`.

        currency: use the best trial by this currency only; empty: the best trials by every currency.
        """
        search, seeds = result.search, range(self.seeds)
        claimed = any(search.algo in (claim.one, claim.other) for claim in task.claims)
        groups = [self._tried(search, "default", 0)]
        for trial in [result.best[currency]] if currency else {t.number: t for t in result.best.values()}.values():
            words = search.command(trial.point)
            equal = [*{key_of(word): word for word in (*words, *task.twin)}.values()]
            later = range(self.seeds, self.seeds + self.further) if claimed else ()
            for kind, of_kind, numbers in (
                ("report", words, seeds),
                ("twin", equal, seeds[: -(-self.seeds // 2)] if task.twin else ()),
                ("further", words, later),
            ):
                place = self.out / task.name / "reports" / kind / f"{search.algo}-trial{trial.number:03d}"
                groups.append([Report(kind, trial.number, seed, place / f"seed{seed}", of_kind) for seed in numbers])
            groups.append(self._tried(search, "tuned", trial.number))
        return [report for of_kind in groups for report in of_kind]

    def _tried(self, search: Search, kind: str, number: int) -> list[Report]:
        return [Report(kind, number, seed, search.place(STAGES[0], number, seed), []) for seed in search.seeds]

    def hits(self, task: Task, results: Sequence[Result]) -> pd.DataFrame:
        """Return the hits (see `fedopt.bench.rank`) for every kind of `Report` and every currency, one row per method, seed and
        target.

        Raises:
            UserError: A run has not ended.
        """
        table: list[dict[str, Any]] = []
        for result in results:
            for currency in CURRENCIES:
                for report in self.reports(task, result, currency):
                    if not RunFolder(report.folder).settled:
                        raise UserError(
                            f"{report.folder}: this run has not ended; resume it with fedopt-bench run {task.name}"
                        )
                    row: dict[str, Any] = {"task": task.name, "kind": report.kind, "currency": currency}
                    row |= {"method": result.search.algo}
                    row |= {"trial": report.trial, "seed": report.seed}
                    costs = reached(task, rows(report.folder), currency)
                    table += [{**row, "target": target, "cost": cost} for target, cost in enumerate(costs)]
        return pd.DataFrame(table)

    def _searches(self, task: Task, methods: Sequence[str]) -> list[Search]:
        if not task.targets or not all(task.budget.values()):
            raise UserError(
                f"bench.{task.name}: has no targets and budgets yet; measure them with scripts/bench_targets"
            )
        limits = [f"budget.{currency}={limit:g}" for currency, limit in task.budget.items()]
        words = [*task.words, *limits, "budget.until=last", f"eval.points={POINTS}"]
        how = How(self.trials, self.tuning, "sobol", prune=False, again=False)
        folder = self.out / task.name
        begun, now = folder / "task.json", json.loads(json.dumps(asdict(task)))
        if others := [key for key, value in read_json(begun, {}, others=Any).items() if value != now.get(key)]:
            what = (
                f"the runs here began with different values of {', '.join(others)} than bench/{task.name}.yaml has now"
            )
            raise UserError(f"{begun}: {what}; restore the file, or choose another --out")
        return planned_searches([f"algo={','.join(methods)}", *words], self.folders, task.metric, None, how, folder)


@cache
def rows(folder: Path) -> Recorded | None:
    """Return the recorded rows of a run; None unless it finished, diverged or was stopped. The answer is cached for the
    process.

    Raises UserError if the run is damaged.
    """
    return ended(folder, CURRENCIES[0]) if RunFolder(folder).status() in OVER else None


def reached(task: Task, recorded: Recorded | None, currency: str) -> list[float]:
    """Return for each target the share of the budget that the run had spent when it reached the target; infinity if it did not.

    A target counts as reached if two consecutive evaluations reach it; the cost is that of the second. A target reached
    beyond the budget counts as missed. For recorded=None all targets are missed.
    """
    if recorded is None:
        return [math.inf] * len(task.targets)
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


def _order(
    task: Task, trial: Trial, runs: Sequence[Recorded | None], currency: str
) -> tuple[bool, float, float, float]:
    """Return a sort key for trials; the smallest is best.

    Its parts are whether the trial has no value; the number of missed targets; the cost of the hardest target that was
    reached; and the metric at the end of the budget. The last three use medians over seeds; with two seeds, both must reach a
    target.
    """
    medians = np.median([reached(task, run, currency) for run in runs], axis=0)
    finite = medians[np.isfinite(medians)]
    hardest = float(finite[-1]) if len(finite) else math.inf
    last = [_last(task, run, currency) for run in runs]
    return not math.isfinite(trial.loss), len(medians) - len(finite), hardest, float(np.median(last))


def _last(task: Task, run: Recorded | None, currency: str) -> float:
    """Return the metric at the last evaluation within the budget, signed so that lower is better.

    Infinity if there is no such evaluation, or its value is not finite.
    """
    if run is None:
        return math.inf
    value = [math.nan, *run.values(task.metric)[run.cost(currency) <= task.budget[currency]]][-1]
    return math.inf if math.isnan(value) else run.metric(task.metric).sign * value
