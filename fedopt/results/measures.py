"""What counts as good in a metric, by its name."""

import math


def better(metric: str, a: float, b: float) -> float:
    """The larger accuracy, the lesser of anything else; whatever is finite beats what is not."""
    finite = [v for v in (a, b) if math.isfinite(v)]
    return (max if metric.endswith("accuracy") else min)(finite, default=math.nan)


def reached(metric: str, value: float, target: float) -> bool:
    """At least the target for accuracies, at most for anything else."""
    return value >= target if metric.endswith("accuracy") else value <= target
