"""Statistics of the benchmark on one task: what a search finds, how certain that is, and which of two methods is cheaper.

A search of k configurations tries a method's theory point and k - 1 of its sampled points, selects the point with the best score
on one seed, and is judged on the other seeds. All numbers are expected values over searches. They are computed from the order of
the points (order statistics), so no search is simulated. The points are the sample: intervals come from leaving out each of them.

A row of a table of hits is a run in a currency: method, kind, point, seed, currency, and for each target, from easy to hard, the
fraction of the budget spent when the target was reached (infinite if it was missed).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import binom
from scipy.stats import beta, norm, studentized_range

from fedopt.bench.suite import COUNTS, CURRENCIES, Task

START = 0.01  # fraction of the budget at which a reached target has the score 1
SPAN = -math.log(START)  # score 1 to score 0 is this difference of log cost
SEARCH = 12  # configurations that a search tries
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # configurations of a search, for curves
LEVEL = 0.95  # coverage of all intervals
ALIKE = math.log(1.25)  # two methods are alike if their log ratio is certainly closer to 0
THEORY = 1  # the number of the theory point; point 0 is a method's default values
AGAIN = " (second scramble)"  # after the name of a method: its points of kind null
BEFORE, SAME, OPEN, BEHIND = "before", "alike", "not resolved", "behind"
PAIR = ["one", "other", "effect", "error", "ratio", "low", "high", "misses_one", "misses_other", "seen", "verdict"]


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
    keys, found = ["method", "kind", "point", "seed"], list[tuple[Any, ...]]()
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
            found.append((*key, currency, *np.where(kept & (cost <= 1), cost, math.inf)))
    return pd.DataFrame(found, columns=[*keys, "currency", *goals_of(task)])


def goals_of(task: Task) -> list[int]:
    """Return the columns of a table of hits that contain the costs of the targets."""
    return [*range(len(task.targets))]


def worth(cost: Any) -> Any:
    """Return the score of each hit: 1 for a cost of at most 1 % of the budget, 0 for 100 % or a miss, linear in log cost.

    The mean over hits is the area under the curve of reached targets over the logarithm of the budget.

    Args:
        cost: The cost of each hit, as a fraction of the budget; infinite for a miss.
    """
    return 1 - np.clip(np.log(np.asarray(cost, float) / START) / SPAN, 0, 1)


def chances_by_rank(n: int, size: int) -> np.ndarray:
    """Return the probability that the best of ``size`` configurations among n is the r-th best of all, [n]."""
    size = min(size, n)
    return binom(np.arange(n - 1, -1, -1), size - 1) / binom(n, size)  # the others are among the n - r worse ones


def chances(n: int, size: int) -> np.ndarray:
    """Return the probability of each rank of the best sampled point in a search of ``size`` points, [n + 1].

    The last entry is the probability that the search tries no sampled point, only the theory point.
    """
    return np.append(chances_by_rank(n, size - 1) if size > 1 else np.zeros(n), float(size == 1))


@dataclass(frozen=True)
class Pool:
    """The points of a method on a task in one currency: the theory point, and n sampled points.

    Args:
        costs: The cost of each target, [1 + n, seeds, targets]; the theory point comes first.
        ends: The last value of the metric, which breaks ties between scores, [1 + n, seeds]; higher is better.
        others: (kind, number of a point) -> its costs, [seeds, targets]: the default values, and the points of the report.
    """

    costs: np.ndarray
    ends: np.ndarray
    others: Mapping[tuple[str, int], np.ndarray] = field(default_factory=dict)

    @cached_property
    def scores(self) -> np.ndarray:
        """The score of each point on each seed, [1 + n, seeds]."""
        return np.asarray(worth(self.costs).mean(axis=2))

    @cached_property
    def values(self) -> np.ndarray:
        """For each point and seed, the score for each target and whether it is reached, [1 + n, seeds, 2 * targets]."""
        return np.concatenate([worth(self.costs), np.isfinite(self.costs)], axis=2)

    @cached_property
    def orders(self) -> np.ndarray:
        """The indices of all points from best to worst on each seed, [seeds, 1 + n]. Of equal points, the first is the best."""
        return np.lexsort((-self.ends.T, -self.scores.T), axis=-1)

    def judged(self, values: np.ndarray) -> np.ndarray:
        """Return what a search finds, by the rank of its best sampled point, [seeds, n + 1, columns].

        A search that selects on one seed finds the mean of the values over the other seeds. It selects the theory point unless
        a sampled point is better. The last rank is that of a search without a sampled point.

        Args:
            values: The values of all points on all seeds, [1 + n, seeds, columns].
        """
        found, seeds = [], range(values.shape[1])
        for seed, order in enumerate(self.orders):
            on_others = values[:, [other for other in seeds if other != seed] or [seed]].mean(axis=1)
            better = int(order.argmin())  # the number of sampled points that are better than the theory point
            found.append(on_others[np.append(order[:better], np.zeros(len(order) - better, int))])
        return np.array(found)

    def expected(self, size: int) -> np.ndarray:
        """Return the expected values of a search of ``size`` points, by the seed of the selection, [seeds, 2 * targets]."""
        return np.asarray(chances(len(self.costs) - 1, size) @ self.judged(self.values))

    def without(self, size: int) -> np.ndarray:
        """Return the expected values of a search if a sampled point is left out, for each of these points, [n, 2 * targets]."""
        n, found = len(self.costs) - 1, np.zeros((len(self.costs), self.values.shape[2]))
        share = chances(n - 1, size)[:, None]
        for order, values in zip(self.orders, self.judged(self.values), strict=True):
            above, below = (
                share * values[:-1],
                share * values[1:],
            )  # ranks below the point that is left out move up by one
            found[order[order > 0]] += np.cumsum(above, axis=0) - above + np.cumsum(below[::-1], axis=0)[::-1]
        return found[1:] / len(self.orders)

    def score_of(self, kind: str, point: int) -> float:
        """Return the mean score of one of the ``others``; nan if it was not run."""
        return float(worth(self.others[kind, point]).mean()) if (kind, point) in self.others else math.nan

    @property
    def best(self) -> int:
        """The number of the point with the best mean score over seeds."""
        return THEORY + int(self.scores.mean(axis=1).argmax())


ByMethod = Mapping[str, Pool]  # keys are methods


def pools_of(task: Task, table: pd.DataFrame) -> dict[str, dict[str, Pool]]:
    """Return currency -> method -> pool. The points of a second scramble are a method of their own.

    Args:
        task: The task.
        table: The runs of the task.
    """
    pools = {currency: dict[str, Pool]() for currency in CURRENCIES}
    goals, higher = goals_of(task), task.targets[-1] > task.targets[0]
    keys = ["method", "kind", "point", "seed"]
    ends = table.drop_duplicates(keys, keep="last").set_index(keys)["value"] * (1 if higher else -1)
    reached = hits(task, table).set_index(keys).sort_index()
    for currency, rows in reached.groupby("currency"):
        ended = ends.reindex(rows.index).fillna(-math.inf).to_numpy(float)
        for (method, kind), own in rows.assign(end=ended).groupby(["method", "kind"]):
            if kind in ("pool", "null"):
                runs = own[own.index.get_level_values("point") >= THEORY]
                shape = runs.index.get_level_values("point").nunique(), -1
                arrays = runs[goals].to_numpy().reshape(*shape, len(goals)), runs["end"].to_numpy().reshape(shape)
                of_others = rows.loc[method].drop("null", errors="ignore")[goals].groupby(["kind", "point"])
                others = {} if kind == "null" else {key: costs.to_numpy() for key, costs in of_others}
                pools[str(currency)][f"{method}{AGAIN * (kind == 'null')}"] = Pool(*arrays, others)
    return pools


def log_ratio(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return log(cost of ``one`` / cost of ``other``) as a mean over targets, [...]; nan if neither reaches a target.

    A miss costs the whole budget. The mean is over the targets that at least one of two searches reaches.

    Args:
        one: The expected values of a search, [..., 2 * targets].
        other: Those of the other method.
    """
    goals = one.shape[-1] // 2
    counted = (1 - (1 - one[..., goals:]) * (1 - other[..., goals:])).sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(SPAN * (other - one)[..., :goals].sum(axis=-1) / counted)


