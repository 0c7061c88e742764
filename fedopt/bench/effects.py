"""Results of the benchmark over tasks: registered claims, profiles, and all tables of the page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar
from scipy.stats import norm, t

from fedopt.bench.rank import (
    AGAIN,
    BEFORE,
    BEHIND,
    LEVEL,
    OPEN,
    SAME,
    SEARCH,
    ByMethod,
    Pool,
    curves,
    pairs,
    pools_of,
    reach,
    reach_by_points,
    verdict,
)
from fedopt.bench.suite import Claim, Entries, Task

TIMES = np.geomspace(1, 10, 21)  # cost of a method / cost of the cheapest one, in performance profiles
SHARES = np.geomspace(0.01, 1, 21)  # fractions of the budget, in data profiles


class Effect(NamedTuple):
    """The mean of an effect over tasks, the interval of the mean and that of a new task, and the sd over tasks."""

    mean: float
    low: float
    high: float
    new_low: float
    new_high: float
    sd: float


def over_tasks(effects: np.ndarray, errors: np.ndarray) -> Effect:
    """Return the mean of an effect over tasks, which are a sample of all tasks (random effects).

    The variance over tasks maximises the restricted likelihood. The intervals are those of Hartung and Knapp, but never shorter
    than the usual ones. That of a new task takes the variance of the effects as they were measured, since the other one is
    often estimated as 0. For one task, there is no interval of a new task.

    Args:
        effects: The effect on each task.
        errors: Its standard errors.
    """
    number = len(effects)
    if not number:
        return Effect(*[math.nan] * 6)

    def weighted(variance: float) -> tuple[np.ndarray, float]:
        weights = 1 / (errors**2 + variance)
        return weights, float(weights @ effects / weights.sum())

    def deviance(variance: float) -> float:
        weights, mean = weighted(variance)
        return float(weights @ (effects - mean) ** 2 - np.log(weights).sum() + math.log(weights.sum()))

    most = 10 * float(np.var(effects)) + 1e-9
    found = float(minimize_scalar(deviance, bounds=(0, most), method="bounded", options={"xatol": 1e-7 * most}).x)
    variance = found if number > 1 and deviance(found) < deviance(0) else 0.0
    weights, mean = weighted(variance)
    if number == 1:
        half = norm.isf((1 - LEVEL) / 2) * float(errors[0])
        return Effect(mean, mean - half, mean + half, math.nan, math.nan, math.nan)
    scale = max(float(weights @ (effects - mean) ** 2) / (number - 1), 1.0)
    quantile, error = t.isf((1 - LEVEL) / 2, number - 1), scale / weights.sum()
    apart = max(variance, float(np.var(effects, ddof=1)))
    half, new = (float(quantile * math.sqrt(of)) for of in (error, error + apart))
    return Effect(mean, mean - half, mean + half, mean - new, mean + new, math.sqrt(variance))


def oriented(rows: pd.DataFrame, one: str, other: str) -> pd.DataFrame:
    """Return the rows of a table of pairs that compare ``one`` and ``other``. Rows in the opposite order are reversed."""
    as_is = rows[(rows["one"] == one) & (rows["other"] == other)]
    turned = rows[(rows["one"] == other) & (rows["other"] == one)].copy()
    turned["effect"], turned["ratio"], turned["seen"] = -turned["effect"], 1 / turned["ratio"], 1 - turned["seen"]
    turned["verdict"] = turned["verdict"].replace(BEFORE, BEHIND)
    names = {"one": "other", "other": "one", "misses_one": "misses_other", "misses_other": "misses_one"}
    turned = turned.assign(low=1 / turned["high"], high=1 / turned["low"]).rename(columns=names)
    return pd.concat([as_is, turned])[rows.columns].sort_index()


def claims(told: Sequence[Claim], table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a table with one row per claim and currency (kind of cost), and one with a row per claim, currency and task.

    Columns of the first table:
        key, says, one, other, expects, withdrawn, currency: The claim.
        tasks: The number of tasks with both methods.
        ratio, low, high: The mean ratio of costs over tasks (geometric), and its interval; ratio is nan if the methods have too
            few targets in common on more than half of the tasks.
        new_low, new_high: The interval of the ratio on a new task.
        sd: The standard deviation of log ratios over tasks.
        least, most: The smallest and the largest mean ratio if a task is left out.
        better: The number of tasks with a higher score of `one`.
        before, behind, alike: The number of tasks on which `one` is cheaper than `other`, more expensive, or about equal.
        misses_one, misses_other, seen: As in the table of pairs, as means over tasks.
        verdict: 'before', 'behind', 'alike' or 'not resolved', by the interval of the mean.

    The second table has the columns of the table of pairs with the claim's key, with verdicts on the claim's first method.

    Args:
        told: The claims.
        table: The pairs of all tasks and currencies.
    """
    rows, by_task = list[dict[str, Any]](), [table.iloc[:0].assign(key="")]
    about = [(claim, currency) for claim in told for currency in claim.by]
    for claim, currency in about:
        on = table["task"].map(claim.covers).astype(bool)
        own = oriented(table[on & (table["currency"] == currency)], claim.one, claim.other)
        by_task.append(own.assign(key=claim.key))
        known = own[np.isfinite(own["effect"])]
        effects, errors = (known[name].to_numpy() for name in ("effect", "error"))
        every = over_tasks(effects, errors)
        less = [over_tasks(np.delete(effects, k), np.delete(errors, k)).mean for k in range(len(known))]
        row = {name: getattr(claim, name) for name in ("key", "says", "one", "other", "expects", "withdrawn")}
        row |= {"currency": currency, "tasks": len(own)}
        row |= {"ratio": math.exp(every.mean) if 2 * own["ratio"].count() >= len(own) else math.nan}
        ends = {"least": min(less, default=math.nan), "most": max(less, default=math.nan)} | every._asdict()
        row |= {name: math.exp(end) for name, end in ends.items() if name not in ("mean", "sd")}
        row |= {"sd": every.sd, "better": int((own["effect"] < 0).sum())}
        row |= {name: int((own["verdict"] == name).sum()) for name in (BEFORE, BEHIND, SAME)}
        row |= {name: own[name].mean() for name in ("misses_one", "misses_other", "seen")}
        said = verdict(every.low, every.high)
        rows.append(row | {"verdict": OPEN if said == SAME and math.isnan(row["ratio"]) else said})
    return pd.DataFrame(rows), pd.concat(by_task, ignore_index=True)


