"""The functions that a measure may call, as methods of the finished runs of one seed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedopt.analysis import Recorded
from fedopt.errors import nearest
from fedopt.metrics import COSTS, Metric


class Unmeasurable(Exception):
    """A measure has no value for a seed; the message says why."""


@dataclass(frozen=True)
class SeedRuns:
    """The finished runs of one seed. The public methods are the functions that a measure may call.

    The first argument of each method is the label of a line (a configuration), except for `fit`, whose argument is the name of
    a series of points. The argument ``metric`` of a method is a column of metrics.csv (empty: the metric on the figure's first
    y axis), and ``x`` is a cost axis (empty: the figure's cost axis). Values that are not finite count as infinitely bad. A
    method that has no value raises Unmeasurable.

    Args:
        runs: label -> run.
        x: The cost axis of the figure.
        metric: The metric on the figure's first y axis.
        points: series -> {x: label of the line that gives the point at x}.
        point: series -> the `Measure` whose values are the y of its points.
    """

    runs: Mapping[str, Recorded]
    x: str
    metric: str
    points: Mapping[str, Mapping[float, str]]
    point: Mapping[str, Any]

    def final(self, label: str, metric: str = "") -> float:
        """Return the value of the metric at the last evaluation.

        Args:
            label: The label of the line.
            metric: A column of metrics.csv. Empty: the metric on the figure's first y axis.
        """
        return float(self._values(label, metric)[-1])

    def best(self, label: str, metric: str = "") -> float:
        """Return the best value of a metric over all evaluations of a run; nan if none is finite.

        Args:
            label: The label of the line.
            metric: A column of metrics.csv. Empty: the metric on the figure's first y axis.
        """
        return self._described(label, metric).best(map(float, self._values(label, metric)))

    def at(self, label: str, where: float, metric: str = "", x: str = "") -> float:
        """Return the value of the metric at the last evaluation whose cost is at most `where`.

        Args:
            label: The label of the line.
            where: A cost on the axis `x`.
            metric: A column of metrics.csv. Empty: the metric on the figure's first y axis.
            x: The cost axis. Empty: the figure's cost axis.
        """
        return float(self._values(label, metric, where, x)[-1])

    def first(self, label: str, value: float, metric: str = "", x: str = "", or_end: bool = False, n: int = 1) -> float:
        """Return the cost at which the mean of the latest n evaluations first reaches a value.

        If the mean never reaches the value, the result is inf or, with `or_end`, the cost at the end of the run. The cost at
        the end is a lower bound, so a claim that the run is slow is judged conservatively.

        Args:
            label: The label of the line.
            value: The value of the metric to reach.
            metric: A column of metrics.csv. Empty: the metric on the figure's first y axis.
            x: The cost axis. Empty: the figure's cost axis.
            or_end: Whether to return the cost at the end of the run if the value is not reached.
            n: The number of evaluations that are averaged.
        """
        reached, values = self._described(label, metric).reached, self._values(label, metric)
        hits = [j >= n and reached(np.mean(values[j - n : j]), value) for j in range(1, len(values) + 1)]
        return self._first(label, hits, x, or_end)

    def smooth(self, label: str, n: int = 0, metric: str = "", until: float = math.inf) -> float:
        """Return the mean of the metric over the last n evaluations.

        Args:
            label: The label of the line.
            n: The number of evaluations. 0: the last fifth of them, at least 3.
            metric: A column of metrics.csv. Empty: the metric on the figure's first y axis.
            until: Only evaluations whose cost is at most this number are used.
        """
        return float(np.mean(self._last(label, n, metric, until)))

    def noise(self, label: str, n: int, metric: str = "", until: float = math.inf) -> float:
        """Return the standard deviation of the differences between successive values, over the last n evaluations.

        Args:
            label: The label of the line.
            n: The number of evaluations. 0: the last fifth of them, at least 3.
            metric: A column of metrics.csv. Empty: the metric on the figure's first y axis.
            until: Only evaluations whose cost is at most this number are used.

        Raises:
            Unmeasurable: There are fewer than three evaluations.
        """
        last = self._last(label, n, metric, until)
        if len(last) < 3:
            raise Unmeasurable(f"{label} has fewer than three evaluations to take differences of")
        return float(np.std(np.diff(last), ddof=1))

    def rate(self, label: str, start: float, end: float, metric: str = "") -> float:
        """Return the least-squares slope of log10(metric) against cost.

        Args:
            label: The label of the line.
            start, end: The evaluations whose costs are from `start` to `end` are used.
            metric: A column of metrics.csv. Empty: the metric on the figure's first y axis.
        """
        x, values = self._spent(label, ""), self._values(label, metric)
        within = (start <= x) & (x <= end)
        if np.count_nonzero(within) < 2:
            raise Unmeasurable(f"{label} has fewer than two evaluations from {start:g} to {end:g}")
        return float(np.polyfit(x[within], np.log10(values[within]), 1)[0])

    def first_mean_square(self, label: str, value: float, metric: str = "") -> float:
        """Return the cost at which the running mean of the squared metric first reaches a value; inf if it never does.

        The mean is over all evaluations so far. It has reached the value when it is at most the value.

        Args:
            label: The label of the line.
            value: The value to reach.
            metric: A column of metrics.csv. Empty: the metric on the figure's first y axis.
        """
        squares = self._values(label, metric) ** 2
        hits = np.cumsum(squares) / np.arange(1, len(squares) + 1) <= value
        return self._first(label, hits.tolist(), "", or_end=False)

    def mean_square(self, label: str, n: int, metric: str = "") -> float:
        """Return the mean of the squared values of the metric over the last n evaluations.

        Args:
            label: The label of the line.
            n: The number of evaluations. 0: the last fifth of them, at least 3.
            metric: A column of metrics.csv. Empty: the metric on the figure's first y axis.
        """
        return float(np.mean(self._last(label, n, metric) ** 2))

    def per_round(self, label: str, column: str) -> float:
        """Return the last value of a column of metrics.csv, divided by the number of the last round.

        Args:
            label: The label of the line.
            column: The column, such as a cumulative cost.
        """
        return self.final(label, column) / self.final(label, "round")

    def diverged(self, label: str) -> float:
        """Return 1 if the run of the line with this label diverged, else 0."""
        return float(self._run(label).status == "diverged")

    def setting(self, label: str, key: str) -> float:
        """Return the value of a config key as a number.

        Args:
            label: The label of the line whose run is read.
            key: The dotted key, such as 'algo.p'.
        """
        keys = self._run(label).keys
        if key not in keys:
            raise Unmeasurable(f"there is no {key}{nearest(key, list(keys))}")
        return float(keys[key])

    def fit(self, series: str) -> float:
        """Return the least-squares slope of log(y) against log(x) over the points (x, y) of a series of the figure."""
        points = self.points[series].items()
        y = [self.point[series].value(self, x=x, line=label) for x, label in points]
        return float(np.polyfit(np.log([x for x, _ in points]), np.log(y), 1)[0])

    def _first(self, label: str, hits: list[bool], x: str, or_end: bool) -> float:
        """Return the cost of the first evaluation that is True in ``hits``.

        Args:
            label: The label of the line.
            hits: One Boolean per evaluation.
            x: The cost axis. Empty: the figure's cost axis.
            or_end: What is returned if no evaluation is True: the cost at the end of the run (True), or inf (False).
        """
        spent = self._spent(label, x)
        return float(spent[hits.index(True)] if any(hits) else spent[-1] if or_end else math.inf)

    def _run(self, label: str) -> Recorded:
        """Return the run of the line with this label. Raise Unmeasurable if there is none."""
        if label not in self.runs:
            raise Unmeasurable(f"{label} has no run that ended")
        return self.runs[label]

    def _described(self, label: str, metric: str) -> Metric:
        """Return the description of a metric of the line's run; an empty name stands for the figure's first y axis."""
        return self._run(label).metric(metric or self.metric)

    def _values(self, label: str, metric: str, until: float = math.inf, x: str = "") -> np.ndarray:
        """Return the values of a metric at the evaluations whose cost is at most `until`.

        Values that are not finite are replaced with the worst value.

        Args:
            label: The label of the line.
            metric: A column of metrics.csv. Empty: the metric on the figure's first y axis.
            until: The largest cost of the evaluations.
            x: The cost axis. Empty: the figure's cost axis.

        Raises:
            Unmeasurable: The run lacks the metric, or has no such evaluation.
        """
        run, name = self._run(label), metric or self.metric
        if name not in run.table:
            raise Unmeasurable(f"{label} has no {name}{nearest(name, [*map(str, run.table)])}")
        worst = run.metric(name).worst
        values = np.nan_to_num(run.values(name), nan=worst, posinf=worst, neginf=worst)
        if not len(values := values[self._spent(label, x) <= until]):
            raise Unmeasurable(f"{label} has no evaluation up to {until:g}")
        return values

    def _last(self, label: str, n: int, metric: str, until: float = math.inf) -> np.ndarray:
        """Return the values of a metric at its last n evaluations.

        Args:
            label: The label of the line.
            n: The number of evaluations. 0: the last fifth of them, at least 3.
            metric: A column of metrics.csv. Empty: the metric on the figure's first y axis.
            until: Only evaluations whose cost is at most this number are used.
        """
        values = self._values(label, metric, until)
        return values[-(n or max(3, len(values) // 5)) :]

    def _spent(self, label: str, x: str) -> np.ndarray:
        """Return the cumulative cost of the line's run at each evaluation; an empty `x` stands for the figure's cost axis."""
        if (x or self.x) not in COSTS:
            raise Unmeasurable(f"x={x}: must be one of {', '.join(COSTS)}")
        return self._run(label).cost(x or self.x)
