"""The costs of a run, and the description of a metric: its label, its unit and which values are better.

A problem declares its metrics as `Metric` objects. A run records them in run.json, next to its numbers, so that no other
module depends on the name of a metric. This module does not import torch.
"""

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np

from fedopt.errors import UserError


@dataclass(frozen=True)
class Cost:
    """A cost of a run. `COSTS` contains all costs; budgets, axes, tables and the benchmark use this list.

    Args:
        name: The name of the cost axis, and the key of ``summary.json``.
        label: The label of an axis.
        meaning: What is counted.
        columns: The columns of ``metrics.csv`` whose sum is the cost.
        limit: The key of ``budget`` that limits the cost; empty if there is none.
    """

    name: str
    label: str
    meaning: str
    columns: tuple[str, ...]
    limit: str = ""

    def of(self, row: Any) -> Any:
        """Return the cost so far.

        Args:
            row: A row of ``metrics.csv``, or a data frame of its rows.

        Returns:
            One number for a row, and one number for each row of a data frame.
        """
        return sum(row[column] for column in self.columns)

    def counted(self, row: Container[str]) -> bool:
        """Return whether a row or a data frame has all columns of this cost."""
        return all(column in row for column in self.columns)


CALLS = "gradients, Hessian-vector and Jacobian-vector products of all clients"
ROUND_TRIPS = "communication rounds between the server and the clients"
VISITS = "participating clients, summed over communication rounds"
PER_EXAMPLE = "gradients and vector products of one example"
CALL_COLUMNS = ("grad_calls", "hvp_calls", "jvp_calls")
EXAMPLE_COLUMNS = ("grad_examples", "hvp_examples", "jvp_examples")
EVERY_COST = [
    Cost("round", "rounds", "steps of the server", ("round",), "rounds"),
    Cost("comm_rounds", "communication rounds", ROUND_TRIPS, ("comm_rounds",), "comm_rounds"),
    Cost("bytes", "communication", "bytes to and from all clients", ("bytes_down", "bytes_up"), "bytes"),
    Cost("seconds", "training time (s)", "seconds without evaluations", ("train_seconds",), "seconds"),
    Cost("grad_calls", "client gradients", "gradients of all clients", ("grad_calls",)),
    Cost("oracle_calls", "client gradients and vector products", CALLS, CALL_COLUMNS, "oracle_calls"),
    Cost("example_calls", PER_EXAMPLE, f"{CALLS}, times the examples of each", EXAMPLE_COLUMNS, "example_calls"),
    Cost("client_visits", "client visits", VISITS, ("client_visits",), "client_visits"),
]
COSTS = {cost.name: cost for cost in EVERY_COST}
# The columns of metrics.csv that are costs and not metrics
COUNTS = {column for cost in EVERY_COST for column in cost.columns}
# The costs that a budget can limit, by key of the budget
LIMITS = {cost.limit: cost for cost in EVERY_COST if cost.limit}


@dataclass(frozen=True)
class Metric:
    """A quantity that a problem measures, and how to read it.

    Args:
        name: The column of ``metrics.csv``.
        label: The label of an axis.
        unit: The unit, such as %; empty if there is none.
        better: Whether ``lower`` or ``higher`` values are better. ``neither``: the metric is only monitored; it cannot be
            optimised.
        scale: The scale of an axis.
        bounds: Whether a run is stopped as diverged when the absolute value exceeds ``eval.diverged`` times its value at the
            start of the run.
    """

    name: str
    label: str
    unit: str = ""
    better: Literal["lower", "higher", "neither"] = "lower"
    scale: Literal["linear", "log"] = "linear"
    bounds: bool = False

    def __post_init__(self) -> None:
        if self.better not in ("lower", "higher", "neither") or self.scale not in ("linear", "log"):
            raise UserError(f"metric {self.name}: 'better' must be lower, higher or neither, and 'scale' linear or log")

    @property
    def title(self) -> str:
        """The label followed by the unit."""
        return f"{self.label} ({self.unit})" if self.unit and self.unit not in self.label else self.label

    @property
    def sign(self) -> int:
        """The factor that makes lower values better: -1 if higher values are better, otherwise 1."""
        return -1 if self.better == "higher" else 1

    @property
    def worst(self) -> float:
        """The worst possible value: -inf if higher values are better, otherwise inf."""
        return self.sign * math.inf

    def best(self, values: Iterable[float]) -> float:
        """Return the best of the values; nan if no value is finite or ``better`` is ``neither``."""
        finite = [value for value in values if math.isfinite(value) and self.better != "neither"]
        return reduce(max if self.better == "higher" else min, finite) if finite else math.nan

    def reached(self, value: float, target: float) -> bool:
        """Return whether a value is finite and at least as good as the target.

        Raises:
            UserError: ``better`` is ``neither``.
        """
        self.check_goal(f"target {target:g}")
        return math.isfinite(value) and self.sign * value <= self.sign * target

    def check_goal(self, asked: str) -> None:
        """Check that the metric can be optimised, that is, that lower or higher values are better.

        Args:
            asked: The override that needs such a metric, such as ``keep=best``. The message starts with it.

        Raises:
            UserError: ``better`` is ``neither``.
        """
        if self.better == "neither":
            raise UserError(f"{asked}: {self.name} cannot be optimised, only monitored; choose another eval.metric")


