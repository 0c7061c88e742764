"""The costs of a run, and the description of a metric: its label and unit, which values are better. Imports no torch.

A problem declares its metrics as values of `Metric`; a run records them beside its numbers (run.json), so that nothing else
needs to know any metric by its name.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np

from fedopt.errors import UserError


@dataclass(frozen=True)
class Cost:
    """Something that a run spends. `COSTS` lists all costs: budgets, axes, tables and the benchmark take them from there.

    Args:
        name: The name of the cost axis, and the key of ``summary.json``.
        label: The label of an axis.
        meaning: What it counts.
        columns: The columns of ``metrics.csv`` whose sum it is.
        limit: The key of ``budget`` that limits it; empty if none does.
    """

    name: str
    label: str
    meaning: str
    columns: tuple[str, ...]
    limit: str = ""

    def of(self, row: Any) -> Any:
        """Return what was spent by then: one number for a row of ``metrics.csv``, one for each row of a data frame."""
        return sum(row[column] for column in self.columns)

    def counted(self, row: Any) -> bool:
        """Return whether a row or a data frame has all columns of the cost."""
        return all(column in row for column in self.columns)


CALLS = "gradients, Hessian- and Jacobian-vector products of all clients"
TRIPS = "trips from the server to clients and back"
VISITS = "clients that took part, summed over communication rounds"
OF_ONE = "gradients and vector products of one example"
CALL_COLUMNS = ("grad_calls", "hvp_calls", "jvp_calls")
EXAMPLE_COLUMNS = ("grad_examples", "hvp_examples", "jvp_examples")
EVERY_COST = [
    Cost("round", "rounds", "steps of the server", ("round",), "rounds"),
    Cost("comm_rounds", "communication rounds", TRIPS, ("comm_rounds",), "comm_rounds"),
    Cost("bytes", "communication", "bytes down and up, of all clients", ("bytes_down", "bytes_up"), "bytes"),
    Cost("seconds", "training time (s)", "seconds without evaluations", ("train_seconds",), "seconds"),
    Cost("grad_calls", "client gradients", "gradients of all clients", ("grad_calls",)),
    Cost("oracle_calls", "client gradients and vector products", CALLS, CALL_COLUMNS, "oracle_calls"),
    Cost("example_calls", OF_ONE, f"{CALLS}, times the examples of each", EXAMPLE_COLUMNS, "example_calls"),
    Cost("client_visits", "client visits", VISITS, ("client_visits",), "client_visits"),
]
COSTS = {cost.name: cost for cost in EVERY_COST}
# The columns of metrics.csv that are no metrics
COUNTS = {column for cost in EVERY_COST for column in cost.columns}
# The costs that a budget can limit, by its keys
LIMITS = {cost.limit: cost for cost in EVERY_COST if cost.limit}


@dataclass(frozen=True)
class Metric:
    """A number that a problem measures, and how it is read.

    Args:
        name: The column of ``metrics.csv``.
        label: The label of an axis.
        unit: The unit, such as %; empty if there is none.
        better: Whether ``lower`` or ``higher`` values are better. ``neither``: the metric is only watched, and cannot be a
            goal.
        scale: The scale of an axis.
        bounds: Whether a run is stopped when a value exceeds, in magnitude, ``eval.diverged`` times its value at the start.
    """

    name: str
    label: str
    unit: str = ""
    better: Literal["lower", "higher", "neither"] = "lower"
    scale: Literal["linear", "log"] = "linear"
    bounds: bool = False

    def __post_init__(self) -> None:
        if self.better not in ("lower", "higher", "neither") or self.scale not in ("linear", "log"):
            raise UserError(
                f"metric {self.name}: better must be lower, higher or neither, and scale linear or log, not "
                f"{self.better} and {self.scale}"
            )

    @property
    def title(self) -> str:
        """The label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit and self.unit not in self.label else self.label

    @property
    def sign(self) -> int:
        """The factor that makes lower values better: -1 if higher values are better, else 1."""
        return -1 if self.better == "higher" else 1

    @property
    def worst(self) -> float:
        """The worst possible value: -inf if higher values are better, else inf."""
        return self.sign * math.inf

    def best(self, values: Iterable[float]) -> float:
        """Return the best of the values; nan if no value is finite, or the metric has no direction."""
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
        """Check that the metric can be a goal: that lower or higher values are better.

        Args:
            asked: The user's request, such as ``keep=best``, with which the message begins.

        Raises:
            UserError: ``better`` is ``neither``.
        """
        if self.better == "neither":
            raise UserError(
                f"{asked}: {self.name} cannot be a goal, since neither larger nor smaller values are better; choose "
                f"another eval.metric"
            )


