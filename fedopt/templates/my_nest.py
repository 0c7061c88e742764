from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

from fedopt import Bilevel, LocalWork, Schedule, Steps, neumann_sum
from torch import Tensor


class State(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class MyNest:
    alpha: Schedule
    beta: Schedule
    tau: LocalWork
    B: int | None
    N: int
    l: float

    solves: ClassVar = (Bilevel,)
    uneven: ClassVar = "tau"  # the field that participation settings can vary between clients

    def init(self, problem):
        return State(*problem.start())

    def step(self, s, problem, fed):
        beta = self.beta(fed.r)  # the step size in round r
        inverse = partial(neumann_sum, N=self.N, l=self.l)  # approximates the inverse Hessian of g with N products

        def inner(client, message):
            x, y = message

            def step(y, zeta):  # one local step, on one sample
                return client.project(y - beta * client.inner_gradient(x, y, zeta))

            return client.scan("local", step, y)

        def outer(client, message):
            return client.hypergradient(*message, client.sample("xi"), inverse)

        S = fed.cohort()  # the sampled clients of this round
        y = fed.exchange(inner, (s.x, s.y), S, origin=s.y, local=fed.local(self.tau, self.B, split=problem.g_split))
        xi = Steps(1, self.B, samples=problem.hypergradient_samples(self.N))  # a list of independent samples
        h = fed.exchange(outer, (s.x, y), S, xi=xi)  # the mean of the clients' hypergradients
        return State(s.x - self.alpha(fed.r) * h, y)

    def output(self, s):
        return s.x, s.y
