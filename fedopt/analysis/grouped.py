"""Groups of runs, with the table of their results and the paired tests between them."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from fedopt.analysis.runs import Recorded
from fedopt.analysis.stats import moments, tests
from fedopt.metrics import Metric, validates


@dataclass(frozen=True, repr=False)
class GroupedRuns:
    """Groups of runs, with their table and paired tests.

    Args:
        by: The config keys whose values define the groups.
        groups: label -> runs of the group.
        metric: The metric that is compared.
        x: The cost axis, a key of `COSTS`.
        target: A value of the metric; the table then has the cost to reach it. None: the table has no such column.
        at: The cost on the axis ``x`` at which the groups are compared; later evaluations are ignored. None: all evaluations
            are used.
        slots: label -> index of the line's colour. Empty: lines are coloured in the order of `groups`.
    """

    by: Sequence[str]
    groups: Mapping[str, list[Recorded]]
    metric: str
    x: str
    target: float | None = None
    at: float | None = None
    slots: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Return the table that compare.csv contains, with one row per group: the values of the keys `by`, the label, and
        statistics of the group's runs.

        Standard deviations are over the runs of a group, with n - 1 degrees of freedom. The mean is nan if a run has no last
        value because it failed or diverged. The cost to reach the target is the mean over the runs that reach the target, or
        nan if no run does.

        Raises:
            UserError: A run has no evaluation up to `at`, or there is a target for a metric of which neither lower nor
                higher values are better.
        """
        rows = []
        for label, runs in self.groups.items():
            keys = dict(zip(self.by, runs[0].group(self.by), strict=True))
            rows.append(keys | {"label": label} | self._numbers(runs))
        return pd.DataFrame(rows) if self.at is None else pd.DataFrame(rows).assign(at=self.at)

    @cached_property
    def paired(self) -> pd.DataFrame:
        """Return paired t-tests between the groups, as the table that `fedopt.analysis.stats.tests` returns.

        Runs are paired by their seed and by the other keys that differ within groups.

        Raises:
            UserError: A run has no evaluation up to `at`.
        """
        return tests(self.groups, self.metric, self.at)

    @property
    def test_metric(self) -> str:
        """Return the name of the test metric that corresponds to the compared validation metric, such as test_rmse for val_rmse.

        The name is '' if the compared metric is not a validation metric, or if a run lacks the test metric.
        """
        name = self.metric.replace("val_", "test_", 1) if validates(self.metric) else ""
        return name if all(name in run.table for runs in self.groups.values() for run in runs) else ""

    @property
    def described(self) -> Metric:
        """Return the description of the compared metric: its label, its unit and whether lower or higher values are better."""
        return next(iter(self.groups.values()))[0].metric(self.metric)

    def _numbers(self, runs: Sequence[Recorded]) -> dict[str, Any]:
        """Return the row of a group in `table`, without the keys and the label: column -> number or text.

        Args:
            runs: The runs of the group.
        """
        metric, test_metric, x, target = self.metric, self.test_metric, self.x, self.target
        shown = [run.until(self.at) for run in runs]
        described, statuses = runs[0].metric(metric), Counter(run.status for run in runs)
        row = {
            "runs": len(runs),
            "seeds": len({run.keys.get("seed") for run in runs}),
            "status": ", ".join(f"{n} {status}" for status, n in sorted(statuses.items())),
            **_columns(f"spent_{x}", [run.cost()[-1] for run in shown]),
        }
        for name in filter(None, [metric, test_metric]):
            row |= _columns(f"final_{name}", [run.last(name, self.at) for run in runs])
        if described.better != "neither":
            best = [described.best(run.good(metric)) for run in shown]
            row |= _columns(f"best_{metric}", best)
            if test_metric:
                hits = [run.table[test_metric][run.good(metric) == top] for run, top in zip(shown, best, strict=True)]
                row |= _columns(f"{test_metric}_at_best", [its.iloc[0] if len(its) else math.nan for its in hits])
        if target is not None:
            hits = [[described.reached(value, target) for value in run.good(metric)] for run in shown]
            costs = [run.cost()[hit][0] for run, hit in zip(shown, hits, strict=True) if any(hit)]
            row |= {"target": target, "reached": len(costs), **_columns(f"{x}_to_target", costs)}
        return row


def _columns(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the mean and the standard deviation of some values, under the keys <name>_mean and <name>_std."""
    return dict(zip((f"{name}_mean", f"{name}_std"), moments(values), strict=True))