def validates(name: str) -> bool:
    """Return whether a metric is over rows that are named for validation, so that methods and values may be chosen by it."""
    return name.startswith("val_")


def selected(name: str) -> str:
    """Return a line on what a choice by this metric rests on: rows for validation, or test rows; '' for other metrics."""
    if validates(name):
        return f"selected on {name}, over rows that are not for testing"
    if name.startswith(("test_", "common_", "personal_", "worst_personal_")):
        remedy = "name rows for validation, as docs/own-data.md says, to keep the test rows for the end"
        return f"selected on {name}, over test rows; {remedy}"
    return ""


# What several problems measure
TEST_ACCURACY = Metric("test_accuracy", "test accuracy", "%", better="higher")
TEST_LOSS = Metric("test_loss", "test loss", bounds=True)
TRAIN_LOSS = Metric("train_loss", "training loss", bounds=True)
VAL_LOSS = Metric("val_loss", "validation loss", bounds=True)
BETTER_THAN_ALONE = Metric("better_than_alone", "clients better off than alone", "%", better="higher")
AS_GOOD_AS_ALONE = Metric("as_good_as_alone", "clients as well off as alone", "%", better="neither")
OBJECTIVE = Metric("objective", "objective", scale="log", bounds=True)
WORST_LOSS = Metric("worst_loss", "loss of the client with the largest")
DISTANCE = Metric("distance", "distance to the solution", scale="log", bounds=True)
DISTANCE_X = Metric("distance_x", "|x - x*|", scale="log")
DISTANCE_Y = Metric("distance_y", "|y - y*|", scale="log")
HYPERGRADIENT_NORM = Metric("hypergradient_norm", "norm of the hypergradient", scale="log")
# Of one client
CLIENT_ACCURACY = Metric("accuracy", "accuracy on own test examples", "%", better="higher")
CLIENT_LOSS = Metric("loss", "log loss on own test examples")
CLIENT_AUC = Metric("auc", "AUC on own test examples", better="higher")
CLIENT_RMSE = Metric("rmse", "root mean squared error on own test examples")
FEW_ROWS = 10  # a client's number that rests on fewer test rows is drawn faintly
EQUAL = 1e-6  # relative difference of two values of a client that are called equal: they are rounded


def interval(name: str, values: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of each client's 95 % interval, [M] each.

    A share in percent, such as an accuracy, has Wilson's interval. The interval of a root mean squared error is that of the
    deviation of normal errors with mean 0, by the chi-square distribution.

    Args:
        name: rmse, or the name of a share.
        values: ``[M]``, each client's value; nan if it has none.
        rows: ``[M]``, the numbers of test rows.
    """
    from scipy.special import chdtri, ndtri  # slow to import

    n = np.where(rows > 0, rows, np.nan)
    if name == CLIENT_RMSE.name:
        return values * np.sqrt(n / chdtri(n, 0.025)), values * np.sqrt(n / chdtri(n, 0.975))
    z, share = ndtri(0.975), values / 100
    middle, half = share + z**2 / (2 * n), z * np.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    low, high = (100 * end / (1 + z**2 / n) for end in (middle - half, middle + half))
    return low.round(12), high.round(12)  # 0 and 100 of equal examples, which float arithmetic misses by 1e-15
