"""The line of several runs, and the band around it."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from fedopt.analysis.runs import Recorded
from fedopt.drawing.figures import plt
from fedopt.metrics import COSTS
from fedopt.results.folder import OVER

FEW = 8  # points of a line, which may have bars instead of a band
BANDS = {  # what is drawn around a mean, in words
    "std": "± one standard deviation",
    "sem": "± one standard error",
    "ci": "95 % t-interval",
    "minmax": "least to largest value",
}


def curve(
    runs: Sequence[Recorded], metric: str, log: bool = False, smooth: int = 1, band: str = "std"
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x, the mean of the metric, and the ends of the band around it, all [points].

    log: of the logarithm; values from 0 down are nan. smooth: an odd number of evaluations, over which each run has centred means
    first (`_smoothed`). band: of `BANDS`; of one run it is the line.

    The curve has the union of the runs' x, from where all runs have begun to where the first one ends, so that no run drops out of
    the mean by ending; one that is still on its way counts as far as it has got.
    """
    points = [_smoothed(run.cost(), run.values(metric), smooth, log) for run in runs]
    costs = [cost for cost, _ in points]
    ends = [cost[-1] for run, cost in zip(runs, costs, strict=True) if run.status in OVER]
    last = min(ends or [max(cost[-1] for cost in costs)])
    union = np.unique(np.concatenate(costs))
    x = union[(union >= max(cost[0] for cost in costs)) & (union <= last)]
    values = np.array([np.interp(x, cost, value) for cost, value in points])
    if log:
        values = np.log(np.where(values > 0, values, np.nan))
    covered = np.ma.array(values, mask=[x > cost[-1] for cost in costs])
    mean, low, high = (line.filled(np.nan) for line in (covered.mean(axis=0), covered.min(axis=0), covered.max(axis=0)))
    if band != "minmax":
        std, n = covered.std(axis=0, ddof=1).filled(0), covered.count(axis=0)
        reach = std if band == "std" else std / np.sqrt(np.maximum(n, 1))
        if band == "ci":
            from scipy.stats import t  # half a second

            reach = reach * t.ppf(0.975, np.maximum(n - 1, 1))
        low, high = mean - reach, mean + reach
    lines = [np.exp(line) if log else line for line in (mean, low, high)]
    return x, lines[0], lines[1], lines[2]


def _smoothed(cost: np.ndarray, values: np.ndarray, n: int, log: bool) -> tuple[np.ndarray, np.ndarray]:
    """Means of x and of the value over the n evaluations around each one, the value's geometric where `log`; what is nan stays so.

    The x is averaged as well, so that a straight line stays one however evaluations are spaced. Towards the ends the window has
    fewer evaluations, as many before as after, so that a line begins and ends where the run does.
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


def draw_line(
    axes: plt.Axes,
    label: str,
    points: Sequence[np.ndarray] | np.ndarray,
    style: dict[str, Any],
    beside: float | None = None,
) -> None:
    """Draw a line and its band. points: what `curve` gives.

    beside: None, or from -0.5 to 0.5 where `FEW` points have bars instead, beside those of other lines.
    """
    x, mean, low, high = points
    if beside is not None and 1 < len(x) <= FEW:
        axes.plot(x, mean, color=style["color"], alpha=0.4)
        x = x + 0.4 * beside * np.diff(x).min()
        axes.plot(x, mean, label=label, **style | {"markevery": None, "linestyle": "none"})
        axes.vlines(x, low, high, color=style["color"])
        return
    axes.plot(x, mean, label=label, **{"marker": "o" if len(x) == 1 else None, **style})
    axes.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)


def from_to(counts: Collection[int]) -> str:
    """Such as '3', or '2 to 5'."""
    return " to ".join(map(str, dict.fromkeys([min(counts), max(counts)])))


def explained(
    counts: Collection[int], logs: set[bool], member: str = "seed", smooth: int = 1, band: str = "std", x: str = ""
) -> str:
    """What a line and a band are. counts: of the runs, each a `member`; logs: whether axes are logarithmic; x: what is spent."""
    several, log = max(counts) > 1, logs == {True}
    text = f"lines: {from_to(counts)} {member}"
    if several:
        scale = " of the logarithm" if log else " (on logarithmic axes: of the logarithm)" * (True in logs)
        text = f"lines: {'geometric ' * log}mean of {from_to(counts)} {member}s; bands: {BANDS[band]}{scale * (band != 'minmax')}"
    if smooth > 1:
        text += f"; values: {'geometric ' * log}means of {smooth} evaluations, centred"
    return f"{text}; x: {COSTS[x][2]}" if x in COSTS else text
