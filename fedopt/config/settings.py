"""The typed settings that every run has."""

import math
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, StrictBool, StrictInt, model_validator
from pydantic.dataclasses import dataclass

from fedopt.config.build import STRICT
from fedopt.config.patterns import Pattern
from fedopt.config.robust import Hostile, Rule
from fedopt.console import counted
from fedopt.decimals import exact
from fedopt.metrics import LIMITS


@dataclass(frozen=True, config=STRICT)
class Budget:
    """The limits at which a run ends. None means no limit; at least one limit must be set.

    Args:
        rounds: Rounds of the algorithm.
        comm_rounds: Communication rounds.
        bytes: Bytes to and from all clients.
        seconds: Seconds of training, without evaluations.
        oracle_calls: Gradients, Hessian-vector and Jacobian-vector products of all clients.
        example_calls: Gradients, Hessian-vector and Jacobian-vector products, each multiplied by its number of examples.
        client_visits: Participating clients, summed over communication rounds.
        until: ``first``: the run ends when the first limit is reached. ``last``: the run ends when all limits are reached.
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
    def _is_limited(self) -> "Budget":
        """Refuse a budget without a limit."""
        if not self.limits:
            raise ValueError(f"set at least one of {', '.join(LIMITS)}")
        return self

    @cached_property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {name: limit for name in LIMITS if (limit := getattr(self, name)) is not None}

    def spent(self, row: Mapping[str, float]) -> float:
        """Return the fraction of the budget that has been used. The run ends at 1.

        Args:
            row: The costs so far, by column of metrics.csv.
        """
        return (max if self.until == "first" else min)(self._shares(row))

    def segments(self, points: int, row: Mapping[str, float]) -> int:
        """Return how many of ``points`` equal segments of the budget have been used. The run is evaluated after each segment.

        With ``until=last``, the segments are equal in the logarithm of the cost instead, from 1 % of a limit to the limit. They
        are counted separately for each limit, and the counts are added.

        Args:
            points: The number of segments, as set by ``eval.points``.
            row: The costs so far, by column of metrics.csv.
        """
        if self.until == "first":
            return int(exact(self.spent(row) * points))
        shares = (min(max(share, 0.01), 1.0) for share in self._shares(row))
        return sum(int(exact(points * (1 + math.log10(share) / 2))) for share in shares)

    def _shares(self, row: Mapping[str, float]) -> list[float]:
        """Return the used fraction of each limit that is set.

        Args:
            row: The costs so far, by column of metrics.csv.
        """
        return [LIMITS[name].of(row) / limit if limit else 1.0 for name, limit in self.limits.items()]


@dataclass(frozen=True, config=STRICT)
class Evaluation:
    """When a run is evaluated. It is always evaluated before the first round and after the last round.

    Args:
        every: The number of rounds between two evaluations.
        at: Additional rounds after which the run is evaluated.
        metric: The metric for keep=best and the target. None: keep=best uses the problem's first metric that can be optimised.
        target: The value of the metric to reach; summary.json contains the cost of reaching it. None: no target.
        diverged: A run is stopped if the absolute value of a loss, objective or distance exceeds this factor times its value
            at the start (or times 1, if that is larger), or if any metric is not finite.
        points: The number of equal segments of the budget. The run is evaluated after each segment instead of after every
            ``every`` rounds, so that methods with different costs per round are evaluated at equal costs. None: evaluate by
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
        """Refuse a target without a metric."""
        if self.metric is None and self.target is not None:
            raise ValueError("eval.target needs eval.metric; set both, or eval.target=null")
        return self


