"""Results of the benchmark over tasks: registered claims, profiles, and all tables of the page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar
from scipy.stats import norm, t

from fedopt.bench.rank import AGAIN, BEFORE, BEHIND, LEVEL, OPEN, PAIR, SAME, SEARCH, Pools, chances, curves, pairs, pools_of
from fedopt.bench.rank import reach, verdict
from fedopt.bench.suite import CURRENCIES, Claim, Entries, Task

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
    than the usual ones. For one task, there is no interval of a new task.

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
    half, new = (float(quantile * math.sqrt(of)) for of in (error, error + variance))
    return Effect(mean, mean - half, mean + half, mean - new, mean + new, math.sqrt(variance))


def oriented(rows: pd.DataFrame, one: str, other: str) -> pd.DataFrame:
    """Return the rows of a table of pairs about two methods, with ``one`` as the first of them."""
    as_is = rows[(rows["one"] == one) & (rows["other"] == other)]
    turned = rows[(rows["one"] == other) & (rows["other"] == one)].copy()
    turned["effect"], turned["ratio"], turned["seen"] = -turned["effect"], 1 / turned["ratio"], 1 - turned["seen"]
    turned["verdict"] = turned["verdict"].replace(BEFORE, BEHIND)
    names = {"one": "other", "other": "one", "misses_one": "misses_other", "misses_other": "misses_one"}
    turned = turned.assign(low=1 / turned["high"], high=1 / turned["low"]).rename(columns=names)
    return pd.concat([as_is, turned])[rows.columns].sort_index()


def claimed(about: Sequence[Claim], table: pd.DataFrame, of_task: Mapping[str, Sequence[Claim]]) -> Iterable[pd.DataFrame]:
    """Yield, for each claim and currency, its rows of the table of pairs, with the claim's key.

    Args:
        about: The claims.
        table: The pairs of all tasks and currencies.
        of_task: The claims on each task.
    """
    for claim in about:
        on = [task for task, claims in of_task.items() if claim in claims]
        for currency in claim.by:
            here = table[table["task"].isin(on) & (table["currency"] == currency)]
            yield oriented(here, claim.one, claim.other).assign(key=claim.key)
