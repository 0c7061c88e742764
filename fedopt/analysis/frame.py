"""The tidy data frame of several runs, with one row per evaluation."""

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from fedopt.analysis.groups import differing
from fedopt.analysis.runs import Recorded
from fedopt.metrics import COSTS

NAMES = {"algo": "method", "problem": "problem", "seed": "seed"}  # config key -> column that every table has


def frame(runs: Sequence[Recorded]) -> pd.DataFrame:
    """Return a data frame with one row per evaluation of each run.

    The columns are the run's folder (``run``), its method, problem and seed; the other config keys in which the runs differ;
    the round and the cumulative costs; and the metrics. A column of config values is numeric if all its values are numbers.
    The frame's ``attrs["metrics"]`` maps the name of each metric to its description, a dictionary of the fields of `Metric`.

    Args:
        runs: At least one run.
    """
    keys = NAMES | {key: key for key in differing(runs) if key not in NAMES}
    metrics = {name: metric for run in runs for name, metric in run.metrics.items()}
    tables = []
    for run in runs:
        facts = {column: run.keys.get(key) for key, column in keys.items()}
        costs = {x: run.cost(x) for x, cost in COSTS.items() if cost.counted(run.table)}
        values = {name: run.values(name) for name in run.metrics if name in run.table}
        tables.append(pd.DataFrame({"run": str(run.folder), **facts, **costs, **values}))
    table = pd.concat(tables, ignore_index=True)
    for column in keys.values():
        numbers = pd.to_numeric(table[column], errors="coerce")
        table[column] = table[column] if numbers.isna().any() else numbers
    table.attrs["metrics"] = {name: asdict(metric) for name, metric in metrics.items()}
    return table
