from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fedopt import Minimisation, Steps
from torch import Tensor


class State(NamedTuple):
    x: Tensor


@dataclass(frozen=True)
class MySgd:
    eta: float
    B: int | None

    solves: ClassVar = (Minimisation,)

    def init(self, problem):
        return State(*problem.start())

    def step(self, s, problem, fed):
        def gradient(client, x):  # runs on one client
            return client.gradient(x, client.sample("xi"))

        g = fed.exchange(gradient, s.x, fed.cohort(), xi=Steps(1, self.B))  # the weighted mean of the answers
        return State(s.x - self.eta * g)

    def output(self, s):
        return (s.x,)
