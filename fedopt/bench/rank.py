"""Statistics of the benchmark: what a tuning run finds, which entry is cheaper, and how certain that is.

The replicate is a tuning run: it tries `SEARCH` of an entry's sampled configurations, and selects the one with the best score on
the seeds of the samples. The selected configuration is scored on other seeds. The probability that a tuning run selects a
configuration is known exactly, and simulated tuning runs are drawn from it.

A row of a table of hits is a run in a currency: method, kind, point, seed, currency, and for each target, from easy to hard, the
fraction of the budget spent when the target was reached (infinite if it was missed).
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
from scipy.special import binom

from fedopt.analysis import holm
from fedopt.bench.suite import COUNTS, CURRENCIES, Task

BUDGETS = np.geomspace(0.01, 1.0, 201)  # fractions of the budget at which a reached target has a score
SEARCH = 12  # configurations that a tuning run tries
BAND = 0.9  # fraction of tuning runs inside a band
DRAWS = 4000
PERMUTATIONS = 5000
LEVEL = 0.05  # significance level, after Holm's correction
FIRM = 0.9  # fraction of tuning runs in which an order must hold to be reported as one


def spent(table: pd.DataFrame, currency: str) -> np.ndarray:
    """Return the cost of a run up to each row of a table of runs, in a currency."""
    names = {column: name for name, column in COUNTS.items()}
    return np.sum([table[names[column]].to_numpy(float) for column in CURRENCIES[currency].columns], axis=0)


def hits(task: Task, table: pd.DataFrame) -> pd.DataFrame:
    """Return a table of hits for all runs of a task.

    A target is reached if two consecutive evaluations reach it; the cost is the cost at the first of them. A target that is
    reached after the end of the budget is missed. Larger values are better if the targets increase.

    Args:
        task: The task.
        table: The rows of the runs, with the rows of each run in the order of its steps.
    """
    sign = -1.0 if task.targets[-1] > task.targets[0] else 1.0
    keys, parts = ["method", "kind", "point", "seed"], list[tuple[Any, ...]]()
    runs: Mapping[Any, Any] = table.groupby(keys, sort=False, observed=True).indices
    costs = {currency: spent(table, currency) / task.limit(currency) for currency in CURRENCIES}
    values, targets = sign * table["value"].to_numpy(float), sign * np.asarray(task.targets)
    for key, rows in runs.items():
        own = values[rows]
        goals = targets * own[0] if task.relative else targets
        good = own[:, None] <= goals  # false for nan
        both = good[:-1] & good[1:]
        kept = both.any(axis=0)
        first = both.argmax(axis=0) if len(both) else np.zeros(len(goals), int)
        for currency in CURRENCIES:
            cost = costs[currency][rows][first]
            parts.append((*key, currency, *np.where(kept & (cost <= 1), cost, math.inf)))
    return pd.DataFrame(parts, columns=[*keys, "currency", *goals_of(task)])


def worth(cost: Any) -> Any:
    """Return the score of each hit: 1 for a cost of at most 1 % of the budget, 0 for 100 % or a miss, linear in log cost.

    The mean over hits is the area under the curve of reached targets over the logarithm of the budget.

    Args:
        cost: The cost of each hit, as a fraction of the budget; infinite for a miss.
    """
    return 1 - np.clip(np.log(np.asarray(cost, float) / BUDGETS[0]) / math.log(BUDGETS[-1] / BUDGETS[0]), 0, 1)


def values_of(reached: pd.DataFrame, table: pd.DataFrame, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of each sampled configuration, without the defaults, and a rank that breaks ties, [points] each.

    The rank is that of the last value, as the median over seeds; higher is better.

    Args:
        reached: The hits of one entry in one currency.
        table: The runs of the entry.
        task: The task.
    """
    of_pool = reached[(reached["kind"] == "pool") & (reached["point"] > 0)]
    worths = pd.Series(worth(of_pool[goals_of(task)]).mean(axis=1), index=of_pool["point"].to_numpy())
    scores = worths.groupby(level=0).mean()
    pool = table[(table["kind"] == "pool") & (table["point"] > 0)]
    last = pool.drop_duplicates(["point", "seed"], keep="last").set_index("point")["value"]
    higher = task.targets[-1] > task.targets[0]
    finite = last.where(np.isfinite(last), -math.inf if higher else math.inf)
    ends = finite.groupby(level=0).median().rank(ascending=higher, method="first").reindex(scores.index)
    return np.asarray(scores, float), np.asarray(ends, float)


