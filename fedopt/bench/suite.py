"""The benchmark: tasks with rules that were fixed before the results; the trials and reports of each method on them.

A task is a file conf/bench/<name>.yaml. Methods are tuned with the same Sobol trials, then reported on other seeds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from fedopt.bench.trials import STAGES, How, Search, Trial
from fedopt.bench.tune import search_all, searches
from fedopt.comparing.recorded import Recorded, read
from fedopt.config.build import build
from fedopt.config.compose import compose
from fedopt.config.files import CONF, content
from fedopt.errors import UserError, unknown
from fedopt.jobs.job import Job
from fedopt.jobs.local import Launcher, run_all
from fedopt.results.folder import OVER, RunFolder

CURRENCIES = ("comm_rounds", "bytes", "oracle_calls")
UNUSUAL = {"pairs": [], "twin": [], "relative": False, "smoke": False}  # what most files leave out
TRIALS, TUNING_SEEDS, SEEDS, POINTS = 12, 2, 10, 200
SMOKE = (3, 1, 3)  # the same of the smallest form


@dataclass(frozen=True)
class Task:
    """A problem with its goals, as of its file.

    words: of every run; metric: what the targets are of; targets: from easy to hard; relative: shares of the value at the start.
    budget: by currency; a run ends when the last is spent. methods: names of algorithms; pairs: which claims are tested.
    twin: words that make the clients equal; smoke: whether the smallest form has it.
    """

    version: str
    words: list[str]
    metric: str
    targets: list[float]
    budget: dict[str, float]
    methods: list[str]
    pairs: list[list[str]]
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
    found = [build(Task, {**UNUSUAL, **content(files[name]), "name": name}, f"bench.{name}") for name in names or files]
    for task in found:
        if {*task.budget} != {*CURRENCIES}:
            raise UserError(f"bench.{task.name}: its budget has {', '.join(CURRENCIES)}")
    return [task for task in found if task.smoke or names or not smoke]


@dataclass(frozen=True)
class Size:
    """How much of the protocol is done: trials of each method, seeds of each trial, seeds of the report."""

    trials: int = TRIALS
    tuning: int = TUNING_SEEDS
    seeds: int = SEEDS


def run(task: Task, methods: Sequence[str], size: Size, folders: Sequence[str], out: Path, launcher: Launcher) -> None:
    """Do what is missing of a task: the trials of these methods, and the reports of their winners."""
    found = _searches(task, methods, size, folders, out)
    search_all(found, out / task.name, launcher)
    jobs = [
        Job(
            place,
            compose([*words, f"seed={seed}", f"output_dir={place}"], folders),
            f"{task.name} {search.algo}, seed {seed}",
        )
        for search in found
        for number, words in _winners(task, search).items()
        for seed in range(size.seeds)
        for place in [_report(task, search.algo, number, seed, out)]
    ]
    refused = run_all([job for job in jobs if RunFolder(job.folder).status() not in OVER], launcher)
    lost = [f"{job.folder}: {why}" for job, why in refused.items() if RunFolder(job.folder).status() is None]
    if lost:
        raise UserError(lost[0])


def hits(task: Task, methods: Sequence[str], size: Size, folders: Sequence[str], out: Path) -> pd.DataFrame:
    """A row a (currency, method, seed, target): its cost as a share of the budget, as `rank` takes them. Reads what `run` left."""
    rows: list[dict[str, Any]] = []
    for search in _searches(task, methods, size, folders, out):
        if not search.done:
            raise UserError(
                f"{task.name}: {search.algo} has no trials in {out}; fedopt-bench run {task.name} does them"
            )
        for currency in CURRENCIES:
            best = _best(task, search, currency)
            for seed in range(size.seeds):
                recorded = _recorded(_report(task, search.algo, best.number, seed, out))
                costs = spent(task, recorded, currency) if recorded else [math.inf] * len(task.targets)
                rows += [
                    {"task": task.name, "currency": currency, "method": search.algo, "seed": seed, "target": place}
                    | {"cost": cost, "trial": best.number}
                    for place, cost in enumerate(costs)
                ]
    return pd.DataFrame(rows)


def spent(task: Task, recorded: Recorded, currency: str) -> list[float]:
    """What a run had spent of the budget when it reached each target and was still there at the next evaluation; else infinite."""
    metric, values = recorded.metric(task.metric), recorded.values(task.metric)
    cost = recorded.cost(currency) / task.budget[currency]
    costs = []
    for target in task.targets:
        goal = target * values[0] if task.relative else target
        good = np.array([math.isfinite(value) and metric.reached(value, goal) for value in values])
        places = np.flatnonzero(good[:-1] & good[1:])
        reached = cost[places[0] + 1] if len(places) else math.inf
        costs.append(float(reached) if reached <= 1 else math.inf)
    return costs


def _searches(task: Task, methods: Sequence[str], size: Size, folders: Sequence[str], out: Path) -> list[Search]:
    limits = [f"budget.{currency}={limit:g}" for currency, limit in task.budget.items()]
    words = [*task.words, *limits, "budget.until=last", f"eval.points={POINTS}"]
    how = How(size.trials, size.tuning, "sobol", prune=False, again=False)
    return searches([f"algo={','.join(methods)}", *words], folders, task.metric, None, how, out / task.name)


def _winners(task: Task, search: Search) -> dict[int, list[str]]:
    """By its number, the words of each trial that is best in some currency."""
    best = {trial.number: trial for trial in (_best(task, search, currency) for currency in CURRENCIES)}
    return {number: search.command(trial.point) for number, trial in best.items()}


def _best(task: Task, search: Search, currency: str) -> Trial:
    """The trial that misses the fewest targets, then reaches the hardest of them soonest, then ends best: medians over seeds."""

    def order(trial: Trial) -> tuple[float, float, float]:
        runs = [_recorded(search.place(trial.stage, trial.number, seed)) for seed in search.seeds]
        costs = [spent(task, one, currency) if one else [math.inf] * len(task.targets) for one in runs]
        medians = [median(of_target) for of_target in zip(*costs, strict=True)]
        reached = [cost for cost in medians if math.isfinite(cost)]
        return len(medians) - len(reached), reached[-1] if reached else math.inf, trial.loss

    return min((trial for trial in search.done if trial.stage == STAGES[0]), key=order)


def _recorded(folder: Path) -> Recorded | None:
    """None for a run without rows."""
    try:
        return read(folder, CURRENCIES[0])
    except (OSError, ValueError, UserError):
        return None


def _report(task: Task, method: str, trial: int, seed: int, out: Path) -> Path:
    return out / task.name / "report" / f"{method}-trial{trial:03d}" / f"seed{seed}"


def entered(task: Task, methods: Sequence[str]) -> Task:
    """The task with further methods."""
    return replace(task, methods=[*dict.fromkeys([*task.methods, *methods])])


def registered(found: Sequence[Task]) -> list[tuple[str, str, str]]:
    """The pairs of the tasks whose both methods take part."""
    return [(task.name, one, other) for task in found for one, other in task.pairs if {one, other} <= {*task.methods}]
