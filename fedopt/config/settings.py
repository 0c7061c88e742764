"""The parts of a config that every run has, typed."""

import math
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, StrictBool, StrictInt, model_validator
from pydantic.dataclasses import dataclass

from fedopt.config.build import STRICT
from fedopt.config.patterns import Pattern
from fedopt.console import counted
from fedopt.decimals import exact
from fedopt.metrics import LIMITS


@dataclass(frozen=True, config=STRICT)
class Budget:
    """When a run ends. None sets no limit; at least one limit must be set.

    Args:
        rounds: Rounds of the algorithm.
        comm_rounds: Communication rounds.
        bytes: Bytes to and from all clients.
        seconds: Seconds of training.
        oracle_calls: Gradients, Hessian-vector and Jacobian-vector products of all clients.
        example_calls: The same, each times the examples that it takes.
        client_visits: Clients that took part, summed over communication rounds.
        until: ``first``: the run ends at the first limit that is reached; ``last``: when all are reached.
    """

    rounds: NonNegativeInt | None
    comm_rounds: NonNegativeInt | None
    bytes: NonNegativeInt | None
    seconds: PositiveFloat | None
    oracle_calls: NonNegativeInt | None = None
    example_calls: NonNegativeInt | None = None
    client_visits: NonNegativeInt | None = None
    until: Literal["first", "last"] = "first"

    @model_validator(mode="after")
    def _some_limit(self) -> "Budget":
        if not self.limits:
            raise ValueError(f"set at least one of {', '.join(LIMITS)}")
        return self

    @cached_property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {name: limit for name in LIMITS if (limit := getattr(self, name)) is not None}

    def spent(self, row: Mapping[str, float]) -> float:
        """Return the fraction of the budget that is used; the run ends at 1. row: the counts, by the columns of metrics.csv."""
        return (max if self.until == "first" else min)(self._shares(row))

    def parts(self, points: int, row: Mapping[str, float]) -> int:
        """Return how many of ``points`` equal parts of the budget are spent.

        With ``until=last``, each limit has ``points`` parts, and the spent parts of all limits are added. These parts are
        equal in the logarithm of the cost, from a hundredth of the limit up to the limit.

        Args:
            points: The number of parts.
            row: The counts, by the columns of metrics.csv.
        """
        if self.until == "first":
            return int(exact(self.spent(row) * points))
        shares = (min(max(share, 0.01), 1.0) for share in self._shares(row))
        return sum(int(exact(points * (1 + math.log10(share) / 2))) for share in shares)

    def _shares(self, row: Mapping[str, float]) -> list[float]:
        return [LIMITS[name].of(row) / limit if limit else 1.0 for name, limit in self.limits.items()]


@dataclass(frozen=True, config=STRICT)
class Evaluation:
    """When metrics are taken: before the first round, after the last, every ``every`` rounds, and after the rounds in ``at``.

    Args:
        every: The interval in rounds.
        at: Further rounds.
        metric: The metric that keep=best and the target use. None: keep=best uses the problem's first that can be a goal.
        target: The value of the metric to reach; summary.json has the cost of reaching it. None: there is no target.
        diverged: A run is stopped if a loss, objective or distance exceeds, in magnitude, this times its value at the start
            (or times 1 if that is larger), or if any metric is not finite.
        points: The number of equal parts of the budget. Metrics are taken each time another part is spent, in place of
            ``every``. Methods with unequal costs per round are then evaluated at equal costs. None: metrics are taken by
            rounds.
    """

    every: PositiveInt
    at: list[PositiveInt]
    metric: str | None
    target: float | None
    diverged: Annotated[float, Field(gt=0, allow_inf_nan=True)]
    points: PositiveInt | None = None

    @model_validator(mode="after")
    def _target_of_metric(self) -> "Evaluation":
        if self.metric is None and self.target is not None:
            raise ValueError("eval.target needs eval.metric; set both, or eval.target=null")
        return self


