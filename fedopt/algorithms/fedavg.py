"""Federated averaging [McMahan et al. 2017, Alg. 1], with a proximal term FedProx [Li et al. 2020, Alg. 2]; the server's step and
momentum as Reddi et al. 2021, Alg. 1, and Hsu et al. 2019 have them.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt.config.schedules import LocalWork, Schedule
from fedopt.federation.client import Client
from fedopt.federation.round import Round
from fedopt.problems.classes import Minimisation


class State(NamedTuple):
    """v: (the server's momentum,), or () where it has none."""

    x: Tensor
    v: tuple[Tensor, ...]


@dataclass(frozen=True)
class FedAvg:
    """eta: the local step size; gamma, momentum: the server's step on the clients' mean change, and its momentum.

    tau: local work, in epochs over batches of B examples, or in steps on independent batches, drawn with replacement.
    B: examples of a batch, None for all that a client has.
    mu: of the proximal term mu/2 |x_i - x|^2 of each client's objective; 0 is FedAvg.
    """

    eta: Schedule
    gamma: Schedule
    momentum: Annotated[float, Field(ge=0, lt=1)]
    tau: LocalWork
    B: PositiveInt | None
    mu: NonNegativeFloat

    solves: ClassVar = (Minimisation,)
    uneven: ClassVar = "tau"

    def init(self, problem: Minimisation) -> State:
        (x,) = problem.start()
        return State(x, (0 * x,) if self.momentum else ())

    def step(self, s: State, problem: Minimisation, fed: Round) -> State:
        eta = self.eta(fed.r)

        def local_steps(client: Client, x: Tensor) -> Tensor:
            def step(x_i: Tensor, xi: Any) -> Tensor:
                proximal = self.mu * (x_i - x) if self.mu else None
                return client.gradient_step_(x_i, xi, eta, proximal)  # x_i - eta (grad f_i(x_i) + mu (x_i - x))

            return client.scan("local", step, x)

        mean = fed.exchange(local_steps, s.x, fed.cohort(), local=fed.local(self.tau, self.B, replace=True))
        v = tuple(self.momentum * v + (mean - s.x) for v in s.v)
        return State(s.x + self.gamma(fed.r) * (v[0] if v else mean - s.x), v)

    def output(self, s: State) -> tuple[Tensor, ...]:
        return (s.x,)
