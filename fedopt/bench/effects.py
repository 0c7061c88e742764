"""Results of the benchmark over tasks: registered claims, profiles, and all tables of the page."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar
from scipy.stats import t

from fedopt.bench.rank import (
    AGAIN,
    BEFORE,
    BEHIND,
    LEVEL,
    OPEN,
    SAME,
    SEARCH,
    ByMethod,
    curves,
    pairs,
    pools_of,
    reach,
    reach_by_points,
    verdict,
)
from fedopt.bench.suite import Claim, Entries, Task

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
    often estimated as 0. For one task, there is no interval of a new task, and no variance.

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
    scale = max(float(weights @ (effects - mean) ** 2) / max(number - 1, 1), 1.0)
    freedom = number - 1 or math.inf  # inf: a normal distribution
    quantile, error = t.isf((1 - LEVEL) / 2, freedom), scale / weights.sum()
    measured, sd = (float(np.var(effects, ddof=1)), math.sqrt(variance)) if number > 1 else (math.nan, math.nan)
    half, new = (float(quantile * math.sqrt(of)) for of in (error, error + np.maximum(variance, measured)))
    return Effect(mean, mean - half, mean + half, mean - new, mean + new, sd)


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
    tested = [(claim, currency) for claim in told for currency in claim.by]
    for claim, currency in tested:
        on = table["task"].map(claim.covers).astype(bool) & (table["currency"] == currency)
        own = oriented(table[on], claim.one, claim.other)
        by_task.append(own.assign(key=claim.key))
        effects, errors = own.loc[np.isfinite(own["effect"]), ["effect", "error"]].to_numpy().T
        every = over_tasks(effects, errors)
        less = [over_tasks(np.delete(effects, k), np.delete(errors, k)).mean for k in range(len(effects))]
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


def places(pools: ByMethod, tables: Mapping[str, pd.DataFrame], ranked: Sequence[str]) -> pd.DataFrame:
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
        tables: Their curves, pairs and reach.
        ranked: The methods with a rank.
    """
    scores, of_pairs = tables["curves"].set_index("method"), tables["pairs"]
    won = of_pairs[(of_pairs["verdict"] == BEFORE) & of_pairs["one"].isin(ranked)]
    before = {name: won.loc[won["other"] == name, "one"].tolist() for name in pools}
    rows = scores[scores["points"] == SEARCH].drop(columns="points").loc[[*pools]]
    rows["defaults"] = scores.loc[scores["points"] == 0, "score"]
    rows["reach"] = tables["reach"].groupby("method")["reach"].mean()
    rows["may_be_best"] = [not before[name] if name in ranked else None for name in pools]
    rows["behind"] = [", ".join(before[name]) for name in pools]
    rows["best"] = [pool.best for pool in pools.values()]
    rows["report"] = [pool.score_of("report", pool.best) for pool in pools.values()]
    return rows.sort_values("score", ascending=False).reset_index()


def profiles(by_task: Mapping[str, ByMethod]) -> pd.DataFrame:
    """Return the data profiles of methods over several tasks, for one unit of cost: method, at, share.

    A share is the expected fraction of the pairs of a task and a target that a search reaches within the fraction ``at`` of the
    budget.

    Args:
        by_task: task -> methods. Methods that are not in all tasks are left out.
    """
    names = [name for name in next(iter(by_task.values())) if all(name in pools for pools in by_task.values())]
    rows = []
    for name, at in product(names, SHARES):
        shares = [pools[name].cheapest(within=at)[0] for pools in by_task.values()]
        rows.append((name, at, np.concatenate(shares).mean()))
    return pd.DataFrame(rows, columns=["method", "at", "share"])


def results(table: pd.DataFrame, chosen: Sequence[Task], entries: Entries) -> dict[str, pd.DataFrame]:
    """Return the tables of the page: curves, reach, reach_by_points, pairs, places, nulls, claims, claims_by_task and profiles.

    All but the claims have the columns task (profiles: board) and currency; see the functions of this module and of
    `fedopt.bench.rank` for the others. The table nulls has pairs of a method and its second scramble, and twins.

    Args:
        table: The rows of all runs.
        chosen: The tasks.
        entries: All entries.
    """
    found = defaultdict[str, dict[tuple[str, str], pd.DataFrame]](dict)
    boards = defaultdict[tuple[str, str], dict[str, ByMethod]](dict)
    for task in chosen:
        for currency, every in pools_of(task, table[table["task"] == task.name]).items():
            pools = {name: pool for name, pool in every.items() if not name.endswith(AGAIN)}
            if not pools:
                continue
            ranked = [name for name in pools if name not in entries or entries[name].form != "control"]
            boards[task.board, currency][task.name] = {name: pools[name] for name in ranked}
            same = [(name, name + AGAIN) for name in pools if name + AGAIN in every]
            same += [(one, other) for one, other in task.twins if {one, other} <= {*pools}]
            tables = {"curves": curves(pools), "pairs": pairs(pools), "nulls": pairs(every, same)}
            tables |= {"reach": reach(pools, task.targets), "reach_by_points": reach_by_points(pools, task.targets)}
            tables["places"] = places(pools, tables, ranked)
            for name, own in tables.items():
                found[name][task.name, currency] = own
    whole = {name: _joined(tables, "task") for name, tables in found.items()}
    whole["profiles"] = _joined({key: profiles(by_task) for key, by_task in boards.items()}, "board")
    whole["claims"], whole["claims_by_task"] = claims(entries.claims, whole["pairs"])
    return whole


def _joined(tables: Mapping[tuple[str, str], pd.DataFrame], first: str) -> pd.DataFrame:
    """Return tables as one, whose first columns are the two parts of their keys, called ``first`` and currency."""
    return pd.concat(tables, names=[first, "currency"]).reset_index([0, 1]).reset_index(drop=True)