def places(pools: ByMethod, table: pd.DataFrame, scores: pd.DataFrame, ranked: Sequence[str]) -> pd.DataFrame:
    """Return one row per method on a task in one currency, the highest score first.

    Columns:
        method, score, low, high: The expected score of a search, and its band.
        defaults: The score of the default values.
        reach: The fraction of targets that a search reaches.
        may_be_best: Whether no ranked method is before it; empty for methods without a rank.
        behind: The ranked methods that are before it.
        best: The number of the point with the best score.
        report: The score of this point on the seeds of the report.

    Args:
        pools: The methods.
        table: The pairs of these methods.
        scores: Their curves.
        ranked: The methods with a rank.
    """
    found = scores[scores["points"] == SEARCH].drop(columns="points").set_index("method")
    won = table[(table["verdict"] == BEFORE) & table["one"].isin(ranked)]
    rows = []
    for name, pool in pools.items():
        before = won.loc[won["other"] == name, "one"].tolist()
        row = {"method": name, **found.loc[name], "defaults": pool.score_of("pool", 0)}
        row |= {"reach": pool.cheapest()[0].mean()}
        row |= {"may_be_best": not before if name in ranked else None, "behind": ", ".join(before)}
        rows.append(row | {"best": pool.best, "report": pool.score_of("report", pool.best)})
    return pd.DataFrame(rows).sort_values("score", ascending=False, ignore_index=True)


