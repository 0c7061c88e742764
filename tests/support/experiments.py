"""Experiment files and runs made by hand, for the tests of published experiments."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedopt.analysis.runs import read as read_run
from fedopt.papers.measure import Measure
from fedopt.papers.seed_runs import SeedRuns

TINY = {"problem": {"examples": 40}, "budget": {"rounds": 4}, "eval": {"every": 1}, "hardware": {"threads": 1}}
FEDMSA = {"paper": "Test", "title": "a test", "minutes": 1, "seeds": 2, "y": "distance", "lines": {"FedMSA": []}}


def seed_runs(
    runs: Mapping[str, Path], metric: str = "test_accuracy", x: str = "round", points: Any = None, point: Any = None
) -> SeedRuns:
    """runs: label -> run folder."""
    read = {label: read_run(folder, x) for label, folder in runs.items()}
    return SeedRuns(read, x, metric, points or {}, point or {})


def values(*given: Any, **more: Any) -> Callable[[str], float]:
    """What gives measures their values on such runs."""
    return lambda text: Measure.parse(text).value(seed_runs(*given, **more))
