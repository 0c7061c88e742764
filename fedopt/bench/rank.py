"""Statistics of the benchmark: the share of its goals that a method reaches, which of two methods is cheaper, and how sure that
    is.

A hit is a row with task, method, seed, target (its index, from easy to hard) and cost: the share of the budget spent when the
target was reached, infinite for a miss. A table of hits is about one currency: communication rounds, bytes or oracle calls.
No mean is taken over infinite costs.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import binomtest, norm
from scipy.stats import t as student

from fedopt.analysis import holm, resampled, sign_flip

BUDGETS = np.geomspace(0.01, 1.0, 201)  # the shares of the budget at which the share solved is asked for
BAND = 0.9  # of a bootstrap
SAMPLES = 2000
LEVEL = 0.05  # of p after Holm's correction: with ten seeds the least p is 0.002, which leaves room for 25 claims


def solved(hits: pd.DataFrame) -> pd.DataFrame:
    """Return the fraction of goals (task, target, seed) that each method reached within each of `BUDGETS`.

    There is a row per budget and a column per method. A column does not depend on the other methods.
    """
    shares = {}
    for method, rows in hits.groupby("method"):
        cost = rows["cost"].to_numpy()
        shares[method] = [(cost <= budget).mean() for budget in BUDGETS]
    return pd.DataFrame(shares, index=pd.Index(BUDGETS, name="budget"))


def worth(cost: pd.Series) -> pd.Series:
    """Return the worth of each hit: 1 for a cost of at most 1 % of the budget, 0 for all of it or a miss, linear in log cost.

    Its mean over hits is the area under the curve of `solved`, with the budget on a logarithmic axis.

    cost: the cost of each hit, as a fraction of the budget; infinite for a miss.
    """
    return 1 - (np.log(cost / BUDGETS[0]) / math.log(BUDGETS[-1] / BUDGETS[0])).clip(0, 1)


def scores(hits: pd.DataFrame, samples: int = SAMPLES, seed: int = 0) -> pd.DataFrame:
    """Return one row per method, the best first.

    Columns:
        score: the mean `worth` of its hits, which no other method changes.
        low, high: the ends of the score's bootstrap band, of confidence `BAND`; nan if a task has a single seed.
        tasks: the number of tasks that the method takes part in.
        rank: 1 is best; missing unless the method takes part in all tasks.
        rank holds: the fraction of bootstrap samples in which it has this rank.

    Args:
        hits: The hits of a board in one currency.
        samples: The number of bootstrap samples; each draws seeds within each task, the same ones for all methods.
        seed: The seed of the bootstrap.
    """
    rows = hits.assign(worth=worth(hits["cost"]))
    table = rows.pivot_table(index=["task", "seed"], columns="method", values="worth", aggfunc="sum")
    goals = rows.groupby("task")["target"].nunique().reindex(table.index, level="task").to_numpy()
    values, asked = table.fillna(0).to_numpy(), table.notna().to_numpy() * goals[:, None]
    places = [np.array(its) for its in table.groupby("task").indices.values()]  # of the seeds of each task
    drawn = np.array([values[at].sum(axis=0) / asked[at].sum(axis=0) for at in resampled(places, samples, seed)])
    score, least = values.sum(axis=0) / asked.sum(axis=0), min(map(len, places))
    # The ends of few seeds are too near to each other: as much wider as Student's are, and for the lost degree of freedom
    level = (1 + BAND) / 2
    wider = student.ppf(level, least - 1) / norm.ppf(level) * math.sqrt(least / max(least - 1, 1))
    ends = np.quantile(drawn, [1 - level, level], axis=0)
    low, high = np.clip(score + np.where(ends == score, 0, ends - score) * wider, 0, 1)
    complete = np.all(asked > 0, axis=0)
    rank = pd.Series(np.where(complete, score, np.nan)).rank(ascending=False, method="min")
    ranks = pd.DataFrame(np.where(complete, drawn, np.nan)).rank(axis=1, ascending=False, method="min")
    held = np.where(complete, (ranks == rank.to_numpy()).mean(), np.nan)
    ranked = pd.DataFrame({"method": table.columns, "score": score, "low": low, "high": high})
    ranked["tasks"] = table.notna().groupby("task").any().sum().to_numpy()
    ranked["rank"], ranked["rank holds"] = rank.astype("Int64"), held
    return ranked.sort_values(["rank", "score"], ascending=[True, False], ignore_index=True)


def log_ratios(hits: pd.DataFrame, task: str, one: str, other: str) -> np.ndarray:
    """Return log(cost of ``one`` / cost of ``other``) on each seed, [seeds]; negative if ``one`` is cheaper.

    Each entry is a mean over the targets that at least one of the two reached on at least one seed. Without such a target it
    is 0; without hits the array is empty. A miss counts as the full budget, which understates its cost.
    """
    on = hits[(hits["task"] == task) & hits["method"].isin((one, other))]
    table = on.pivot_table(index=["seed", "target"], columns="method", values="cost")
    if not len(table):
        return np.empty(0)
    cost = np.log(table.clip(upper=1.0))
    counted = (table.min(axis=1) < math.inf).groupby("target").transform("any")
    return (cost[one] - cost[other]).where(counted).groupby("seed").mean().fillna(0.0).to_numpy()


def pairs(
    hits: pd.DataFrame, further: pd.DataFrame, claims: Sequence[tuple[str, str, str]], registered: int
) -> pd.DataFrame:
    """Return one row per claim that method `one` spends less than method `other` on a task; an empty table without claims.

    Columns besides the claim:
        ratio: cost of `one` / cost of `other`, the geometric mean over seeds.
        cheaper: the number of seeds on which this ratio is below 1, such as 8/10.
        chance: the exact 90 % confidence interval of that fraction.
        p: the p-value of a sign-flip test. p (Holm): p after Holm's correction.
        further: the ratio on the further seeds; nan without any.
        answer: 'held' or 'did not hold' if p (Holm) is below `LEVEL` and the further seeds agree; else 'not told apart'.

    Args:
        hits: The hits of kind report, in one currency.
        further: The hits of kind further, in the same currency.
        claims: (task, one, other) of each claim.
        registered: The number of claims that the correction counts, at least as many as `claims`.
    """
    table = []
    for task, one, other in claims:
        ratios, later = (log_ratios(runs, task, one, other) for runs in (hits, further))
        cheaper = int((ratios < 0).sum())
        low, high = binomtest(cheaper, len(ratios)).proportion_ci(BAND)
        row = {"task": task, "one": one, "other": other, "ratio": math.exp(ratios.mean())}
        row |= {"cheaper": f"{cheaper}/{len(ratios)}", "chance": f"{low:.2f} to {high:.2f}", "p": sign_flip(ratios)}
        table.append(row | {"further": math.exp(later.mean()) if len(later) else math.nan})
    judged = pd.DataFrame(table)
    if len(judged):
        others = np.ones(registered - len(judged))  # claims on tasks that are not here
        judged["p (Holm)"] = holm(np.concatenate([judged["p"], others]))[: len(judged)]
        sure = (judged["p (Holm)"] < LEVEL) & ((judged["ratio"] - 1) * (judged["further"] - 1) > 0)
        judged["answer"] = np.where(sure, np.where(judged["ratio"] < 1, "held", "did not hold"), "not told apart")
    return judged