def validates(name: str) -> bool:
    """Return whether a metric is measured on validation rows, so that methods and hyperparameters may be selected by it."""
    return name.startswith("val_")


def selected(name: str) -> str:
    """Return a note on the rows that a selection by a metric uses: validation rows or test rows.

    Args:
        name: The metric's name.

    Returns:
        The note; empty if the metric is measured on other rows.
    """
    if validates(name):
        return f"selected by {name}, on validation rows"
    if name.startswith(("test_", "common_", "personal_", "worst_personal_")):
        remedy = "define validation rows (docs/own-data.md) to keep the test rows for the final evaluation"
        return f"selected by {name}, on test rows; {remedy}"
    return ""


# Metrics of several problems
TEST_ACCURACY = Metric("test_accuracy", "test accuracy", "%", better="higher")
TEST_LOSS = Metric("test_loss", "test loss", bounds=True)
TRAIN_LOSS = Metric("train_loss", "training loss", bounds=True)
VAL_LOSS = Metric("val_loss", "validation loss", bounds=True)
BETTER_THAN_ALONE = Metric("better_than_alone", "clients better off than alone", "%", better="higher")
AS_GOOD_AS_ALONE = Metric("as_good_as_alone", "clients as well off as alone", "%", better="neither")
OBJECTIVE = Metric("objective", "objective", scale="log", bounds=True)
WORST_LOSS = Metric("worst_loss", "largest loss of a client")
DISTANCE = Metric("distance", "distance to the solution", scale="log", bounds=True)
DISTANCE_X = Metric("distance_x", "|x - x*|", scale="log")
DISTANCE_Y = Metric("distance_y", "|y - y*|", scale="log")
HYPERGRADIENT_NORM = Metric("hypergradient_norm", "norm of the hypergradient", scale="log")
# Metrics of one client
CLIENT_ACCURACY = Metric("accuracy", "accuracy on own test examples", "%", better="higher")
CLIENT_LOSS = Metric("loss", "log loss on own test examples")
CLIENT_AUC = Metric("auc", "AUC on own test examples", better="higher")
CLIENT_RMSE = Metric("rmse", "root mean squared error on own test examples")
FEW_ROWS = 10  # a client's value is drawn faintly if the client has fewer test rows
EQUAL = 1e-6  # two values of a client count as equal up to this relative difference, since they are rounded


def interval(name: str, values: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the 95 % confidence interval of each client's metric.

    A percentage such as an accuracy has the Wilson score interval. The interval of a root mean squared error follows from
    the chi-square distribution, for normally distributed errors with mean 0.

    Args:
        name: ``rmse``, or the name of a metric in percent.
        values: The clients' values, shape ``[M]``; nan for a client without a value.
        rows: The clients' numbers of test rows, shape ``[M]``.

    Returns:
        The lower and the upper ends, shape ``[M]`` each.
    """
    from scipy.special import chdtri, ndtri  # slow to import

    n = np.where(rows > 0, rows, np.nan)
    if name == CLIENT_RMSE.name:
        return values * np.sqrt(n / chdtri(n, 0.025)), values * np.sqrt(n / chdtri(n, 0.975))
    z, share = ndtri(0.975), values / 100
    middle, half = share + z**2 / (2 * n), z * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    low, high = (100 * end / (1 + z**2 / n) for end in (middle - half, middle + half))
    return low.round(12), high.round(12)  # exactly 0 or 100 if all examples are equal, without an error of 1e-15
