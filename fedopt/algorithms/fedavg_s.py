"""FedAvg-S: federated averaging of simultaneous descent-ascent for saddle points [Tarzanagh et al. 2022 (FedNest), Sec. 4.3].

Explained in docs/algorithms/fedavg_s.md.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pydantic import PositiveInt

from fedopt.config import LocalWork, Schedule
from fedopt.federation import Client, Round
from fedopt.problems import Minimax
from fedopt.toolbox import Vectors, descent_ascent_


class State(NamedTuple):
    w: Vectors


@dataclass(frozen=True)
class FedAvgS:
    """FedAvg-S: local steps in which x and y move simultaneously.

    Args:
        alpha: The step size of x.
        beta: The step size of y.
        tau: The local work of a round: a number of steps, or epochs such as '2 epochs'.
        B: The batch size of a step. None: all examples of the client.
    """

    alpha: Schedule
    beta: Schedule
    tau: LocalWork
    B: PositiveInt | None

    solves: ClassVar = (Minimax,)
    uneven: ClassVar = "tau"
    projects_x: ClassVar = True

    def init(self, problem: Minimax) -> State:
        return State(Vectors(problem.start()))

    def step(self, s: State, problem: Minimax, fed: Round) -> State:
        steps = self.alpha(fed.r), self.beta(fed.r)

        def local_steps(client: Client, w: Vectors) -> Vectors:
            return client.scan("local", lambda w_i, xi: descent_ascent_(client, w_i, xi, steps), w)

        x, y = fed.exchange(local_steps, s.w, fed.cohort(), origin=s.w, local=fed.local(self.tau, self.B))
        return State(Vectors((problem.project_x(x), y)))

    def output(self, s: State) -> Vectors:
        return s.w
