"""Statistics of the benchmark: what share of its goals a method reaches, which of two is first, and how sure that is.

A hit is a row: task, method, seed, target (its place, from easy to hard), cost (what was spent until it was reached, as a share of
the budget; infinite where it was missed). All is of one currency: communication rounds, bytes or oracle calls. Nothing is a mean
over misses.
"""

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd

BUDGETS = np.geomspace(0.01, 1.0, 201)  # the shares of the budget at which the share solved is asked for
BAND = 0.9  # of a bootstrap
SAMPLES = 2000
RATIOS = np.geomspace(1, 16, 97)  # to the best, of a profile
MOST_FLIPS = 20  # seeds, up to which all signs are tried


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
    """A row a method, the best first: its score, the ends of its band, its rank, and how often it has that rank in samples.

    The score is the mean `worth`, which no other method changes. Samples draw seeds within each task, the same for all methods.
    """
    rng, rows = np.random.default_rng(seed), hits.assign(worth=worth(hits["cost"]))
    table = rows.pivot_table(index=["task", "seed"], columns="method", values="worth", aggfunc="sum")
    goals = rows.groupby("task")["target"].nunique().reindex(table.index, level="task").to_numpy()
    places = table.groupby("task").indices.values()  # of the seeds of each task
    drawn = np.empty((samples, table.shape[1]))
    for sample in drawn:
        chosen = np.concatenate([rng.choice(of_task, len(of_task)) for of_task in places])
        sample[:] = table.to_numpy()[chosen].sum(axis=0) / goals[chosen].sum()
    score = pd.Series(table.sum() / goals.sum(), name="score")
    low, high = np.quantile(drawn, [(1 - BAND) / 2, (1 + BAND) / 2], axis=0)
    rank = score.rank(ascending=False, method="min").astype(int)
    held = (pd.DataFrame(drawn).rank(axis=1, ascending=False, method="min") == rank.to_numpy()).mean().to_numpy()
    found = pd.DataFrame({"score": score, "low": low, "high": high, "rank": rank, "rank holds": held})
    return found.sort_values("score", ascending=False).rename_axis("method").reset_index()


def log_ratios(hits: pd.DataFrame, task: str, one: str, other: str) -> np.ndarray:
    """[seeds], log of what `one` spent over what `other` spent, mean over the targets; negative where `one` is cheaper.

    A target that was missed counts as reached at the whole budget, which understates what it would take; one that both missed, 0.
    """
    cost = hits[hits["task"] == task].assign(cost=lambda rows: np.log(rows["cost"].clip(upper=1.0)))
    table = cost.pivot_table(index=["seed", "target"], columns="method", values="cost")
    return (table[one] - table[other]).groupby("seed").mean().to_numpy()


def sign_flip(differences: np.ndarray) -> float:
    """The exact two-sided p-value of a paired sign-flip test that [n] differences have mean zero, n <= 20."""
    values = np.asarray(differences, dtype=float)
    if len(values) > MOST_FLIPS:
        raise ValueError(f"{len(values)} differences: an exact test takes {MOST_FLIPS} at most")
    signs = np.array([*product((1.0, -1.0), repeat=len(values))])
    sums = np.abs(signs @ values)
    return float((sums >= abs(values.sum()) * (1 - 1e-12)).mean())


def holm(p: Sequence[float]) -> np.ndarray:
    """p-values as Holm corrects them, in their order."""
    values, corrected = np.array(p, dtype=float), np.empty(len(p))
    order = np.argsort(values)
    steps = np.minimum((len(values) - np.arange(len(values))) * values[order], 1.0)
    corrected[order] = np.maximum.accumulate(steps)
    return corrected


def pairs(hits: pd.DataFrame, registered: Sequence[tuple[str, str, str]], seed: int = 0) -> pd.DataFrame:
    """A row a registered (task, one, other): the mean ratio of what they spent, the probability that `one` is cheaper with its 90 %
    band, p and p corrected over all rows, and the verdict at 1 %."""
    rng, rows = np.random.default_rng(seed), []
    for task, one, other in registered:
        ratios = log_ratios(hits, task, one, other)
        cheaper = (ratios < 0) + 0.5 * (ratios == 0)
        drawn = rng.choice(cheaper, (SAMPLES, len(cheaper))).mean(axis=1)
        low, high = np.quantile(drawn, [(1 - BAND) / 2, (1 + BAND) / 2])
        row = {"task": task, "one": one, "other": other, "seeds": len(ratios), "ratio": math.exp(ratios.mean())}
        rows.append(row | {"cheaper": cheaper.mean(), "low": low, "high": high, "p": sign_flip(ratios)})
    table = pd.DataFrame(rows)
    if len(table):
        table["p (Holm)"] = holm([*table["p"]])
        first = np.where(table["ratio"] < 1, table["one"], table["other"])
        table["verdict"] = np.where(table["p (Holm)"] < 0.01, [f"{name} before" for name in first], "not told apart")
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
