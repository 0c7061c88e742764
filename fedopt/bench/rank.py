"""Statistics of the benchmark on one task: what a search finds, how certain that is, and which of two methods is cheaper.

A search of k configurations tries a method's theory point and k - 1 of its sampled points, selects the point with the best score
on one seed, and is judged on the other seeds. All numbers are expected values over searches. They are computed from the order of
the points (order statistics), so no search is simulated. The points are the sample: intervals come from leaving out each of them.

A row of a table of hits is a run in a currency: method, kind, point, seed, the last value of the metric (end; higher is better),
currency, and for each target, from easy to hard, the fraction of the budget spent when the target was reached (infinite if it was
missed).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import binom
from scipy.stats import beta, norm

from fedopt.bench.suite import COUNTS, CURRENCIES, Task

START = 0.01  # fraction of the budget at which a reached target has the score 1
SPAN = -math.log(START)  # score 1 to score 0 is this difference of log cost
SEARCH = 12  # configurations that a search tries
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # configurations of a search, for curves
LEVEL = 0.95  # coverage of all intervals
ALIKE = math.log(1.25)  # two methods are alike if their log ratio is certainly closer to 0
LEAST = 0.02  # the smallest standard error of a log ratio
KEYS = ["method", "kind", "point", "seed"]  # of a run of a task
THEORY = 1  # the number of the theory point; point 0 is a method's default values
AGAIN = " (second scramble)"  # after the name of a method: its points of kind null
BEFORE, SAME, OPEN, BEHIND = "before", "alike", "not resolved", "behind"
PAIR = ["one", "other", "effect", "error", "ratio", "low", "high", "misses_one", "misses_other", "seen", "verdict"]


def spent(table: pd.DataFrame, currency: str) -> np.ndarray:
    """Return the cost of a run up to each row (evaluation) of a table of runs, in a currency such as bytes."""
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
    run = table.groupby(KEYS, sort=False, observed=True).ngroup().to_numpy()
    table, run = table.iloc[run.argsort(kind="stable")], np.sort(run)
    values = sign * table["value"].to_numpy(float)
    same = np.append(run[1:] == run[:-1], False)[: len(run)]  # whether the next row is of the same run
    starts = np.flatnonzero(~np.roll(same, 1))
    scale = sign * values[starts][run] if task.relative else 1.0
    costs = np.array([spent(table, currency) / task.limit(currency) for currency in CURRENCIES])
    found = np.full((len(CURRENCIES), len(starts), len(task.targets)), math.inf)
    for goal, target in enumerate(task.targets):
        good = values <= sign * target * scale  # false for nan
        rows = np.flatnonzero(good & np.roll(good, -1) & same)
        of_runs, firsts = np.unique(run[rows], return_index=True)
        cost = costs[:, rows[firsts]]
        found[:, of_runs, goal] = np.where(cost <= 1, cost, math.inf)
    runs = table.iloc[starts][KEYS].assign(end=-values[~same]).fillna({"end": -math.inf}).reset_index(drop=True)
    by_currency = zip(CURRENCIES, found, strict=True)
    tables = [runs.join(pd.DataFrame(own)).assign(currency=name) for name, own in by_currency]
    return pd.concat(tables, ignore_index=True)


def worth(cost: Any) -> Any:
    """Return the score of each hit: 1 for a cost of at most 1 % of the budget, 0 for 100 % or a miss, linear in log cost.

    The mean over hits is the area under the curve of reached targets over the logarithm of the budget.

    Args:
        cost: The cost of each hit, as a fraction of the budget; infinite for a miss.
    """
    return 1 - np.clip(np.log(np.asarray(cost, float) / START) / SPAN, 0, 1)


def chances(n: int, size: int) -> np.ndarray:
    """Return the probability of each rank of the best sampled point in a search of ``size`` points, [n + 1].

    The last entry is the probability that the search tries no sampled point, only the theory point.
    """
    drawn = min(size - 1, n)  # the best of them is the r-th best of all if the others are among the n - r worse ones
    return np.append(binom(np.arange(n - 1, -1, -1), drawn - 1) / binom(n, drawn), size == 1)


@dataclass(frozen=True)
class Pool:
    """The costs of a method's configurations (points) on a task in one currency: the theory point, and n sampled points.

    Args:
        costs: The cost of each target, [1 + n, seeds, targets]; the theory point comes first.
        ends: The last value of the metric, which breaks ties between scores, [1 + n, seeds]; higher is better.
        others: (kind, number of a point) -> its costs, [seeds, targets], for the default values and for reported points.
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
        exact = self.scores.round(9)  # equal products of costs give scores that differ by rounding
        return np.lexsort((-self.ends.T, -exact.T), axis=-1)

    @cached_property
    def found(self) -> np.ndarray:
        """The values that a search finds, by the rank of its best sampled point, [seeds, n + 1, 2 * targets].

        A search that selects on one seed finds the mean of the values over the other seeds. It selects the theory point unless
        a sampled point is better. The last rank is for a search without a sampled point.
        """
        found, seeds = [], range(self.values.shape[1])
        for seed, order in enumerate(self.orders):
            on_others = self.values[:, [other for other in seeds if other != seed] or [seed]].mean(axis=1)
            better = int(order.argmin())  # the number of sampled points that are better than the theory point
            found.append(on_others[np.append(order[:better], np.zeros(len(order) - better, int))])
        return np.array(found)

    def expected(self, size: int) -> np.ndarray:
        """Return the expected values of a search of ``size`` points, by the seed of the selection, [seeds, 2 * targets]."""
        return np.asarray(chances(len(self.costs) - 1, size) @ self.found)

    def without(self, size: int) -> np.ndarray:
        """Return the expected values of a search if a sampled point is left out, for each of these points, [n, 2 * targets]."""
        n, found = len(self.costs) - 1, np.zeros((len(self.costs), self.values.shape[2]))
        share = chances(n - 1, size)[:, None]
        for order, values in zip(self.orders, self.found, strict=True):
            above, below = share * values[:-1], share * values[1:]  # the ranks below it move up by one
            found[order[order > 0]] += np.cumsum(above, axis=0) - above + np.cumsum(below[::-1], axis=0)[::-1]
        return found[1:] / len(self.orders)

    @cached_property
    def lowest(self) -> np.ndarray:
        """The lowest cost that a search finds, by the rank of its cheapest sampled point, [n + 1, seeds, targets]."""
        rest = np.full((1, *self.costs.shape[1:]), math.inf)
        return np.minimum(np.concatenate([np.sort(self.costs[1:], axis=0), rest]), self.costs[0])

    def cheapest(self, size: int = SEARCH, within: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Return the fraction of searches with a point that reaches each target, and the cost of the cheapest one, [targets].

        The cost is the geometric mean over the searches that reach the target; it is nan if fewer than half of them do.

        Args:
            size: The number of points of a search.
            within: The fraction of the budget within which a target must be reached.
        """
        costs = np.where(self.lowest <= within, self.lowest, math.inf)
        chance = chances(len(self.costs) - 1, size) / costs.shape[1]
        logs = chance @ np.log(np.where(np.isfinite(costs), costs, 1)).sum(axis=1)
        share = chance @ np.isfinite(costs).sum(axis=1)
        return share, np.where(share < 0.5, math.nan, np.exp(logs / np.maximum(share, 0.5)))

    def score_of(self, kind: str, point: int) -> float:
        """Return the mean score of one of the ``others``; nan if it was not run."""
        return float(worth(self.others[kind, point]).mean()) if (kind, point) in self.others else math.nan

    @property
    def best(self) -> int:
        """The index of the configuration with the best mean score over seeds."""
        return THEORY + int(self.scores.mean(axis=1).argmax())


ByMethod = Mapping[str, Pool]  # keys are methods


def pools_of(task: Task, table: pd.DataFrame) -> dict[str, dict[str, Pool]]:
    """Return currency (such as bytes) -> method -> `Pool`. The points of a second scrambled sequence count as another method.

    Args:
        task: The task.
        table: The runs of the task.
    """
    pools = {currency: dict[str, Pool]() for currency in CURRENCIES}
    goals = [*range(len(task.targets))]
    reached = hits(task, table.astype({"method": str, "kind": str})).sort_values(KEYS)
    for (currency, method), own in reached.groupby(["currency", "method"]):
        judged = own[(own["kind"] == "report") | (own["point"] < THEORY)]
        others: Any = {key: costs.to_numpy() for key, costs in judged.groupby(["kind", "point"])[goals]}
        for kind, name in (("null", f"{method}{AGAIN}"), ("pool", str(method))):
            runs = own[(own["kind"] == kind) & (own["point"] >= THEORY)]
            if len(runs):
                shape = runs["point"].nunique(), -1
                costs, ends = runs[goals].to_numpy().reshape(*shape, len(goals)), runs["end"].to_numpy().reshape(shape)
                pools[str(currency)][name] = Pool(costs, ends, others)
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


class Found(NamedTuple):
    """The expected results of searches of several methods on a task in one currency.

    Args:
        mean: The expected score for each target and the probability to reach it, [methods, 2 * targets].
        raised: The same with one more point, which is as good as any point of the task.
        without: The same for each method without each of its points, [points, 2 * targets] each.
        by_seed: The expected scores, by the seed of the selection, [methods, seeds].
    """

    mean: np.ndarray
    raised: np.ndarray
    without: list[np.ndarray]
    by_seed: np.ndarray

    def variance(self, common: bool) -> float:
        """Return the variance of a method's score over seeds. common: whether what a seed adds to all methods counts."""
        off = self.by_seed - self.by_seed.mean(axis=1, keepdims=True)
        methods, seeds = off.shape
        number = (methods if common else methods - 1) * (seeds - 1) * seeds
        return float(((off if common else off - off.mean(axis=0)) ** 2).sum() / max(number, 1))


def found_by(pools: Sequence[Pool], size: int) -> Found:
    """Return the expected scores of searches of ``size`` points: one search per pool, that is, per method."""
    by_seed = np.array([pool.expected(size) for pool in pools])  # [methods, seeds, 2 * targets]
    mean, goals = by_seed.mean(axis=1), by_seed.shape[2] // 2
    top = max((pool.values[pool.best - THEORY].mean(axis=0) for pool in pools), key=lambda values: values[:goals].sum())
    chance = np.array([[(size - 1) / len(pool.costs)] for pool in pools])  # that a search tries the point
    without = [pool.without(size) for pool in pools]
    return Found(mean, mean + chance * np.maximum(top - mean, 0), without, by_seed[..., :goals].mean(axis=2))


def curves(pools: ByMethod, sizes: Sequence[int] = SIZES) -> pd.DataFrame:
    """Return the expected score of each method by the number of points of a search, with a band: method, points, score, low, high.

    The band covers all sizes at once. Row 0 is the score of the default values.

    Args:
        pools: The methods on a task in one currency.
        sizes: The numbers of points. A method has no row for a number that exceeds its number of points.
    """
    z, goals = norm.isf((1 - LEVEL) / 2 / len(sizes)), next(iter(pools.values())).costs.shape[2]
    defaults = [pool.score_of("pool", 0) for pool in pools.values()]
    tables = [pd.DataFrame({"method": [*pools], "points": 0, "score": defaults})]
    for size in sizes:
        large = {name: pool for name, pool in pools.items() if len(pool.costs) >= size}
        if large:
            found = found_by([*large.values()], size)
            score, raised = (values[:, :goals].mean(axis=1) for values in (found.mean, found.raised))
            of_points = np.array([spread(own[:, :goals].mean(axis=1)) for own in found.without])
            variance = of_points + found.variance(common=True)
            low, high = score - z * np.sqrt(variance), score + z * np.sqrt(variance + (raised - score) ** 2)
            row = {"method": [*large], "points": size, "score": score, "low": low.clip(0), "high": high.clip(max=1)}
            tables.append(pd.DataFrame(row))
    return pd.concat(tables).sort_values(["method", "points"], ignore_index=True)


def reach(pools: ByMethod, targets: Sequence[float]) -> pd.DataFrame:
    """Return how often searches reach each target, and at what cost: method, target, reach, low, high, cost.

    A search reaches a target if one of its points does, on the seed of the search. The cost is the cost of the cheapest one, as
    the geometric mean over the searches that reach the target; it is nan if fewer than half of them do. The interval is the
    exact binomial one for the share of sampled points that reach the target, given the seeds.
    """
    tables, tail = list[pd.DataFrame](), (1 - LEVEL) / 2
    for name, pool in pools.items():
        n, (share, cost) = len(pool.costs) - 1, pool.cheapest()
        theory, number = np.isfinite(pool.costs[0]), np.isfinite(pool.costs[1:]).sum(axis=0)  # [seeds, targets]
        least, most = beta.ppf(tail, number, n - number + 1), beta.isf(tail, number + 1, n - number)
        ends = np.nan_to_num(least, nan=0), np.nan_to_num(most, nan=1)  # nan: no point reaches it, or all points do
        low, high = (np.where(theory, 1, 1 - (1 - end) ** (SEARCH - 1)).mean(axis=0) for end in ends)
        row = {"method": name, "target": targets, "reach": share, "low": low, "high": high, "cost": cost}
        tables.append(pd.DataFrame(row))
    return pd.concat(tables, ignore_index=True)


def reach_by_points(pools: ByMethod, targets: Sequence[float]) -> pd.DataFrame:
    """Return the share of searches that reach each target, by the number of their points: method, points, target, share."""
    sizes = ((name, pool, size) for name, pool in pools.items() for size in SIZES if size <= len(pool.costs))
    rows = ({"method": name, "points": k, "target": targets, "share": pool.cheapest(k)[0]} for name, pool, k in sizes)
    return pd.concat(map(pd.DataFrame, rows), ignore_index=True)


def seen(one: Pool, other: Pool) -> float:
    """Return the share of pairs of single searches in which the first one finds the better score. Equal scores count half."""
    goals, shares = one.costs.shape[2], []
    chance, its_chance = (chances(len(pool.costs) - 1, SEARCH) for pool in (one, other))
    for own, its in zip(one.found[..., :goals].mean(axis=2), other.found[..., :goals].mean(axis=2), strict=True):
        order = its.argsort()
        below = np.append(0, its_chance[order].cumsum())  # the probability of each number of lower scores
        left, right = (below[np.searchsorted(its[order], own, side)] for side in ("left", "right"))
        shares.append(chance @ (left + right) / 2)
    return float(np.mean(shares))


def verdict(low: float, high: float) -> str:
    """Return what an interval of a log ratio says about the first method of a pair."""
    if high < -ALIKE or low > ALIKE:
        return BEFORE if high < -ALIKE else BEHIND
    return SAME if low > -ALIKE and high < ALIKE else OPEN


def pairs(pools: ByMethod, couples: Sequence[tuple[str, str]] | None = None) -> pd.DataFrame:
    """Return one row per pair of methods on a task in one currency; ``one`` has the higher expected score.

    Columns:
        one, other: The methods.
        effect, error: The log ratio of expected costs, see `log_ratio`, and its standard error.
        ratio: The ratio; nan if one of the two misses more than half of the targets that the other one reaches.
        low, high: The interval of the ratio. The intervals of all pairs cover at once.
        misses_one, misses_other: The shares of targets that searches of each method miss.
        seen: See `seen`.
        verdict: 'before' or 'alike' if the interval says so, else 'not resolved'.

    Args:
        pools: The methods.
        couples: The pairs; all pairs if it is not given.
    """
    names, found, rows = [*pools], found_by([*pools.values()], SEARCH), list[dict[str, Any]]()
    mean, goals, scores = found.mean, found.mean.shape[1] // 2, found.by_seed.mean(axis=1)
    couples = [*combinations(names, 2)] if couples is None else couples
    z = norm.isf((1 - LEVEL) / 2 / max(len(couples), 1))
    for couple in couples:
        a, b = sorted(map(names.index, couple), key=lambda place: -scores[place])
        effect, reached = float(log_ratio(mean[a], mean[b])), mean[[a, b], goals:]
        some = float((1 - (1 - reached).prod(axis=0)).sum())  # the targets that at least one of two searches reaches
        variance = 2 * found.variance(common=False) * (SPAN * goals / max(some, 1e-9)) ** 2 + LEAST**2
        variance += spread(log_ratio(found.without[a], mean[b])) + spread(log_ratio(mean[a], found.without[b]))
        raised = np.array([log_ratio(found.raised[a], mean[b]), log_ratio(mean[a], found.raised[b])]) - effect
        half = z * np.sqrt(variance + raised**2)
        low, high = float(effect - half[0]), float(effect + half[1])
        few, said = 2 * reached.prod(axis=0).sum() < some, verdict(low, high)
        row = {"one": names[a], "other": names[b], "effect": effect, "error": math.sqrt(variance)}
        row["ratio"], row["low"], row["high"] = np.exp([math.nan if few else effect, low, high]).tolist()
        row["misses_one"], row["misses_other"] = (1 - reached.mean(axis=1)).tolist()
        row |= {"seen": seen(pools[names[a]], pools[names[b]]), "verdict": OPEN if few and said == SAME else said}
        rows.append(row)
    return pd.DataFrame(rows, columns=PAIR).astype(dict.fromkeys(PAIR[2:-1], float))
