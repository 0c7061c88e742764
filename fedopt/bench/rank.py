"""Statistics of the benchmark: what share of its goals a method reaches, which of two is first, and how sure that is.

A hit is a row: task, method, seed, target (its place, from easy to hard), cost (what was spent until it was reached, as a share of
the budget; infinite where it was missed). All is of one currency: communication rounds, bytes or oracle calls. Nothing is a mean
over misses.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import permutation_test

from fedopt.comparing.paired import holm

BUDGETS = np.geomspace(0.01, 1.0, 201)  # the shares of the budget at which the share solved is asked for
BAND = 0.9  # of a bootstrap
SAMPLES = 2000
RATIOS = np.geomspace(1, 16, 97)  # to the best, of a profile
LEVEL = 0.05  # of p after Holm's correction: with ten seeds the least p is 0.002, which 25 claims leave room for


def solved(hits: pd.DataFrame) -> pd.DataFrame:
    """The share of (task, target, seed) that each method has reached within each of `BUDGETS`: methods by columns.

    It depends on no other method's rows.
    """
    shares = {}
    for method, rows in hits.groupby("method"):
        cost = rows["cost"].to_numpy()
        shares[method] = [(cost <= budget).mean() for budget in BUDGETS]
    return pd.DataFrame(shares, index=pd.Index(BUDGETS, name="budget"))


def worth(cost: pd.Series) -> pd.Series:
    """What a hit adds to a score: the share of log budget, from 1 % to all of it, that lies beyond its cost. Misses add nothing.

    The mean over hits is the area under the curve of `solved` on log budget.
    """
    return 1 - (np.log(cost / BUDGETS[0]) / math.log(BUDGETS[-1] / BUDGETS[0])).clip(0, 1)


def scores(hits: pd.DataFrame, samples: int = SAMPLES, seed: int = 0) -> pd.DataFrame:
    """A row a method, the best first: its score, the ends of its band, its tasks, its rank, and how often it has that in samples.

    The score is the mean `worth`, which no other method changes. Samples draw seeds within each task, the same for all methods.
    A method that does not take part in all tasks has no rank.
    """
    rng, rows = np.random.default_rng(seed), hits.assign(worth=worth(hits["cost"]))
    table = rows.pivot_table(index=["task", "seed"], columns="method", values="worth", aggfunc="sum")
    goals = rows.groupby("task")["target"].nunique().reindex(table.index, level="task").to_numpy()
    values, asked = table.fillna(0).to_numpy(), table.notna().to_numpy() * goals[:, None]
    places = [*table.groupby("task").indices.values()]  # of the seeds of each task
    drawn = np.empty((samples, table.shape[1]))
    for sample in drawn:
        chosen = np.concatenate([rng.choice(of_task, len(of_task)) for of_task in places])
        sample[:] = values[chosen].sum(axis=0) / asked[chosen].sum(axis=0)
    complete: np.ndarray = np.all(asked > 0, axis=0)
    score = pd.Series(values.sum(axis=0) / asked.sum(axis=0), index=table.columns, name="score")
    low, high = np.quantile(drawn, [(1 - BAND) / 2, (1 + BAND) / 2], axis=0)
    rank = score.where(complete).rank(ascending=False, method="min")
    ranks = pd.DataFrame(np.where(complete, drawn, np.nan)).rank(axis=1, ascending=False, method="min")
    held = np.where(complete, (ranks == rank.to_numpy()).mean(), np.nan)
    columns = {
        "score": score,
        "low": low,
        "high": high,
        "tasks": table.notna().groupby("task").any().sum(),
        "rank": rank,
    }
    ranked = pd.DataFrame({**columns, "rank holds": held})
    ranked = ranked.astype({"rank": "Int64"}).sort_values(["rank", "score"], ascending=[True, False])
    return ranked.rename_axis("method").reset_index()


def log_ratios(hits: pd.DataFrame, task: str, one: str, other: str) -> np.ndarray:
    """[seeds], log of what `one` spent over what `other` spent, mean over the targets; negative where `one` is cheaper.

    A target that was missed counts as reached at the whole budget, which understates what it would take; one that both missed, 0.
    """
    cost = hits[(hits["task"] == task) & hits["method"].isin((one, other))].assign(
        cost=lambda rows: np.log(rows["cost"].clip(upper=1.0))
    )
    if not len(cost):
        return np.empty(0)
    table = cost.pivot_table(index=["seed", "target"], columns="method", values="cost")
    return (table[one] - table[other]).groupby("seed").mean().to_numpy()


def sign_flip(differences: np.ndarray) -> float:
    """The exact two-sided p-value of a paired sign-flip test that [n] differences have mean zero."""
    tested = permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=np.inf, axis=0)
    return float(tested.pvalue)


def pairs(
    hits: pd.DataFrame, again: pd.DataFrame, registered: Sequence[tuple[str, str, str]], seed: int = 0
) -> pd.DataFrame:
    """A row a registered (task, one, other): the mean ratio of what they spent, the probability that `one` is cheaper with its 90 %
    band, p and p corrected over all rows, the ratio on the seeds of `again`, and the answer.

    That `one` spends less held, or did not, where p after the correction is less than `LEVEL` and the further seeds agree.
    """
    rng, rows = np.random.default_rng(seed), []
    for task, one, other in registered:
        ratios, further = (log_ratios(runs, task, one, other) for runs in (hits, again))
        cheaper = (ratios < 0) + 0.5 * (ratios == 0)
        drawn = rng.choice(cheaper, (SAMPLES, len(cheaper))).mean(axis=1)
        low, high = np.quantile(drawn, [(1 - BAND) / 2, (1 + BAND) / 2])
        row = {"task": task, "one": one, "other": other, "seeds": len(ratios), "ratio": math.exp(ratios.mean())}
        row |= {"cheaper": cheaper.mean(), "low": low, "high": high, "p": sign_flip(ratios)}
        rows.append(row | {"again": math.exp(further.mean()) if len(further) else math.nan})
    table = pd.DataFrame(rows)
    if len(table):
        table["p (Holm)"] = holm(table["p"].to_numpy())
        told = (table["p (Holm)"] < LEVEL) & ((table["ratio"] - 1) * (table["again"] - 1) > 0)
        table["answer"] = np.where(told, np.where(table["ratio"] < 1, "held", "did not hold"), "not told apart")
    return table


def profile(hits: pd.DataFrame) -> pd.DataFrame:
    """Dolan and More's: the share of (task, target) on which a method's median cost is at most a ratio times the least one here.

    It changes with who else is here.
    """
    medians = hits.pivot_table(index=["task", "target"], columns="method", values="cost", aggfunc="median")
    reached = medians[np.isfinite(medians.min(axis=1))]
    ratios = reached.div(reached.min(axis=1), axis=0)
    shares = {method: [(ratios[method] <= ratio).mean() for ratio in RATIOS] for method in ratios}
    return pd.DataFrame(shares, index=pd.Index(RATIOS, name="ratio"))
