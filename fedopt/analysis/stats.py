"""Paired tests of groups of runs over their seeds."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from fedopt.analysis.runs import ABSENT, Recorded, by_problem
from fedopt.console.say import note
from fedopt.drawing.figures import spans_decades

MOST_TESTED = 6  # groups of a problem of which each pair is tested


def tests(groups: Mapping[str, Sequence[Recorded]], metric: str) -> pd.DataFrame:
    """Each pair of up to `MOST_TESTED` groups on the same problem: the mean difference of last values over the seeds that both
    have, a two-sided p-value, and the one that Holm's correction over all pairs gives; nan where all seeds differ by the same.
    What is not tested is said on stderr.

    Where values span decades, the ratio of geometric means, tested by the logarithms. A seed's runs in a group are one mean.
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
            note(f"{problem[0]}: {len(labels)} groups are more than the {MOST_TESTED} of which each pair is tested")
            continue
        for one, other in combinations(labels, 2):
            apart = (seeds[one] - seeds[other]).dropna().to_numpy()
            pair = f"{one} / {other}" if log else f"{one} - {other}"
            if len(apart) > 1:
                mean, p = apart.mean(), math.nan
                if not np.allclose(apart, apart[0]):  # the test divides by their deviation
                    from scipy.stats import ttest_1samp  # half a second

                    p = float(ttest_1samp(apart, 0).pvalue)
                rows.append((pair, np.exp(mean) if log else mean, len(apart), p))
                if len(apart) < seeds[[one, other]].notna().sum().max():
                    note(f"{pair}: tested on the {len(apart)} seeds that both have; the table has all seeds of each")
    what = "ratio" if log else "difference"
    title = described.title if log else described.title.replace("(%)", "(percentage points)")
    table = pd.DataFrame(rows, columns=["pair", f"{what} of {title}", "seeds", "p"])
    return table.assign(**{"p (Holm)": holm(table["p"].to_numpy(dtype=float))})


def holm(p: np.ndarray) -> np.ndarray:
    """[n] p-values as Holm's step-down correction for the tests that have one has them [Holm 1979]; nan where there is none."""
    order, n = np.argsort(p)[: np.isfinite(p).sum()], np.isfinite(p).sum()
    adjusted = np.full(len(p), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(n, 0, -1)), 1)
    return adjusted