def goals_of(task: Task) -> list[int]:
    """Return the columns of a table of hits that contain the costs of the targets."""
    return [*range(len(task.targets))]


def chances(scores: np.ndarray, ends: np.ndarray, size: int) -> np.ndarray:
    """Return the probability of each configuration that it is the best of ``size`` ones drawn without replacement.

    Ties are broken by ``ends``; higher is better.
    """
    found = np.empty(len(scores))
    found[np.lexsort((-ends, -scores))] = chances_by_rank(len(scores), size)
    return found


def chances_by_rank(n: int, size: int) -> np.ndarray:
    """Return the probability that the best of ``size`` configurations among n is the r-th best of all, [n]."""
    size = min(size, n)
    return binom(np.arange(n - 1, -1, -1), size - 1) / binom(n, size)  # the others are among the n - r worse ones


def searches_of(task: Task, table: pd.DataFrame) -> "dict[str, Searches]":
    """Return currency -> tuning runs on a task. table: the runs of the task."""
    by_currency = dict([*hits(task, table).groupby("currency")])
    return {currency: Searches(task, table, by_currency[currency]) for currency in CURRENCIES}


class Searches:
    """Simulated tuning runs of every entry on one task in one currency, and the costs of what they select.

    The costs are measured with the seeds of a report. Rarely selected configurations have no report; for them, the runs with the
    seeds of the samples count.

    Args:
        task: The task.
        table: The runs of the task.
        reached: The hits of these runs in the currency.
        draws: The number of tuning runs.
    """

    def __init__(self, task: Task, table: pd.DataFrame, reached: pd.DataFrame, draws: int = DRAWS):
        self.task, self.reached, self.draws = task, reached, draws
        by_method = dict([*reached.groupby("method", sort=False)])
        runs = dict([*table.groupby("method", observed=True, sort=False)])
        self.methods = [name for name in task.entries if name in by_method]
        self.methods += [str(name) for name in by_method if name not in self.methods]
        self.chance, self.choice, self.costs = dict[str, np.ndarray](), dict[str, np.ndarray](), dict[str, np.ndarray]()
        self._values, self._pools = dict[str, tuple[np.ndarray, np.ndarray]](), dict[str, np.ndarray]()
        seeds = max(reached.loc[reached["kind"] == "report", "seed"].nunique(), 1)
        self._seeds = np.random.default_rng(0).integers(seeds, size=(draws, seeds))  # the same for all entries
        for name in self.methods:
            own = by_method[name].reset_index(drop=True)
            self._values[name] = values_of(own, runs[name], task)
            points = range(1, len(self._values[name][0]) + 1)
            pool = own[(own["kind"] == "pool") & (own["point"] > 0)].sort_values(["point", "seed"])
            self._pools[name] = worth(pool[goals_of(task)]).mean(axis=1).reshape(len(points), -1)  # [points, seeds]
            of_runs = own[goals_of(task)].to_numpy()
            places = own.groupby(["kind", "point"], sort=False).indices
            of_points = [places.get(("report", n), places[("pool", n)]) for n in points]
            self.costs[name] = np.array([of_runs[np.resize(at, seeds)] for at in of_points])  # [points, seeds, targets]
        self.draw(SEARCH)

    def draw(self, size: int) -> "Searches":
        """Simulate tuning runs that try so many configurations, and return the object."""
        for name, (scores, ends) in self._values.items():
            rng = np.random.default_rng([crc32(word.encode()) for word in (self.task.name, name)])
            self.chance[name] = chances(scores, ends, size)
            chance = self.chance[name] / self.chance[name].sum()
            self.choice[name] = rng.choice(len(scores), size=self.draws, p=chance)
        return self

    def drawn(self, method: str) -> np.ndarray:
        """Return the costs of what the tuning runs select, on resampled seeds, [draws, seeds, targets]."""
        return self.costs[method][self.choice[method][:, None], self._seeds]

    def scores(self, method: str) -> np.ndarray:
        """Return the scores of the tuning runs, [draws]."""
        return worth(self.costs[method]).mean(axis=2)[self.choice[method][:, None], self._seeds].mean(axis=1)

    def p_value(self, one: str, other: str) -> float:
        """Return the two-sided p-value of a permutation test of equal expected scores of tuning runs of two entries.

        The sampled configurations are permuted between the entries. A tuning run selects by one seed and is scored on another
        one; the seeds are used in turn.
        """
        both, n = np.concatenate([self._pools[one], self._pools[other]]), len(self._pools[one])
        orders = np.random.default_rng(crc32(self.task.name.encode())).random((PERMUTATIONS, len(both))).argsort(axis=1)
        orders[0] = np.arange(len(both))  # the unpermuted samples
        found = _expected(both[orders[:, :n]]) - _expected(both[orders[:, n:]])
        return float((abs(found) >= abs(found[0]) - 1e-12).mean())

    def ratios(self, one: str, other: str) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
        """Return log(cost of ``one`` / cost of ``other``) of each draw in two ways, and the fractions of missed targets.

        The first result counts targets that at least one of the two reaches with some seed; a miss costs 100 % of the budget.
        The second one counts targets that both reach; it is nan if there are none.
        """
        a, b = self.drawn(one), self.drawn(other)
        counted = (np.isfinite(a) | np.isfinite(b)).any(axis=1, keepdims=True) & np.ones(a.shape, bool)
        both = np.isfinite(a) & np.isfinite(b)
        capped = np.log(np.minimum(a, 1)) - np.log(np.minimum(b, 1))
        with np.errstate(invalid="ignore", divide="ignore"):
            censored = np.where(counted, capped, 0).sum(axis=(1, 2)) / np.maximum(counted.sum(axis=(1, 2)), 1)
            common = np.where(both, capped, 0).sum(axis=(1, 2)) / both.sum(axis=(1, 2))
        return censored, common, (float(np.isinf(a).mean()), float(np.isinf(b).mean()))


