"""Lines of several runs: the mean of a metric as a function of cost, with a band."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.scale import LogScale, ScaleBase

from fedopt.analysis.runs import Groups, Recorded
from fedopt.analysis.stats import half_width
from fedopt.drawing import Line, PlotStyle, is_share, named_scale, scale_of
from fedopt.metrics import COSTS
from fedopt.results import OVER

BANDS = {  # option `band` -> what the band around a mean shows
    "std": "± one standard deviation",
    "sem": "± one standard error",
    "ci": "95 % t-interval",
    "minmax": "least to largest value",
}
USUAL = PlotStyle()


class Lines(NamedTuple):
    """The lines of one picture, one for each group of runs.

    Attributes:
        lines: label -> line.
        scale: The scale of the y axis, as matplotlib represents it. On a logarithmic axis, means are geometric.
        share: Whether the values are percentages.
    """

    lines: dict[str, Line]
    scale: ScaleBase
    share: bool

    @property
    def drawn(self) -> dict[str, Line]:
        """Return a mapping from labels to lines as they are drawn: bands of percentages are clipped to the range 0 to 100."""
        return {label: line.clipped() for label, line in self.lines.items()} if self.share else self.lines


def y_scale(groups: Groups, metric: str, log: bool | None = None) -> ScaleBase:
    """Return the scale of the y axis for groups on one problem.

    Args:
        groups: label -> runs.
        metric: The metric on the axis.
        log: Whether the axis is logarithmic. None: it is chosen by `scale_of` from all values.
    """
    runs = [run for members in groups.values() for run in members]
    values = np.concatenate([run.values(metric) for run in runs])
    return scale_of(runs[0].metric(metric), values) if log is None else named_scale(log)


def is_log(groups: Groups, metric: str, log: bool | None = None) -> bool:
    """Return whether the y axis for groups on one problem is logarithmic, so that means are geometric.

    Args:
        groups: label -> runs.
        metric: The metric on the axis.
        log: Whether the axis is logarithmic. None: it is chosen by `scale_of` from all values.
    """
    return isinstance(y_scale(groups, metric, log), LogScale)


def lines_of(groups: Groups, metric: str, x: str = "", how: PlotStyle = USUAL) -> Lines:
    """Return the lines of one picture, one for each group of runs.

    Args:
        groups: label -> runs.
        metric: A column of metrics.csv.
        x: The cost axis. Empty: the cost axis of the runs.
        how: The options of the figure.
    """
    runs, scale = [run for members in groups.values() for run in members], y_scale(groups, metric, how.logy)
    share = is_share(runs[0].metric(metric).title, np.concatenate([run.values(metric) for run in runs]))
    return Lines({label: line_of(its, metric, scale, x, how) for label, its in groups.items()}, scale, share)


def line_of(runs: Sequence[Recorded], metric: str, scale: ScaleBase, x: str = "", how: PlotStyle = USUAL) -> Line:
    """Return the mean of a metric over runs as a function of cost, with a band.

    The line has a point at each cost at which some run was evaluated. The other runs are interpolated at this cost, linearly
    on the axes of the picture; on a logarithmic y axis the interpolation is geometric. The line begins at the cost at which
    every run has been evaluated, and ends where the first finished run ends, so that all finished runs are averaged at every
    point. A run that has not finished is averaged up to its latest evaluation.

    Args:
        runs: The runs.
        metric: A column of metrics.csv.
        scale: The scale of the y axis. If it is logarithmic, means are geometric, and values of 0 or less are nan.
        x: The cost axis. Empty: the cost axis of the runs.
        how: The options of the figure. With one run the band has no width.
    """
    shown, log = scale.get_transform(), isinstance(scale, LogScale)
    costs, values = [run.cost(x) for run in runs], [run.values(metric) for run in runs]
    ends = [cost[-1] for run, cost in zip(runs, costs, strict=True) if run.status in OVER]
    last = min(ends or [max(cost[-1] for cost in costs)])
    union = np.unique(np.concatenate(costs))
    union = union[(union >= max(cost[0] for cost in costs)) & (union <= last)]
    heights = [shown.transform(np.where((value > 0) | (not log), value, np.nan)) for value in values]
    between = (np.interp(union, *run) for run in zip(costs, heights, strict=True))
    means = np.array([*map(shown.inverted().transform, between)])
    return mean_line(union, np.ma.array(means, mask=[union > cost[-1] for cost in costs]), log, how.band)


def mean_line(x: np.ndarray, values: np.ma.MaskedArray, log: bool = False, band: str = "std") -> Line:
    """Return the line of means over runs, with a band.

    Args:
        x: The costs, [points].
        values: The values, [runs, points]. Masked values are ignored.
        log: Whether to average logarithms, so that the mean is geometric.
        band: The kind of band, one of `BANDS`.
    """
    if log:
        values = np.ma.array(np.log(np.where(values.data > 0, values.data, np.nan)), mask=values.mask)
    mean = values.mean(axis=0)
    if band == "minmax":
        low, high = values.min(axis=0), values.max(axis=0)
    else:
        std, n = values.std(axis=0, ddof=1).filled(0), np.maximum(values.count(axis=0), 1)
        reach = {"std": lambda: std, "sem": lambda: std / np.sqrt(n), "ci": lambda: half_width(std, n)}[band]()
        low, high = mean - reach, mean + reach
    filled = (line.filled(np.nan) for line in (mean, low, high))
    return Line(x, *(np.exp(line) if log else line for line in filled))


def from_to(counts: Collection[int]) -> str:
    """Return the range of some counts as text, such as '2 to 5', or '3' if all counts are equal."""
    return " to ".join(map(str, dict.fromkeys([min(counts), max(counts)])))


def explained(runs: Collection[int], logs: set[bool], member: str = "seed", x: str = "", how: PlotStyle = USUAL) -> str:
    """Return the caption of a figure, which says what its lines and bands are.

    Args:
        runs: The number of runs of each line.
        logs: The kinds of y axes that occur in the figure: True for logarithmic, False for linear.
        member: What the caption calls a run, such as seed.
        x: The cost axis, a key of `COSTS`. Empty: the caption does not name it.
        how: The options of the figure.
    """
    text = f"lines: {from_to(runs)} {member}"
    if max(runs) > 1:
        mean, of_log = "mean", " (on logarithmic axes: of the logarithm)"
        if logs == {True}:
            mean, of_log = "geometric mean", " of the logarithm"
        scale = of_log if True in logs and how.band != "minmax" else ""
        text = f"lines: {mean} of {from_to(runs)} {member}s; bands: {BANDS[how.band]}{scale}"
    return f"{text}; x: {COSTS[x].meaning}" if x in COSTS else text
