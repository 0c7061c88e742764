"""Statistics of runs: means and standard deviations, t-intervals, paired tests and Holm's correction.

Importing scipy takes half a second, so only the functions that need it import it.
"""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from fedopt.analysis.groups import pairing
from fedopt.analysis.runs import Groups, Recorded, by_problem
from fedopt.console import counted, note
from fedopt.drawing import spans_decades

EXACT = 2e-9  # relative to the values, which are stored with ten digits: smaller differences count as equal
MOST_TESTED = 6  # the largest number of groups on a problem of which each pair is tested
Numbers = TypeVar("Numbers", float, np.ndarray)


def moments(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation (with n - 1 degrees of freedom) of n values.

    Both are nan if there are no values or if a value is nan. The standard deviation is also nan if there is only one value or
    if the mean is infinite.
    """
    series = pd.Series(values, dtype=float)
    if len(series) > 1 and series.nunique(dropna=False) == 1 and math.isfinite(series[0]):  # no rounding errors
        return float(series[0]), 0.0
    mean = series.mean(skipna=False)
    if not math.isfinite(mean):
        return mean, math.nan
    unit = 2.0 ** (math.frexp(series.abs().max())[1] - 1)  # a power of two: squares do not overflow, digits stay
    return mean, unit * (series / unit).std(skipna=False)


def half_width(std: Numbers, n: int | np.ndarray, level: float = 0.95) -> Numbers:
    """Return half the width of the two-sided t-interval of a mean.

    Args:
        std: The standard deviation of the values (with n - 1 degrees of freedom).
        n: The number of values. n = 1 is treated as one degree of freedom.
        level: The confidence level, such as 0.95.
    """
    from scipy.special import stdtrit

    return stdtrit(np.maximum(n - 1, 1), (1 + level) / 2) * std / np.sqrt(n)


def tests(groups: Groups, metric: str, at: float | None = None) -> pd.DataFrame:  # noqa: PT028
    """Return paired t-tests between the groups' last values, one row per pair of groups on the same problem.

    Runs are paired by the keys that differ within the groups: the seed, the seed of the data split, or others (`pairing`).
    If a group has several runs with equal values of these keys, their mean is used. Two groups with fewer than two pairs
    have no row. A note says how many runs have no partner.

    The columns are the names of the two groups (pair), the mean difference, the number of pairs of runs, the two-sided p-value,
    the p-value with Holm's correction over all pairs of groups on the problem, and the keys by which the runs are paired. The
    p-value is nan if the difference is the same for all pairs of runs; the p-value and the difference are nan if a run has no
    last value because it failed or diverged. If the values on a problem span decades, logarithms are tested, and the ratio of
    geometric means replaces the difference. A problem with more than `MOST_TESTED` groups is not tested; a note says so.

    Args:
        groups: label -> runs.
        metric: A column of metrics.csv.
        at: The cost up to which values are used. None: the last values are tested.
    """
    rows, kinds = list[tuple[Any, ...]](), set[str]()
    for problem, members in by_problem(groups).items():
        runs = [run for its in members.values() for run in its]
        log = spans_decades(runs[0].metric(metric), np.array([run.last(metric, at) for run in runs]))
        kinds.add("ratio" if log else "difference")
        if len(members) > MOST_TESTED:
            note(f"{problem[0]}: no paired tests of {len(members)} groups; compare at most {MOST_TESTED}")
            continue
        tested = [_tested(pair, log, metric, at) for pair in combinations(members.items(), 2)]
        its = [row for row in tested if row[3] > 1]
        rows += [(*row[1:], p, row[0]) for row, p in zip(its, holm(np.array([row[-1] for row in its])), strict=True)]
    title = next(iter(groups.values()))[0].metric(metric).title
    title = title.replace("(%)", "(percentage points)") if "difference" in kinds else title
    heads = ["pair", f"{' or '.join(sorted(kinds))} of {title}", "pairs", "p", "p (Holm)", "paired by"]
    return pd.DataFrame(rows, columns=heads)


def _tested(pair: Sequence[tuple[str, Sequence[Recorded]]], log: bool, metric: str, at: float | None) -> Sequence[Any]:
    """Return the result of the paired test of two groups.

    Args:
        pair: The two groups, each as (label, runs).
        log: Whether to test logarithms.
        metric: A column of metrics.csv.
        at: The cost up to which values are used. None: the last values are tested.

    Returns:
        The keys by which the runs are paired, the pair as text, the mean difference or ratio, the number of pairs, and p.
    """
    by = pairing(*(runs for _, runs in pair))
    ends: list[dict[tuple[str, ...], list[float]]] = [{}, {}]  # values of the keys -> last values, or their logarithms
    for (_, runs), its in zip(pair, ends, strict=True):
        for run in runs:
            last = run.last(metric, at)
            its.setdefault(run.group(by), []).append(math.log(last) if log else last)
    shared = [key for key in ends[0] if key in ends[1]]
    values = np.array([[moments(its[key])[0] for its in ends] for key in shared]).reshape(-1, 2)
    apart, n, p = values[:, 0] - values[:, 1], len(shared), math.nan
    name, keys = (" / " if log else " - ").join(label for label, _ in pair), " and ".join(by)
    alone = sum(len(last) for its in ends for key, last in its.items() if key not in shared)
    if alone and min(len(runs) for _, runs in pair) > 1:
        tested = f"{'' if n > 1 else 'not '}tested, with {counted(n, 'pair')} of runs with equal {keys}"
        note(f"{name}: {tested}; the test leaves out {counted(alone, 'run')} without a partner")
    if n > 1 and np.ptp(apart) > EXACT * (1 if log else abs(values).max()):  # the test divides by their deviation
        from scipy.stats import ttest_1samp

        p = float(ttest_1samp(apart / abs(apart).max(), 0).pvalue)  # whose squares neither overflow nor vanish
    mean = moments(apart)[0]
    return keys, name, float(np.exp(mean)) if log else mean, n, p


def holm(p: np.ndarray) -> np.ndarray:
    """Return Holm-adjusted p-values, [n] [Holm 1979]. A nan in p stays nan and is not counted as a test.

    Args:
        p: The p-values of all tests, [n].
    """
    order, n = np.argsort(p)[: np.isfinite(p).sum()], np.isfinite(p).sum()
    adjusted = np.full(len(p), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(n, 0, -1)), 1)
    return adjusted
