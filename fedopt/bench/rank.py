"""Statistics of the benchmark: what a search of so many points finds, who is cheaper, and how sure that is.

The search is the replicate: it draws `SEARCH` points of an entry's pool, and chooses the one with the best score on the seeds of
the pool. The choice is judged on other seeds. The chance that a search chooses a point is known exactly, so searches are drawn
from it. A row of a table of hits is a run in a currency: method, kind, point, seed, currency, and for each target, from easy to
hard, the share of the budget spent when it was reached, infinite for a miss.
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

BUDGETS = np.geomspace(0.01, 1.0, 201)  # the shares of the budget between which a goal has worth
SEARCH = 12  # points of a search
BAND = 0.9  # of searches
DRAWS = 4000
PERMUTATIONS = 5000
LEVEL = 0.05  # of p after Holm's correction
FIRM = 0.9  # the share of searches in which an order must hold to be called one


def spent(table: pd.DataFrame, currency: str) -> np.ndarray:
    """Return what each row of a table of runs has spent by then, in a currency."""
    names = {column: name for name, column in COUNTS.items()}
    return np.sum([table[names[column]].to_numpy(float) for column in CURRENCIES[currency].columns], axis=0)


def hits(task: Task, table: pd.DataFrame) -> pd.DataFrame:
    """Return the hits of all runs of a task.

    A target counts as reached if two consecutive evaluations reach it; the cost is that of the first. A target reached beyond
    the budget counts as missed.

    table: the rows of the runs, those of each run in the order of its steps. Larger values are better if the targets rise.
    """
    sign = -1.0 if task.targets[-1] > task.targets[0] else 1.0
    keys, parts = ["method", "kind", "point", "seed"], list[tuple[Any, ...]]()
    runs: Mapping[Any, Any] = table.groupby(keys, sort=False, observed=True).indices
    costs = {currency: spent(table, currency) / task.limit(currency) for currency in CURRENCIES}
    values, targets = sign * table["value"].to_numpy(float), sign * np.asarray(task.targets)
    for key, rows in runs.items():
        own = values[rows]
        goals = targets * own[0] if task.relative else targets
        good = own[:, None] <= goals  # which a nan is not
        both = good[:-1] & good[1:]
        kept = both.any(axis=0)
        first = both.argmax(axis=0) if len(both) else np.zeros(len(goals), int)
        for currency in CURRENCIES:
            cost = costs[currency][rows][first]
            parts.append((*key, currency, *np.where(kept & (cost <= 1), cost, math.inf)))
    return pd.DataFrame(parts, columns=[*keys, "currency", *goals_of(task)])


def worth(cost: Any) -> Any:
    """Return the worth of each hit: 1 for a cost of at most 1 % of the budget, 0 for all of it or a miss, linear in log cost.

    Its mean over hits is the area under the curve of goals reached, with the budget on a logarithmic axis.

    cost: the cost of each hit, as a fraction of the budget; infinite for a miss.
    """
    return 1 - np.clip(np.log(np.asarray(cost, float) / BUDGETS[0]) / math.log(BUDGETS[-1] / BUDGETS[0]), 0, 1)


def values_of(reached: pd.DataFrame, table: pd.DataFrame, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of each point of a pool, without the defaults, and how good its last value is, [points] each.

    reached: the hits of one entry in one currency. table: its runs. The second breaks ties: the rank of the median over seeds.
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
    """Return the columns of a table of hits with what its targets cost."""
    return [*range(len(task.targets))]


def chances(scores: np.ndarray, ends: np.ndarray, size: int) -> np.ndarray:
    """Return the chance of each point that a search chooses it: that it is the best of ``size`` that are drawn without
    replacement. Ties are broken by ``ends``, higher is better.
    """
    found = np.empty(len(scores))
    found[np.lexsort((-ends, -scores))] = chances_by_rank(len(scores), size)
    return found


def chances_by_rank(n: int, size: int) -> np.ndarray:
    """Return the chance that the best of ``size`` among n points is the r-th best of all, [n]."""
    size = min(size, n)
    return binom(np.arange(n - 1, -1, -1), size - 1) / binom(n, size)  # it beats the n - r points that are worse


def searches_of(task: Task, table: pd.DataFrame) -> "dict[str, Searches]":
    """Return the searches on a task by each currency. table: its runs."""
    by_currency = dict([*hits(task, table).groupby("currency")])
    return {currency: Searches(task, table, by_currency[currency]) for currency in CURRENCIES}


class Searches:
    """Draws of searches of every entry on one task in one currency, and what their choices cost on the seeds of a report.

    A choice that has no report is judged by its runs of the pool: it is one of the rarer ones.

    task: the task. table, reached: its runs and their hits in the currency. draws: how many.
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
        self._seeds = np.random.default_rng(0).integers(seeds, size=(draws, seeds))  # paired: for all the same
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
        """Draw searches of so many points, and return the object."""
        for name, (scores, ends) in self._values.items():
            rng = np.random.default_rng([crc32(word.encode()) for word in (self.task.name, name)])
            self.chance[name] = chances(scores, ends, size)
            chance = self.chance[name] / self.chance[name].sum()
            self.choice[name] = rng.choice(len(scores), size=self.draws, p=chance)
        return self

    def drawn(self, method: str) -> np.ndarray:
        """Return what the choices of the drawn searches cost, on seeds that are drawn too, [draws, seeds, targets]."""
        return self.costs[method][self.choice[method][:, None], self._seeds]

    def scores(self, method: str) -> np.ndarray:
        """Return the scores of the drawn searches, [draws]."""
        return worth(self.costs[method]).mean(axis=2)[self.choice[method][:, None], self._seeds].mean(axis=1)

    def p_value(self, one: str, other: str) -> float:
        """Return the two-sided p-value of a permutation test: searches of both pools have the same expected score.

        The points are the sample: under the hypothesis each of them could belong to either pool. A search chooses by one
        seed and is judged by another, in turn.
        """
        both, n = np.concatenate([self._pools[one], self._pools[other]]), len(self._pools[one])
        orders = np.random.default_rng(crc32(self.task.name.encode())).random((PERMUTATIONS, len(both))).argsort(axis=1)
        orders[0] = np.arange(len(both))  # as they are
        found = _expected(both[orders[:, :n]]) - _expected(both[orders[:, n:]])
        return float((abs(found) >= abs(found[0]) - 1e-12).mean())

    def ratios(self, one: str, other: str) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
        """Return log(cost of ``one`` / cost of ``other``) of each draw, and the shares of targets that the two miss.

        The first counts the targets that one of the two reaches on some seed, and a miss as the whole budget. The second counts
        what both reach, and is nan without any.
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
    """Return the expected score of a search in each of some pools, which takes the better one of equal points.

    scores: [pools, points, seeds].
    """
    seeds, parts = scores.shape[2], []
    for seed in range(seeds):
        judge = scores[:, :, (seed + 1) % seeds]
        order = (-scores[:, :, seed] - 1e-9 * judge).argsort(axis=1)
        parts.append(np.take_along_axis(judge, order, axis=1) @ chances_by_rank(scores.shape[1], SEARCH))
    return np.mean(parts, axis=0)


def band(values: np.ndarray) -> tuple[float, float]:
    """Return the ends of the middle `BAND` of draws."""
    low, high = np.quantile(values, [(1 - BAND) / 2, (1 + BAND) / 2])
    return float(low), float(high)


def board(searches: Mapping[str, Searches], unranked: Sequence[str] = ()) -> pd.DataFrame:
    """Return one row per method of a board, the best first. Tasks weigh alike.

    Columns: score, the mean over tasks of the median search; low, high: the band over searches, seeds and tasks; tasks: how many
    it takes part in; rank: among those that take part in all; holds: the share of draws in which it has this rank.

    searches: task -> its searches in one currency. unranked: methods without a rank.
    """
    table = {task: {name: one.scores(name) for name in one.methods} for task, one in searches.items()}
    names = [*dict.fromkeys(name for of_task in table.values() for name in of_task)]
    whole = [name for name in names if all(name in of_task for of_task in table.values()) and name not in unranked]
    draws = next(iter(searches.values())).draws
    places = np.random.default_rng(2).integers(len(table), size=(draws, len(table)))  # drawn tasks, for all the same
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
    """Return who is first on a task most often over searches and seeds, and the share of draws in which it is."""
    scores = pd.DataFrame({name: searches.scores(name) for name in searches.methods if name not in unranked})
    if not scores.any(axis=None):  # nobody has a rank, or has reached a target
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

    Columns besides the claim:
        ratio: cost of `one` / cost of `other`, the geometric mean over searches; low, high: its band over searches and seeds.
        common: the same over targets that both reach; nan without any. misses: the shares of targets that each misses.
        cheaper: the share of pairs of searches in which `one` is cheaper.
        p: of `Searches.p_value`. p (Holm): after Holm's correction.
        answer: 'held' or 'did not hold' if p (Holm) is below `LEVEL` and the ratio beyond the floor; else 'not told apart'.

    pairs: (task, one, other). searches: by task, in one currency. registered: how many claims the correction counts.
    floors: task -> the size of the logarithm of the ratio of a null control.
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
    """Return for each method and size of a search the score: its mean over searches and the ends of its band.

    table, reached: as for `Searches`.
    """
    rows, searches = [], Searches(task, table, reached, draws=1000)
    for size in sizes:
        for name in searches.draw(size).methods:
            values = searches.scores(name)
            low, high = band(values)
            rows.append({"method": name, "points": size, "score": values.mean(), "low": low, "high": high})
    return pd.DataFrame(rows)
