"""FedAvg-S: federated averaging of simultaneous descent-ascent for saddle points [Tarzanagh et al. 2022 (FedNest), Sec. 4.3]."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pydantic import PositiveInt
from torch import Tensor

from fedopt.config import LocalWork, Schedule
from fedopt.federation import Client, Round, Sample
from fedopt.problems import Minimax


class State(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class FedAvgS:
    """FedAvg-S: local steps of x and y at once.

    alpha, beta: the step sizes of x and of y. tau: the local work, in epochs or in steps.
    B: the examples of a step; None for all of a client's.
    """

    alpha: Schedule
    beta: Schedule
    tau: LocalWork
    B: PositiveInt | None

    solves: ClassVar = (Minimax,)
    uneven: ClassVar = "tau"

    def init(self, problem: Minimax) -> State:
        return State(*problem.start())

    def step(self, s: State, problem: Minimax, fed: Round) -> State:
        alpha, beta = self.alpha(fed.r), self.beta(fed.r)

        def local_steps(client: Client, message: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            def step(point: tuple[Tensor, Tensor], xi: Sample) -> tuple[Tensor, Tensor]:
                x, y = point
                x, f_y = client.outer_step_(x, y, xi, alpha)  # x - alpha grad_x f, and grad_y f at the old point
                return x, client.project(y.add(f_y, alpha=beta))

            return client.scan("local", step, message)

        return State(*fed.exchange(local_steps, (s.x, s.y), fed.cohort(), local=fed.local(self.tau, self.B)))

    def output(self, s: State) -> tuple[Tensor, ...]:
        return s.x, s.y