def spread(without: np.ndarray) -> np.ndarray:
    """Return the variance of an estimate, given its values without each of the points, [points, ...] (jackknife)."""
    return np.asarray((len(without) - 1) * without.var(axis=0))


@dataclass(frozen=True)
class Found:
    """What a search of a method finds. ``raised`` is the expectation if there is one more point, as good as any of the task."""

    by_seed: np.ndarray
    without: np.ndarray
    raised: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return np.asarray(self.by_seed.mean(axis=0))


def found_by(pools: ByMethod, size: int) -> tuple[dict[str, Found], float]:
    """Return what searches of ``size`` points find for each method, and the variance of a score over seeds.

    That variance is the one of the methods' differences: what a seed adds to all methods does not count.
    """
    tops = [pool.values[pool.best - THEORY].mean(axis=0) for pool in pools.values()]
    top = max(tops, key=lambda values: values[: len(values) // 2].sum())
    found = dict[str, Found]()
    for name, pool in pools.items():
        by_seed, n = pool.expected(size), len(pool.costs)
        raised = by_seed.mean(axis=0) + (size - 1) / n * np.maximum(top - by_seed.mean(axis=0), 0)
        found[name] = Found(by_seed, pool.without(size), raised)
    scores = np.array([own.by_seed[:, : len(top) // 2].mean(axis=1) for own in found.values()])  # [methods, seeds]
    scores = scores[scores.any(axis=1)]
    freedom = (len(scores) - 1) * (scores.shape[1] - 1)
    if freedom < 1:
        return found, 0.0
    rest = scores - scores.mean(axis=0) - scores.mean(axis=1, keepdims=True) + scores.mean()
    return found, float((rest**2).sum() / freedom / scores.shape[1])


def curves(pools: ByMethod, sizes: Sequence[int] = SIZES) -> pd.DataFrame:
    """Return the expected score of each method by the number of points of a search, with a band: method, points, score, low, high.

    The band covers all sizes at once. Row 0 is the score of the default values.

    Args:
        pools: The methods on a task in one currency.
        sizes: The numbers of points; a number that exceeds a method's points is left out.
    """
    rows, z = [], norm.isf((1 - LEVEL) / 2 / len(sizes))
    for name, pool in pools.items():
        rows.append({"method": name, "points": 0, "score": pool.score_of("pool", 0)})
    for size in sizes:
        large = {name: pool for name, pool in pools.items() if len(pool.costs) >= size}
        found, of_seeds = found_by(large, size) if large else ({}, 0.0)
        for name, own in found.items():
            goals = len(own.raised) // 2
            score, raised = own.mean[:goals].mean(), own.raised[:goals].mean()
            variance = of_seeds + spread(own.without[:, :goals].mean(axis=1))
            low, high = score - z * math.sqrt(variance), score + z * math.sqrt(variance + (raised - score) ** 2)
            rows.append({"method": name, "points": size, "score": score, "low": max(low, 0.0), "high": min(high, 1.0)})
    return pd.DataFrame(rows).sort_values(["method", "points"], kind="stable", ignore_index=True)


def reach(pools: ByMethod, targets: Sequence[float]) -> pd.DataFrame:
    """Return how often searches reach each target, and at what cost: method, target, reach, low, high, cost.

    The cost is the geometric mean over the searches that reach the target; it is nan if fewer than half of them do. The interval
    is the exact binomial one of the share of points that reach it.
    """
    rows = []
    for name, pool in pools.items():
        n, goals = len(pool.costs) - 1, len(targets)
        score, share = pool.expected(SEARCH).mean(axis=0).reshape(2, goals)
        share = share.clip(0, 1)
        number = n * (1 - (1 - share) ** (1 / (SEARCH - 1)))  # of points, if each of them reaches the target alike
        tail = (1 - LEVEL) / 2
        of_points = np.array([beta.ppf(tail, number, n - number + 1), beta.ppf(1 - tail, number + 1, n - number)])
        ends = 1 - (1 - np.where(np.isnan(of_points), [[0.0], [1.0]], of_points)) ** (SEARCH - 1)
        cost = np.where(share < 0.5, math.nan, np.exp(-SPAN * score / np.maximum(share, 0.5)))
        columns = {"target": targets, "reach": share, "low": ends[0], "high": ends[1], "cost": cost}
        rows.append(pd.DataFrame({"method": name, **columns}))
    return pd.concat(rows, ignore_index=True)


def verdict(low: float, high: float) -> str:
    """Return what an interval of a log ratio says about the first method of a pair."""
    if not low <= high:
        return OPEN
    return BEFORE if high < -ALIKE else BEHIND if low > ALIKE else SAME if low > -ALIKE and high < ALIKE else OPEN


def seen(one: Pool, other: Pool) -> float:
    """Return the share of pairs of single searches in which the first one finds the better score. Equal scores count half."""
    shares = []
    a, b = (chances(len(pool.costs) - 1, SEARCH) for pool in (one, other))
    for own, its in zip(one.judged(one.scores[..., None]), other.judged(other.scores[..., None]), strict=True):
        order = np.argsort(its[:, 0])
        below = np.concatenate([[0], np.cumsum(b[order])])
        ends = [np.searchsorted(its[order, 0], own[:, 0] + off) for off in (-1e-12, 1e-12)]
        shares.append(a @ (below[ends[0]] + below[ends[1]]) / 2)
    return float(np.mean(shares))


def pairs(pools: ByMethod) -> pd.DataFrame:
    """Return one row per pair of methods on a task in one currency; ``one`` has the higher expected score.

    Columns:
        one, other: The methods.
        effect, error: The log ratio of expected costs, see `log_ratio`, and its standard error.
        ratio: The ratio; nan if one of the two misses more than half of the targets that the other one reaches.
        low, high: The interval of the ratio. The intervals of all pairs of the task cover at once.
        misses_one, misses_other: The shares of targets that searches of each method miss.
        seen: See `seen`.
        verdict: 'before' or 'alike' if the interval says so, else 'not resolved'.
    """
    rows, (found, of_seeds) = [], found_by(pools, SEARCH)
    z = float(studentized_range.ppf(LEVEL, max(len(pools), 2), math.inf)) / math.sqrt(2)
    for names in combinations(pools, 2):
        names = sorted(names, key=lambda name: -found[name].mean[: len(found[name].raised) // 2].sum())
        one, other = (found[name] for name in names)
        effect, goals = float(log_ratio(one.mean, other.mean)), len(one.raised) // 2
        reached = one.mean[goals:], other.mean[goals:]
        both, any_ = (reached[0] * reached[1]).sum(), (1 - (1 - reached[0]) * (1 - reached[1])).sum()
        of_points = spread(log_ratio(one.without, other.mean)) + spread(log_ratio(one.mean, other.without))
        of_seed = 2 * of_seeds * (SPAN * goals / any_) ** 2 if any_ else math.nan
        variance = float(of_points + of_seed + 0.02**2)
        raised = [float(log_ratio(one.raised, other.mean)) - effect, float(log_ratio(one.mean, other.raised)) - effect]
        low, high = (
            effect + sign * z * math.hypot(math.sqrt(variance), more)
            for sign, more in zip((-1, 1), raised, strict=True)
        )
        said = verdict(low, high)
        row = {"one": names[0], "other": names[1], "effect": effect}
        row["error"] = math.sqrt(variance + (raised[0] ** 2 + raised[1] ** 2) / 2)
        row |= {"ratio": math.exp(effect), "low": math.exp(low), "high": math.exp(high)}
        row |= {"misses_one": 1 - reached[0].mean(), "misses_other": 1 - reached[1].mean()}
        row |= {"seen": seen(*(pools[name] for name in names)), "verdict": said}
        if both < any_ / 2:  # too few common targets for a ratio
            row |= {"ratio": math.nan, "verdict": OPEN if said == SAME else said}
        rows.append(row)
    return pd.DataFrame(rows, columns=PAIR)