def _expected(scores: np.ndarray) -> np.ndarray:
    """Return the expected score of a tuning run for each of several sets of configurations.

    Of configurations with equal scores, the one that is better on the other seed is selected.

    Args:
        scores: [sets, points, seeds].
    """
    seeds, parts = scores.shape[2], []
    for seed in range(seeds):
        judge = scores[:, :, (seed + 1) % seeds]
        order = (-scores[:, :, seed] - 1e-9 * judge).argsort(axis=1)
        parts.append(np.take_along_axis(judge, order, axis=1) @ chances_by_rank(scores.shape[1], SEARCH))
    return np.mean(parts, axis=0)


def band(values: np.ndarray) -> tuple[float, float]:
    """Return the ends of the interval that contains the middle `BAND` of the values."""
    low, high = np.quantile(values, [(1 - BAND) / 2, (1 + BAND) / 2])
    return float(low), float(high)


def board(searches: Mapping[str, Searches], unranked: Sequence[str] = ()) -> pd.DataFrame:
    """Return one row per method of a board, the best first. All tasks have the same weight.

    Columns:
        score: The mean over tasks of the score of the median tuning run.
        low, high: The band over tuning runs, seeds and tasks.
        tasks: The number of tasks in which the method takes part.
        rank: The rank among the methods that take part in all tasks.
        holds: The fraction of draws in which the method has this rank.

    Args:
        searches: task -> tuning runs in one currency.
        unranked: Methods without a rank.
    """
    table = {task: {name: one.scores(name) for name in one.methods} for task, one in searches.items()}
    names = [*dict.fromkeys(name for of_task in table.values() for name in of_task)]
    whole = [name for name in names if all(name in of_task for of_task in table.values()) and name not in unranked]
    draws = next(iter(searches.values())).draws
    places = np.random.default_rng(2).integers(
        len(table), size=(draws, len(table))
    )  # resampled tasks, the same for all methods
    rows, drawn = [], dict[str, np.ndarray]()
    for name in names:
        own = np.array([of_task[name] for of_task in table.values() if name in of_task])  # [tasks, draws]
        drawn[name] = own.T[np.arange(draws)[:, None], places % len(own)].mean(axis=1)
        ends = dict(zip(("low", "high"), band(drawn[name]), strict=True))
        rows.append({"method": name, "score": float(np.median(own, axis=1).mean()), **ends, "tasks": len(own)})
    ranked = pd.DataFrame(rows).sort_values("score", ascending=False, ignore_index=True)
    takes_part = ranked["method"].isin(whole)
    ranked["rank"] = takes_part.cumsum().where(takes_part).astype("Int64")
    ranks = pd.DataFrame({name: drawn[name] for name in whole}).rank(axis=1, ascending=False, method="min")
    at = zip(ranked["method"], ranked["rank"], strict=True)
    ranked["holds"] = [float((ranks[name] == rank).mean()) if name in ranks else math.nan for name, rank in at]
    return ranked


