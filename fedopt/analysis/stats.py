"""Statistics of runs: means with deviations, t-intervals, paired tests, corrections.

Importing scipy takes half a second, so only the functions that need it import it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import TypeVar

import numpy as np
import pandas as pd

from fedopt.analysis.runs import ABSENT, Recorded, by_problem
from fedopt.console import note
from fedopt.drawing import spans_decades

EXACT = 2e-9  # beside the values: differences that differ by less are equal, since values have ten digits
MOST_TESTED = 6  # groups of a problem of which each pair is tested
Numbers = TypeVar("Numbers", float, np.ndarray)


def moments(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation (with n - 1) of [n] values.

    Without values the mean is nan. A nan among the values makes both nan. The deviation is nan for fewer than two values, or
    if the mean is infinite.
    """
    series = pd.Series(values, dtype=float)
    if len(series) > 1 and series.nunique(dropna=False) == 1 and math.isfinite(series[0]):  # without a sum's rounding
        return float(series[0]), 0.0
    mean = series.mean(skipna=False)
    return mean, series.std(skipna=False) if math.isfinite(mean) else math.nan


def half_width(std: Numbers, n: int | np.ndarray, level: float = 0.95) -> Numbers:
    """Return half the width of the two-sided t-interval of a mean.

    std: the standard deviation. n: the number of values; n = 1 uses one degree of freedom. level: the confidence, such as
        0.95.
    """
    from scipy.special import stdtrit

    return stdtrit(np.maximum(n - 1, 1), (1 + level) / 2) * std / np.sqrt(n)


def not_positive(groups: Mapping[str, Sequence[Recorded]], metric: str, of: Callable[[Recorded], np.ndarray]) -> str:
    """Return in which run of a problem a value is 0 or less, if the others span decades, as 'is 0 in LABEL, seed 1'; else ''.

    of: returns the values of a run, [n].
    """
    values = {
        f"in {label}, seed {run.keys.get('seed', ABSENT)}": of(run) for label, runs in groups.items() for run in runs
    }
    least, every = (
        {where: np.nanmin(its) for where, its in values.items() if (its <= 0).any()},
        np.concatenate([*values.values()]),
    )
    if not least or not spans_decades(next(iter(groups.values()))[0].metric(metric), every[every > 0]):
        return ""
    return next(f"is {value:.4g} {where}" for where, value in least.items())


def by_ratio(groups: Mapping[str, Sequence[Recorded]], metric: str, at: float | None = None) -> bool:
    """Return whether last values of groups on one problem are compared by their ratios: whether they span decades.

    at: as in `Recorded.last`.
    """
    runs = [run for members in groups.values() for run in members]
    return spans_decades(runs[0].metric(metric), np.array([run.last(metric, at) for run in runs]))


def tests(
    groups: Mapping[str, Sequence[Recorded]],
    metric: str,
    at: float | None = None,  # noqa: PT028
) -> pd.DataFrame:
    """Return paired t-tests between the groups' last values, one row per pair of groups on the same problem.

    A test uses the seeds that both groups have; a pair with fewer than two of them has no row. Several runs with the same seed
    in a group are averaged.

    A row has the mean difference, the number of seeds, the two-sided p-value, and p with Holm's correction over the pairs of
    the problem. p is nan if the difference is the same on all seeds; p and the difference are nan if a run has no last value.
    If the values of a problem span decades, logarithms are tested, and its rows have the ratio of geometric means instead. A
    problem with more than `MOST_TESTED` groups is not tested; a note says so.

    groups: label -> runs. metric: a column of metrics.csv. at: as in `Recorded.last`.
    """
    rows, kinds, title = [], dict[str, None](), next(iter(groups.values()))[0].metric(metric).title
    for problem, members in by_problem(groups).items():
        log, ends = by_ratio(members, metric, at), {}
        kinds["ratio" if log else "difference"] = None
        if len(members) > MOST_TESTED:
            note(f"{problem[0]}: {len(members)} groups are too many to test each pair; compare at most {MOST_TESTED}")
            continue
        for label, runs in members.items():
            values = pd.Series([run.last(metric, at) for run in runs], [run.keys.get("seed", ABSENT) for run in runs])
            ends[label] = (
                (np.log(values) if log else values).groupby(level=0).agg(lambda of_seed: of_seed.mean(skipna=False))
            )
        tested = [_tested(*pair, log) for pair in combinations(ends.items(), 2)]
        its = [row for row in tested if row[2] > 1]
        if its and not log and (found := not_positive(members, metric, lambda run: np.array([run.last(metric, at)]))):
            note(
                f"{problem[0]}: the last {metric} {found}, so differences are tested, not ratios; the others span decades"
            )
        rows += [(*row, p) for row, p in zip(its, holm(np.array([row[-1] for row in its])), strict=True)]
    if "difference" in kinds:
        title = title.replace("(%)", "(percentage points)")
    columns = ["pair", f"{' or '.join(sorted(kinds))} of {title}", "seeds", "p", "p (Holm)"]
    return pd.DataFrame(rows, columns=columns)


def _tested(one: tuple[str, pd.Series], other: tuple[str, pd.Series], log: bool) -> tuple[str, float, int, float]:
    """Return (pair, mean difference or ratio, seeds, p) of two groups.

    one, other: the label, and the last value of each seed or, with ``log``, its logarithm.
    """
    pair = f" {'/' if log else '-'} ".join((one[0], other[0]))
    both = pd.concat([one[1], other[1]], axis=1, join="inner")
    apart, n, p = (both[0] - both[1]).to_numpy(), len(both), math.nan
    if 1 < n < max(len(one[1]), len(other[1])):
        note(f"{pair}: tested on the {n} seeds that both have, while the table uses all seeds of each")
    if n > 1 and np.ptp(apart) > EXACT * (1 if log else both.abs().max(axis=None)):  # a test divides by their deviation
        from scipy.stats import ttest_1samp

        p = float(ttest_1samp(apart, 0).pvalue)
    mean = float(apart.mean()) if n else math.nan
    return pair, float(np.exp(mean)) if log else mean, n, p


def holm(p: np.ndarray) -> np.ndarray:
    """Return Holm-adjusted p-values, [n] [Holm 1979]. A nan in p stays nan and is not counted as a test."""
    order, n = np.argsort(p)[: np.isfinite(p).sum()], np.isfinite(p).sum()
    adjusted = np.full(len(p), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(n, 0, -1)), 1)
    return adjusted
