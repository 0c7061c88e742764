"""Lines of several runs: the mean of a metric as a function of cost, with a band."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.scale import LogScale, ScaleBase

from fedopt.analysis.runs import Groups, Recorded
from fedopt.analysis.stats import half_width
from fedopt.drawing import Line, is_share, named_scale, scale_of
from fedopt.metrics import COSTS
from fedopt.results import OVER

BANDS = {  # what is drawn around a mean, in words
    "std": "± one standard deviation",
    "sem": "± one standard error",
    "ci": "95 % t-interval",
    "minmax": "least to largest value",
}


class Lines(NamedTuple):
    """The lines of groups of runs in one picture.

    lines: label -> line. scale: that of the y axis; if it is logarithmic, means are geometric. share: whether the values are
        percentages.
    """

    lines: dict[str, Line]
    scale: ScaleBase
    share: bool

    @property
    def drawn(self) -> dict[str, Line]:
        """Return label -> line as drawn: if the values are percentages, bands are cut to 0 to 100."""
        return {label: line.clipped() for label, line in self.lines.items()} if self.share else self.lines


def y_scale(groups: Groups, metric: str, log: bool | None = None) -> ScaleBase:
    """Return the scale of the y axis of groups on one problem. log: whether it is logarithmic; None: as `scale_of` all values."""
    runs = [run for members in groups.values() for run in members]
    values = np.concatenate([run.values(metric) for run in runs])
    return scale_of(runs[0].metric(metric), values) if log is None else named_scale(log)


def is_log(groups: Groups, metric: str, log: bool | None = None) -> bool:
    """Return whether the y axis of groups on one problem is logarithmic, so that means are geometric. log: as in `y_scale`."""
    return isinstance(y_scale(groups, metric, log), LogScale)


def lines_of(
    groups: Groups,
    metric: str,
    x: str = "",
    log: bool | None = None,
    smooth: int = 1,
    band: str = "std",
    logx: bool = False,
) -> Lines:
    """Return the lines of groups of runs for one picture.

    groups: label -> runs. metric: a column of metrics.csv. log: as in `y_scale`. x, smooth, band, logx: as in `line_of`.
    """
    runs, scale = [run for members in groups.values() for run in members], y_scale(groups, metric, log)
    share = is_share(runs[0].metric(metric).title, np.concatenate([run.values(metric) for run in runs]))
    how: Any = (smooth, band, x, logx)
    return Lines({label: line_of(its, metric, scale, *how) for label, its in groups.items()}, scale, share)


def line_of(
    runs: Sequence[Recorded],
    metric: str,
    scale: ScaleBase,
    smooth: int = 1,
    band: str = "std",
    x: str = "",
    logx: bool = False,
) -> Line:
    """Return the mean of a metric over runs as a function of cost, with a band.

    The line has a point at each cost at which some run was evaluated. Other runs are interpolated there by a line that is
    straight on the axes of the picture, which on a logarithmic y axis is geometric. It begins where all runs have begun, and
    ends where the first finished run ends, so no run drops out by ending. A run that has not finished is averaged up to its
    latest evaluation.

    Args:
        runs: The runs.
        metric: A column of metrics.csv.
        scale: The scale of the y axis. If it is logarithmic, means are geometric, and values of 0 or less are nan.
        smooth: An odd number. Each run's values are first replaced by centred means over this many evaluations; 1: unchanged.
        band: One of `BANDS`. With one run the band has no width.
        x: The cost axis. Empty: that of the runs.
        logx: Whether the x axis is logarithmic. A cost of 0 is then placed at half the smallest other one.
    """
    along, shown, log = named_scale(logx).get_transform(), scale.get_transform(), isinstance(scale, LogScale)
    points = [_smoothed(run.cost(x), run.values(metric), smooth, log) for run in runs]
    costs = [cost for cost, _ in points]
    ends = [cost[-1] for run, cost in zip(runs, costs, strict=True) if run.status in OVER]
    last = min(ends or [max(cost[-1] for cost in costs)])
    union = np.unique(np.concatenate(costs))
    union = union[(union >= max(cost[0] for cost in costs)) & (union <= last)]
    least = min(union[union > 0], default=1) / 2 if logx else -np.inf
    places = [along.transform(np.maximum(cost, least)) for cost in (union, *costs)]
    heights = [shown.transform(np.where((value > 0) | (not log), value, np.nan)) for _, value in points]
    between = (np.interp(places[0], *run) for run in zip(places[1:], heights, strict=True))
    values = np.array([*map(shown.inverted().transform, between)])
    return mean_line(union, np.ma.array(values, mask=[union > cost[-1] for cost in costs]), log, band)


def mean_line(x: np.ndarray, values: np.ma.MaskedArray, log: bool = False, band: str = "std") -> Line:
    """Return the line of the means over runs, with a band. x: [points]. values: [runs, points]; masked ones do not count.

    log: whether to average logarithms. band: as in `line_of`.
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


def _smoothed(cost: np.ndarray, values: np.ndarray, n: int, log: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return costs and values after centred means over n evaluations; nan stays nan.

    With ``log``, means of values are geometric. Costs are averaged too, so that a straight line stays straight with uneven
    spacing. Near the ends the window shrinks on both sides, so the line begins and ends where the run does.
    """
    if n == 1:
        return cost, values
    index = np.arange(len(values))
    reach = np.minimum(n // 2, np.minimum(index, index[::-1]))
    usable = np.isfinite(values) & ((values > 0) | (not log))
    scaled = np.log(values, where=usable, out=np.full(len(values), np.nan)) if log else values
    windows = [slice(i - r, i + r + 1) for i, r in zip(index, reach, strict=True)]
    means = np.array([scaled[w][usable[w]].mean() if usable[i] else np.nan for i, w in enumerate(windows)])
    return np.array([cost[w].mean() for w in windows]), np.exp(means) if log else means


def thinned(points: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return at most ``most`` evenly spaced rows, always with the first and the last."""
    return points.iloc[np.unique(np.linspace(0, len(points) - 1, most).round().astype(int))]


def from_to(counts: Collection[int]) -> str:
    """Return the range of some numbers as text, such as '2 to 5', or '3' if all are equal."""
    return " to ".join(map(str, dict.fromkeys([min(counts), max(counts)])))


def explained(
    counts: Collection[int], logs: set[bool], member: str = "seed", smooth: int = 1, band: str = "std", x: str = ""
) -> str:
    """Return a caption that says what the lines and bands are.

    Args:
        counts: The number of runs of each line.
        logs: The kinds of y axes in the figure: True for logarithmic, False for linear.
        member: The noun for a run, such as seed.
        smooth: As in `line_of`.
        band: One of `BANDS`.
        x: The cost axis. Empty: the caption leaves it out.
    """
    several, log = max(counts) > 1, logs == {True}
    text = f"lines: {from_to(counts)} {member}"
    if several:
        of_log = " of the logarithm" if log else " (on logarithmic axes: of the logarithm)"
        scale = of_log if True in logs and band != "minmax" else ""
        text = f"lines: {'geometric ' if log else ''}mean of {from_to(counts)} {member}s; bands: {BANDS[band]}{scale}"
    if smooth > 1:
        text += f"; values: {'geometric ' if log else ''}means of {smooth} evaluations, centred"
    return f"{text}; x: {COSTS[x].meaning}" if x in COSTS else text
