"""Federated averaging [McMahan et al. 2017, Alg. 1], with a proximal term FedProx [Li et al. 2020, Alg. 2]; the server's step and
momentum as Reddi et al. 2021, Alg. 1, and Hsu et al. 2019 have them.
"""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedopt.federation.client import Client
from fedopt.federation.draws import Minibatches
from fedopt.federation.federation import Federation
from fedopt.federation.ledger import exchange, size_in_bytes
from fedopt.problems.classes import Minimisation
from fedopt.schedules import LocalSteps, Schedule, check_either


class State(NamedTuple):
    """v: (the server's momentum,), or () where it has none."""

    r: int
    x: Tensor
    v: tuple[Tensor, ...]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class FedAvg:
    """eta: the local step size; gamma, momentum: the server's step on the clients' mean change, and its momentum.

    E: local epochs over batches of B examples (null: the full local data), or
    steps: local steps on independent batches instead, drawn with replacement.
    mu: of the proximal term mu/2 |x_i - x|^2 of each client's objective; 0 is FedAvg.
    weighting: clients by their numbers of examples, or uniformly.
    """

    eta: Schedule
    gamma: Schedule
    momentum: Annotated[float, Field(ge=0, lt=1)]
    E: PositiveInt | None
    steps: LocalSteps | None
    B: PositiveInt | None
    mu: NonNegativeFloat
    weighting: Literal["samples", "uniform"]

    solves: ClassVar = (Minimisation,)
    uneven: ClassVar = True

    def __post_init__(self) -> None:
        check_either(self, "steps", "E")

    def init(self, problem: Minimisation, fed: Federation) -> State:
        (x,) = problem.start()
        return State(0, x, (0 * x,) if self.momentum else ())

    def step(self, s: State, problem: Minimisation, fed: Federation) -> State:
        eta = self.eta(s.r)

        def local_steps(client: Client, x: Tensor) -> Tensor:
            def step(x_i: Tensor, sample: Any) -> Tensor:
                proximal = self.mu * (x_i - x) if self.mu else None
                return client.gradient_step(x_i, sample, eta, proximal)  # x_i - eta (grad f_i(x_i) + mu (x_i - x))

            return client.scan(step, x)

        S = fed.cohort()
        n = problem.sizes()[S] if self.weighting == "samples" else np.ones(len(S))
        mean = fed.round(local_steps, s.x, S, self._draws(s.r, fed), weights=n / n.sum())
        v = tuple(self.momentum * v + (mean - s.x) for v in s.v)
        return State(s.r + 1, s.x + self.gamma(s.r) * (v[0] if v else mean - s.x), v)

    def output(self, s: State) -> tuple[Tensor, ...]:
        return (s.x,)

    def cost(self, s: State, problem: Minimisation, fed: Federation) -> dict[str, int]:
        """What `step` adds to the ledger."""
        S = fed.cohort()
        size, steps = size_in_bytes(s.x), self._draws(s.r, fed).steps_of(problem.splits, S)
        return exchange(len(S), size, size, steps.sum())

    def _draws(self, r: int, fed: Federation) -> Minibatches:
        steps = self.steps(r, fed.problem.clients) if self.steps else None
        return fed.local_draws(self.B, self.E, steps, replace=True)
