"""FedAvg-S: federated averaging of simultaneous descent-ascent for saddle points [Tarzanagh et al. 2022 (FedNest), Sec. 4.3]."""

from typing import Any, ClassVar, NamedTuple

from pydantic import ConfigDict, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedopt.federation.client import Client
from fedopt.federation.draws import Minibatches
from fedopt.federation.federation import Federation
from fedopt.federation.ledger import exchange, size_in_bytes
from fedopt.oracles import outer_gradients
from fedopt.problems.classes import Minimax
from fedopt.schedules import Schedule

Point = tuple[Tensor, Tensor]


class State(NamedTuple):
    r: int
    x: Tensor
    y: Tensor


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class FedAvgS:
    """alpha, beta: steps of x and of y; tau: local steps; B: examples of a step, null for all a client has."""

    alpha: Schedule
    beta: Schedule
    tau: PositiveInt
    B: PositiveInt | None

    solves: ClassVar = (Minimax,)
    uneven: ClassVar = True

    def init(self, problem: Minimax, fed: Federation) -> State:
        return State(0, *problem.start())

    def step(self, s: State, problem: Minimax, fed: Federation) -> State:
        alpha, beta = self.alpha(s.r), self.beta(s.r)

        def local_steps(client: Client, message: Point) -> Point:
            def step(point: Point, xi: Any) -> Point:
                x, y = point
                f_x, f_y = outer_gradients(problem, x, y, xi)
                return x.sub(f_x, alpha=alpha), problem.project(y.add(f_y, alpha=beta))  # both at the old point

            return client.scan(step, message)

        x, y = fed.round(local_steps, (s.x, s.y), fed.cohort(), self._draws(fed))
        return State(s.r + 1, x, y)

    def output(self, s: State) -> Point:
        return s.x, s.y

    def cost(self, s: State, problem: Minimax, fed: Federation) -> dict[str, int]:
        """What `step` adds to the ledger."""
        S = fed.cohort()
        size, steps = size_in_bytes((s.x, s.y)), self._draws(fed).steps_of(problem.splits, S)
        return exchange(len(S), size, size, steps.sum())

    def _draws(self, fed: Federation) -> Minibatches:
        return Minibatches(self.B, fed.work(self.tau))
