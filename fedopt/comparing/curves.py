"""The line of several runs, and the band around it."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from fedopt.comparing.recorded import Recorded
from fedopt.results.figures import fill, plt
from fedopt.results.folder import OVER


def curve(
    runs: Sequence[Recorded], metric: str, log: bool = False, smooth: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x, the mean of the metric, and one standard deviation (0 for one run) below and above it, all [points].

    log: of the logarithm; values from 0 down are nan. smooth: an odd number of evaluations, over which each run has centred means
    first (`_smoothed`).

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
    mean, std = covered.mean(axis=0).filled(np.nan), covered.std(axis=0, ddof=1).filled(0)
    lines = [np.exp(line) if log else line for line in (mean, mean - std, mean + std)]
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


def draw_line(axes: plt.Axes, label: str, points: Sequence[np.ndarray], style: dict[str, Any]) -> None:
    """Draw a line and its band. points: what `curve` gives."""
    x, mean, low, high = points
    axes.plot(x, mean, label=label, **{"marker": "o" if len(x) == 1 else None, **style})
    axes.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)


def from_to(counts: Collection[int]) -> str:
    """Such as '3', or '2 to 5'."""
    return " to ".join(map(str, dict.fromkeys([min(counts), max(counts)])))


def explained(lines: Sequence[Sequence[Recorded]], logs: set[bool], smooth: int = 1) -> str:
    """What a line and a band are, for the legend. lines: the runs of each; logs: whether axes are logarithmic."""
    counts = {len(runs) for runs in lines}
    several = max(counts) > 1
    each_seed_once = all(len({run.keys.get("seed") for run in runs}) == len(runs) for runs in lines)
    members = f"{from_to(counts)} {'seed' if each_seed_once else 'run'}{'s' * several}"
    if not several:
        text = f"lines: {members}"
    elif logs == {True}:
        text = f"lines: geometric mean of {members}; bands: ± one standard deviation of the logarithm"
    else:
        text = f"lines: mean of {members}; bands: ± one standard deviation"
        text += " (on logarithmic axes: of the logarithm)" * (True in logs)
    if several and any(run.status not in OVER for runs in lines for run in runs):
        text += "; runs that have not finished count as far as they have got"
    if smooth > 1:
        text += f"; values: {'geometric ' * (logs == {True})}means of {smooth} evaluations, centred"
    return fill(text, 62)