def first(searches: Searches, unranked: Sequence[str] = ()) -> tuple[str, float]:
    """Return the method that is most often first on a task over tuning runs and seeds, and the fraction of these draws."""
    scores = pd.DataFrame({name: searches.scores(name) for name in searches.methods if name not in unranked})
    if not scores.any(axis=None):  # no method has a rank, or none has reached a target
        return "none", math.nan
    best = scores.eq(scores.max(axis=1), axis=0)
    share = best.div(best.sum(axis=1), axis=0).mean()
    return str(share.idxmax()), float(share.max())


def claims(
    pairs: Sequence[tuple[str, str, str]],
    searches: Mapping[str, Searches],
    registered: int = 0,
    floors: Mapping[str, float] = MappingProxyType({}),
) -> pd.DataFrame:
    """Return one row per claim that `one` spends less than `other` on a task.

    Columns in addition to the claim:
        ratio: cost of `one` / cost of `other`, as the geometric mean over tuning runs.
        low, high: The band of the ratio over tuning runs and seeds.
        common: The ratio over targets that both reach; nan if there are none.
        misses: The fractions of targets that each of them misses.
        cheaper: The fraction of pairs of tuning runs in which `one` is cheaper.
        p: The p-value of `Searches.p_value`.
        p (Holm): p after Holm's correction.
        answer: 'held' or 'did not hold' if p (Holm) is below `LEVEL` and the ratio is beyond the floor, else 'not told apart'.

    Args:
        pairs: (task, one, other).
        searches: task -> tuning runs in one currency.
        registered: The number of claims that the correction counts.
        floors: task -> the absolute value of the logarithm of a null control's ratio.
    """
    rows = []
    for task, one, other in pairs:
        censored, common, (missed, misses) = searches[task].ratios(one, other)
        low, high = band(censored)
        both = common[np.isfinite(common)]
        row = {"task": task, "one": one, "other": other, "ratio": math.exp(np.mean(censored)), "low": math.exp(low)}
        row |= {"high": math.exp(high), "common": math.exp(both.mean()) if len(both) else math.nan}
        row |= {"misses": f"{missed:.0%}, {misses:.0%}", "cheaper": float((censored < 0).mean())}
        rows.append(row | {"p": searches[task].p_value(one, other)})
    if not rows:
        return pd.DataFrame(columns=["task", "one", "other", "ratio", "answer"])
    table = pd.DataFrame(rows)
    table["p (Holm)"] = holm(np.concatenate([table["p"], np.ones(max(registered - len(table), 0))]))[: len(table)]
    beyond = abs(np.log(table["ratio"])) > table["task"].map(lambda task: floors.get(task, 0.0))
    sure = (table["p (Holm)"] < LEVEL) & beyond
    table["answer"] = np.where(sure, np.where(table["ratio"] < 1, "held", "did not hold"), "not told apart")
    return table


def best_of(task: Task, table: pd.DataFrame, reached: pd.DataFrame, sizes: Sequence[int]) -> pd.DataFrame:
    """Return the mean score over tuning runs and the ends of its band, for each method and size of a tuning run.

    Args:
        task: The task.
        table: The runs of the task.
        reached: The hits of these runs in one currency.
        sizes: The numbers of configurations that a tuning run tries.
    """
    rows, searches = [], Searches(task, table, reached, draws=1000)
    for size in sizes:
        for name in searches.draw(size).methods:
            values = searches.scores(name)
            low, high = band(values)
            rows.append({"method": name, "points": size, "score": values.mean(), "low": low, "high": high})
    return pd.DataFrame(rows)