Fraction = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=STRICT)
class Participation:
    """Which clients take part in a round, and how much local work they do.

    Args:
        cohort: The number of clients in a round, drawn as ``sampling`` says. None: all clients.
        cohort_from: With fewer clients than this, all take part, whatever ``cohort`` is.
        dropout: The probability that a client of the cohort drops out of a round. At least one client stays.
        least: Each client's local steps (or epochs) in a round are drawn uniformly from this number to the algorithm's. None:
            all clients do the algorithm's number.
        work: A list: the fixed local steps or epochs of each client. ``once``: each client's draw from ``least`` is the same
            in all rounds. None: draws from ``least`` differ between rounds.
        stragglers: The fraction of clients, drawn in each round, that are idle: they take no local step, but answer.
        pattern: Which clients are there in a round, of whom the cohort is drawn. None: all.
        late: How many rounds late a client's answers come: a draw from 0 to this number for each client and round. A list: the
            fixed number of each client.
        sampling: How a cohort is drawn. ``uniform``: without replacement. ``by_weight``: with replacement, by the clients'
            weights in the objective; a client counts in the mean as often as it was drawn.
    """

    cohort: PositiveInt | None = None
    dropout: Fraction = 0.0
    least: PositiveInt | None = None
    work: list[PositiveInt] | Literal["once"] | None = None
    stragglers: Fraction = 0.0
    pattern: Pattern | None = field(default=None, metadata={"before": None})
    late: NonNegativeInt | list[NonNegativeInt] = field(default=0, metadata={"before": 0})
    sampling: Literal["uniform", "by_weight"] = field(default="uniform", metadata={"before": "uniform"})
    cohort_from: NonNegativeInt = field(default=2, kw_only=True, metadata={"before": 2})

    @model_validator(mode="after")
    def _one_kind(self) -> "Participation":
        if self.work == "once" and self.least is None:
            raise ValueError("work=once needs least, from which it draws; set participation.least")
        if self.least is not None and isinstance(self.work, list):
            raise ValueError("least and work cannot be combined; set one of them to null")
        return self

    def described(self, clients: int) -> str:
        """Return a phrase on who takes part, such as '10 clients, 3 in a round'. clients: the number of clients."""
        cohort = "" if self.cohort is None else f", {self.cohort} in a round"
        cohort += ", drawn by weight" if self.sampling == "by_weight" else ""
        late = "" if self.punctual else ", answers late"
        return counted(clients, "client") + cohort + (f", {self.pattern.kind}" if self.pattern else "") + late

    @property
    def punctual(self) -> bool:
        """Whether all answers come in the round of their message."""
        return not any(self.late if isinstance(self.late, list) else [self.late])

    @property
    def uneven(self) -> bool:
        """Whether clients' local work can differ from the algorithm's number."""
        return (self.least, self.work, self.stragglers) != (None, None, 0)


@dataclass(frozen=True, config=STRICT)
class Hardware:
    """Where a run computes, and with which types of numbers.

    Args:
        device: cpu, cuda, cuda:1, and so on.
        dtype: The type of the run's numbers.
        engine: ``vectorised``: stacks of clients work at once, by torch.vmap. ``one_by_one``: one client after the other.
            ``auto`` chooses.
        stack: How many clients the vectorised engine runs at once. None: as many as fit the cache.
        threads: Threads of a process. None: OMP_NUM_THREADS, else all cores, shared among parallel jobs.
        tf32: Whether GPUs may use TensorFloat-32 for matrix products.
        autocast: The type of products and convolutions in networks. None: ``dtype``.
        deterministic: Whether only operations that give the same bits every time are allowed.
    """

    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,4})?)$")]
    dtype: Literal["float32", "float64"]
    engine: Literal["auto", "vectorised", "one_by_one"]
    stack: PositiveInt | None
    threads: Annotated[int, Field(ge=1, le=1024)] | None
    tf32: bool
    autocast: Literal["bfloat16"] | None
    deterministic: bool

    @model_validator(mode="after")
    def _single_precision(self) -> "Hardware":
        if self.autocast and self.dtype != "float32":
            raise ValueError(f"autocast={self.autocast} needs dtype=float32")
        return self


@dataclass(frozen=True, config=STRICT)
class Settings:
    """The top level of a config. conf/config.yaml says what each key means.

    Args:
        output_dir: The run's folder. None: a folder under outputs/ that is named by the overrides.
        source: The key ``from``: the folder of a run at whose checkpoint this run begins. None: it begins at the start.
        algo, problem, partitioner, dataset, logger: The nodes that `build_target` makes objects of.
    """

    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)]
    resume: StrictBool
    output_dir: str | None
    source: Annotated[Annotated[str, Field(min_length=1)] | None, Field(alias="from")]
    budget: Budget
    eval: Evaluation
    hardware: Hardware
    participation: Participation
    algo: dict[str, Any]
    problem: dict[str, Any]
    partitioner: dict[str, Any]
    dataset: dict[str, Any]
    logger: dict[str, Any]
    keep: Literal["last", "best"] = "last"
    preset: str = "auto"