def profiles(by_task: Mapping[str, ByMethod]) -> pd.DataFrame:
    """Return the performance and data profiles of methods over several tasks, for one unit of cost, as a table.

    Its columns are kind, method, at and share.

    Kind 'performance': the fraction of pairs of a task and a target at which the cost is at most ``at`` times the cost
    of the cheapest method. Kind 'data': the expected fraction of such pairs that a search reaches within the fraction ``at`` of
    the budget. Costs and reached targets come from `Pool.cheapest`.

    Args:
        by_task: task -> methods. Methods that are not in all tasks are left out.
    """
    names = [name for name in next(iter(by_task.values())) if all(name in pools for pools in by_task.values())]
    cost, tables = dict[str, np.ndarray](), [pd.DataFrame(columns=["kind", "method", "at", "share"])]
    for name in names:
        pools = [of_task[name] for of_task in by_task.values()]
        cost[name] = np.concatenate([np.where(share < 0.5, math.inf, own) for share, own in map(Pool.cheapest, pools)])
        late = ([replace(pool, costs=np.where(pool.costs <= at, 1, math.inf)) for pool in pools] for at in SHARES)
        shares = [np.concatenate([pool.cheapest()[0] for pool in own]).mean() for own in late]
        tables.append(pd.DataFrame({"kind": "data", "method": name, "at": SHARES, "share": shares}))
    for name in names:
        least = np.minimum(np.min([*cost.values()], axis=0), 1)
        shares = [(cost[name] <= least * at * (1 + 1e-9)).mean() for at in TIMES]
        tables.append(pd.DataFrame({"kind": "performance", "method": name, "at": TIMES, "share": shares}))
    return pd.concat(tables[len(names) > 0 :], ignore_index=True)


def named(table: pd.DataFrame, **names: str) -> pd.DataFrame:
    """Return a table with additional columns at its start. names: column -> its value in all rows."""
    return table.assign(**names)[[*names, *table.columns]]


def results(table: pd.DataFrame, chosen: Sequence[Task], entries: Entries) -> dict[str, pd.DataFrame]:
    """Return the tables of the page: curves, reach, pairs, places, nulls, claims, claims_by_task and profiles.

    All but the claims have the columns task (profiles: board) and currency; see the functions of this module and of
    `fedopt.bench.rank` for the others. The table nulls has pairs of a method and its second scramble, and twins.

    Args:
        table: The rows of all runs.
        chosen: The tasks.
        entries: All entries.
    """
    of_tasks = ("curves", "reach", "reach_by_points", "pairs", "places", "nulls", "profiles")
    found = {name: list[pd.DataFrame]() for name in of_tasks}
    boards = dict[tuple[str, str], dict[str, ByMethod]]()
    for task in chosen:
        for currency, every in pools_of(task, table[table["task"] == task.name]).items():
            pools = {name: pool for name, pool in every.items() if not name.endswith(AGAIN)}
            if not pools:
                continue
            ranked = [name for name in pools if name not in entries or entries[name].form != "control"]
            boards.setdefault((task.board, currency), {})[task.name] = {name: pools[name] for name in ranked}
            of_pairs, scores = pairs(pools), curves(pools)
            same = [(name, name + AGAIN) for name in pools if name + AGAIN in every]
            same += [(one, other) for one, other in task.twins if {one, other} <= {*pools}]
            tables = {"curves": scores, "reach": reach(pools, task.targets), "pairs": of_pairs}
            tables |= {"places": places(pools, of_pairs, scores, ranked), "nulls": pairs(every, same)}
            tables["reach_by_points"] = reach_by_points(pools, task.targets)
            for name, own in tables.items():
                found[name].append(named(own, task=task.name, currency=currency))
    for (board, currency), by_task in boards.items():
        found["profiles"].append(named(profiles(by_task), board=board, currency=currency))
    whole = {name: pd.concat(tables, ignore_index=True) for name, tables in found.items()}
    whole["claims"], whole["claims_by_task"] = claims(entries.claims, whole["pairs"])
    return whole