Fraction = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=STRICT)
class Participation:
    """The clients that take part in a round, and their local work.

    Args:
        cohort: The number of clients that are sampled in a round. None: all clients.
        cohort_from: If there are fewer clients than this number, all clients take part and ``cohort`` is ignored.
        dropout: The probability that a client of the cohort drops out of a round. At least one client stays.
        least: The smallest number of local steps or epochs. Each client's number in a round is sampled uniformly between this
            number and the algorithm's number. None: all clients use the algorithm's number.
        work: A list: the fixed number of local steps or epochs of each client. ``once``: each client's number is sampled once
            for all rounds. None: numbers are sampled in each round.
        stragglers: The fraction of clients, sampled in each round, that are idle: they answer without a local step.
        pattern: The availability model (`config.patterns`); the cohort is sampled from the available clients. None: all
            clients are always available.
        late: The largest delay of a client's answers in rounds; the delay of each client and round is sampled between 0 and
            this number. A list: the fixed delay of each client.
        sampling: How a cohort is sampled. ``uniform``: without replacement. ``by_weight``: with replacement, with the clients'
            weights in the objective as probabilities; a client counts in the mean as often as it was sampled.
        hostile: The clients that send wrong answers, and their attack (`config.robust`). Metrics ignore hostile clients.
            None: all clients are honest.
        rule: How the server combines answers (`config.robust`). None: by the weighted mean.
    """

    cohort: PositiveInt | None = None
    dropout: Fraction = 0.0
    least: PositiveInt | None = None
    work: list[PositiveInt] | Literal["once"] | None = None
    stragglers: Fraction = 0.0
    pattern: Pattern | None = field(default=None, metadata={"before": None})
    late: NonNegativeInt | list[NonNegativeInt] = field(default=0, metadata={"before": 0})
    sampling: Literal["uniform", "by_weight"] = field(default="uniform", metadata={"before": "uniform"})
    hostile: Hostile | None = field(default=None, metadata={"before": None})
    rule: Rule | None = field(default=None, metadata={"before": None})
    cohort_from: NonNegativeInt = field(default=2, kw_only=True, metadata={"before": 2})

    @model_validator(mode="after")
    def _one_kind(self) -> "Participation":
        """Refuse values of ``work`` and ``least`` that contradict each other."""
        if self.work == "once" and self.least is None:
            raise ValueError("work=once needs participation.least, the smallest number of local steps; set it")
        if self.least is not None and isinstance(self.work, list):
            raise ValueError("least and work cannot be combined; set one of them to null")
        return self

    def described(self, clients: int) -> str:
        """Return a phrase that describes the participation, such as '10 clients, 3 per round'.

        Args:
            clients: The number of clients.
        """
        cohort = "" if self.cohort is None else f", {self.cohort} per round"
        cohort += ", sampled by weight" if self.sampling == "by_weight" else ""
        late = "" if self.punctual else ", delayed answers"
        pattern = f", {self.pattern.kind} availability" if self.pattern else ""
        hostile = f", {len(self.hostile.clients(clients))} hostile ({self.hostile.attack})" if self.hostile else ""
        rule = f", combined by {self.rule.kind}" if self.rule else ""
        return counted(clients, "client") + cohort + pattern + late + hostile + rule

    def ignored(self, clients: int) -> list[str]:
        """Return the keys that have no effect, since everyone takes part: ``cohort``, ``sampling`` or both.

        Args:
            clients: The number of clients.
        """
        few = self.cohort is not None and clients < self.cohort_from
        everyone = not self.dropout and (few or self.cohort in (None, clients))
        return ["cohort"] * few + ["sampling"] * (everyone and self.sampling == "by_weight")

    @property
    def punctual(self) -> bool:
        """Whether all answers arrive in the same round as the message."""
        return not any(self.late if isinstance(self.late, list) else [self.late])

    @property
    def uneven(self) -> bool:
        """Whether the local work of clients can differ from the algorithm's number."""
        return (self.least, self.work, self.stragglers) != (None, None, 0)


@dataclass(frozen=True, config=STRICT)
class Hardware:
    """The device and the numerical precision of a run.

    Args:
        device: ``cpu``, ``cuda``, ``cuda:1``, and so on.
        dtype: The dtype of the run's tensors.
        engine: How the computations of clients are executed. ``vectorised``: for several clients in parallel, with
            torch.vmap. ``one_by_one``: one client after another. ``auto``: fedopt chooses.
        stack: The number of clients that the vectorised engine runs in parallel. None: as many as fit into the CPU's cache.
        threads: The number of threads of a process. None: OMP_NUM_THREADS if it is set, otherwise all cores, shared among
            parallel jobs.
        tf32: Whether GPUs may use TensorFloat-32 for matrix products.
        autocast: The dtype of matrix products and convolutions in networks. None: ``dtype``.
        deterministic: Whether to allow only operations whose results are reproducible bit by bit.
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
        """Refuse autocasting in double precision."""
        if self.autocast and self.dtype != "float32":
            raise ValueError(f"autocast={self.autocast} needs dtype=float32; set both, or autocast=null")
        return self


@dataclass(frozen=True, config=STRICT)
class Settings:
    """The top level of a config. The comments in conf/config.yaml explain each key.

    Args:
        seed: The seed of all random numbers.
        resume: Whether to resume the run in ``output_dir``.
        output_dir: The run's folder. None: a folder under outputs/ whose name follows from the overrides.
        source: The key ``from``: the folder of a run from whose checkpoint this run starts. None: a fresh start.
        budget: The limits at which the run ends.
        eval: When the run is evaluated.
        hardware: The device and the numerical precision.
        participation: Which clients take part in a round.
        algo: The config node of the algorithm, from which `build_target` builds an object.
        problem: The config node of the problem.
        partitioner: The config node of the partitioner.
        dataset: The config node of the data set.
        logger: The config nodes of the experiment trackers.
        keep: Whether a checkpoint also stores the variables at the best evaluation.
        preset: Which tuned values apply: ``auto``, ``none``, or a name <algorithm>/<problem>.
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
