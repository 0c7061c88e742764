from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fedopt import LocalWork, Minimax, Schedule
from torch import Tensor


class State(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class MySgda:
    eta_x: Schedule
    eta_y: Schedule
    tau: LocalWork
    B: int | None

    solves: ClassVar = (Minimax,)
    uneven: ClassVar = "tau"  # the field that participation settings can vary between clients

    def init(self, problem):
        return State(*problem.start())

    def step(self, s, problem, fed):
        eta_x, eta_y = self.eta_x(fed.r), self.eta_y(fed.r)

        def local(client, message):
            def step(point, xi):  # descent in x and ascent in y, on one sample
                x, y = point
                g_x, g_y = client.outer_gradients(x, y, xi)
                return x - eta_x * g_x, client.project(y + eta_y * g_y)

            return client.scan("local", step, message)

        x, y = fed.exchange(local, (s.x, s.y), fed.cohort(), origin=s, local=fed.local(self.tau, self.B))
        return State(x, problem.project(y))

    def output(self, s):
        return s.x, s.y
