"""The parts of a config that every run has."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, StrictBool, StrictInt, model_validator
from pydantic.dataclasses import dataclass

from fedopt.config.build import STRICT
from fedopt.console.texts import counted


@dataclass(frozen=True, config=STRICT)
class Budget:
    """When a run ends: at whichever limit is reached first, or at the last of them; seconds are of training time. None is no limit.

    oracle_calls: gradients, Hessian-vector and Jacobian-vector products, all clients together.
    """

    rounds: NonNegativeInt | None
    comm_rounds: NonNegativeInt | None
    bytes: NonNegativeInt | None
    seconds: PositiveFloat | None
    oracle_calls: NonNegativeInt | None = None
    until: Literal["first", "last"] = "first"

    @model_validator(mode="after")
    def _some_limit(self) -> "Budget":
        if not self.limits:
            raise ValueError(f"set at least one of {', '.join(key for key in asdict(self) if key != 'until')}")
        return self

    @property
    def limits(self) -> dict[str, float]:
        """Those that there are, by name."""
        return {name: limit for name, limit in asdict(self).items() if name != "until" and limit is not None}

    def spent(self, **used: float) -> float:
        """The fraction used of the limit that ends the run, by their names; it ends at 1."""
        return (max if self.until == "first" else min)(self._shares(used))

    def parts(self, points: int, **used: float) -> int:
        """How many equal parts of the budget are spent, of so many. Until the last limit they are parts of the logarithm of each
        limit, from a hundredth on, and add up."""
        if self.until == "first":
            return int(self.spent(**used) * points + 1e-9)  # 0.29 of 100 is 29
        shares = (min(max(share, 0.01), 1.0) for share in self._shares(used))
        return sum(int(points * (1 + math.log10(share) / 2) + 1e-9) for share in shares)

    def _shares(self, used: Mapping[str, float]) -> list[float]:
        return [used[name] / limit if limit else 1.0 for name, limit in self.limits.items()]


@dataclass(frozen=True, config=STRICT)
class Evaluation:
    """Rounds at which metrics are taken: 0, the last, every `every` rounds, and those in `at`.

    points: number of equal parts of the budget, as of `Budget.parts`. Metrics are taken when another part is spent, in place of
    every `every` rounds, so that methods whose rounds cost unequally are evaluated at equal spends.
    metric: what keep=best goes by; with a target, summary.json says when the metric first reached it.
    diverged: a run whose loss, objective or distance exceeds this, or is not finite, is stopped.
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
            raise ValueError("eval.target goes with eval.metric: set both, or eval.target=null")
        return self


Fraction = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=STRICT)
class Participation:
    """Which clients take part in a round, and how much local work they do.

    cohort: number of clients that take part in a round, drawn uniformly without replacement; None: all of them.
    dropout: probability that a client of the cohort drops out of a round; at least one client stays.
    least: a client's local steps (epochs where the algorithm has those) in a round are drawn uniformly from this number to the
    algorithm's own; None: all clients take the algorithm's number.
    work: fixed numbers of local steps or epochs instead, one for each client; "once": what a client draws from `least` is the same
    in all rounds; None: not fixed.
    stragglers: fraction of all clients, drawn anew each round, that take no local step in it; they answer all the same.
    """

    cohort: PositiveInt | None = None
    dropout: Fraction = 0.0
    least: PositiveInt | None = None
    work: list[PositiveInt] | Literal["once"] | None = None
    stragglers: Fraction = 0.0

    @model_validator(mode="after")
    def _one_kind(self) -> "Participation":
        if self.work == "once" and self.least is None:
            raise ValueError("work=once draws from least, which is not set")
        if self.least is not None and isinstance(self.work, list):
            raise ValueError("give least or work, and set the other to null")
        return self

    def described(self, clients: int) -> str:
        """Who takes part in a round, for a person."""
        return counted(clients, "client") + ("" if self.cohort is None else f", {self.cohort} in a round")

    @property
    def uneven(self) -> bool:
        """Whether local work is not the algorithm's number for everyone."""
        return (self.least, self.work, self.stragglers) != (None, None, 0)


@dataclass(frozen=True, config=STRICT)
class Hardware:
    """Where a run computes, and with what numbers.

    device: cpu, cuda, cuda:1, ...; threads: of a process, None for OMP_NUM_THREADS, or else all cores, shared among parallel jobs.
    processes: of this machine, which share the clients; all for one a GPU.
    engine: auto, vectorised or one_by_one; stack: clients that the vectorised engine runs at once, None for what fits the cache.
    tf32: TensorFloat-32 matrix products on GPUs; autocast: the type of the products and convolutions of networks, None for dtype.
    deterministic: only operations that give the same bits every time.
    """

    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,4})?)$")]
    dtype: Literal["float32", "float64"]
    engine: Literal["auto", "vectorised", "one_by_one"]
    stack: PositiveInt | None
    threads: Annotated[int, Field(ge=1, le=1024)] | None
    tf32: bool
    autocast: Literal["bfloat16"] | None
    deterministic: bool
    processes: Annotated[int, Field(ge=1, le=1024)] | Literal["all"] = 1

    @model_validator(mode="after")
    def _single_precision(self) -> "Hardware":
        if self.autocast and self.dtype != "float32":
            raise ValueError(f"autocast={self.autocast} goes with dtype=float32")
        return self


@dataclass(frozen=True, config=STRICT)
class Settings:
    """The top level of a config; conf/config.yaml says what each key means.

    output_dir: None for a folder under outputs/ named by the overrides. source: the key `from`.
    algo, problem, partitioner, dataset, logger: the nodes that `build_target` makes objects of.
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

    @model_validator(mode="after")
    def _best_by_metric(self) -> "Settings":
        if self.keep == "best" and self.eval.metric is None:
            raise ValueError("keep=best: goes by eval.metric, which is not set; name one of the problem's metrics")
        return self
