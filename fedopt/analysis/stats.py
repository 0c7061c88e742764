"""Statistics of runs: means with deviations, t-intervals, paired tests, corrections.

Importing scipy takes half a second, so only the functions that need it import it.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TypeVar

import numpy as np
import pandas as pd

from fedopt.analysis.runs import ABSENT, Recorded, by_problem
from fedopt.console import note
from fedopt.drawing import spans_decades

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


def tests(groups: Mapping[str, Sequence[Recorded]], metric: str) -> pd.DataFrame:
    """Return paired t-tests between the groups' last values, one row per pair of groups on the same problem.

    A test uses the seeds for which both groups have finite values; a pair with fewer than two such seeds has no row. Several
    runs with the same seed in a group are averaged.

    A row has the mean difference, the number of seeds, the two-sided p-value, and p with Holm's correction over all pairs. p
    is nan if the difference is the same on all seeds. If the values span decades, logarithms are tested, and the row has the
    ratio of geometric means instead. A problem with more than `MOST_TESTED` groups is not tested; a note says so.

    groups: label -> runs. metric: a column of metrics.csv.
    """
    labelled = [(label, run) for label, runs in groups.items() for run in runs]
    values = [(label, run.keys.get("seed", ABSENT), run.values(metric)[-1]) for label, run in labelled]
    last = pd.DataFrame(values, columns=["label", "seed", "value"])
    described = next(iter(groups.values()))[0].metric(metric)
    log = spans_decades(described, last["value"].to_numpy())
    if log:
        last["value"] = np.log(last["value"])
    seeds = last.groupby(["seed", "label"])["value"].mean().unstack()
    rows = []
    for problem, labels in by_problem(groups).items():
        if len(labels) > MOST_TESTED:
            note(f"{problem[0]}: {len(labels)} groups are too many to test each pair; compare at most {MOST_TESTED}")
            continue
        for one, other in combinations(labels, 2):
            apart = (seeds[one] - seeds[other]).dropna().to_numpy()
            pair = f"{one} / {other}" if log else f"{one} - {other}"
            if len(apart) > 1:
                mean, p = apart.mean(), math.nan
                if not np.allclose(apart, apart[0]):  # the test divides by their deviation
                    from scipy.stats import ttest_1samp

                    p = float(ttest_1samp(apart, 0).pvalue)
                rows.append((pair, np.exp(mean) if log else mean, len(apart), p))
                if len(apart) < seeds[[one, other]].notna().sum().max():
                    note(
                        f"{pair}: tested on the {len(apart)} seeds that both have, while the table uses all seeds of each"
                    )
    what = "ratio" if log else "difference"
    title = described.title if log else described.title.replace("(%)", "(percentage points)")
    table = pd.DataFrame(rows, columns=["pair", f"{what} of {title}", "seeds", "p"])
    return table.assign(**{"p (Holm)": holm(table["p"].to_numpy(dtype=float))})


def holm(p: np.ndarray) -> np.ndarray:
    """Return Holm-adjusted p-values, [n] [Holm 1979]. A nan in p stays nan and is not counted as a test."""
    order, n = np.argsort(p)[: np.isfinite(p).sum()], np.isfinite(p).sum()
    adjusted = np.full(len(p), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(n, 0, -1)), 1)
    return adjusted
