"""FedSGM: local steps on the objective where the constraints hold, and otherwise on the most violated one [arXiv 2601.16897].

Experimental: the switch between both is stated in the abstract, and the equations are reconstructed without the paper's text.

Explained in docs/algorithms/fedsgm.md.

Notation
    H, h_i    the constraints, which should be at most 0, and their values on client i
    v         the weights of the constraints in the direction of a round, with sum 0 to 1; the objective has the weight 1 - |v|_1
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.config import LocalWork, Schedule
from fedopt.federation import Client, Round, Sample, Steps, ratio
from fedopt.problems import Constrained
from fedopt.toolbox import Tensors, moved


class State(NamedTuple):
    """The state of FedSGM.

    Attributes:
        x: The server's point, ``[d]``.
        mean: The mean of the points so far, weighted by 1 - |v|_1, ``[d]``.
        total: The sum of these weights, a scalar.
    """

    x: Tensor
    mean: Tensor
    total: Tensor


@dataclass(frozen=True)
class FedSgm:
    """FedSGM, whose server asks for the constraints before each round of local steps.

    Args:
        eta: The local step size.
        gamma: The server's step size along the mean change of the clients.
        tau: The amount of local work: a number of steps, or epochs such as '2 epochs'.
        B: The batch size of a step. None: all examples of the client.
        eps: The violation of the constraints that is tolerated.
        beta: The slope of the soft switch: the largest constraint has the weight 1 + beta (H - eps), clipped to 0 and 1. None: the
            hard switch, with the weight 0 up to eps, and 1 beyond.
    """

    eta: Schedule
    gamma: Schedule
    tau: LocalWork
    B: PositiveInt | None
    eps: NonNegativeFloat
    beta: PositiveFloat | None

    solves: ClassVar = (Constrained,)
    uneven: ClassVar = "tau"
    projects_x: ClassVar = True

    def init(self, problem: Constrained) -> State:
        (x,) = problem.start()
        return State(x, x, x.new_zeros(()))

    def step(self, s: State, problem: Constrained, fed: Round) -> State:
        eta, S = self.eta(fed.r), fed.cohort()

        def constraints(client: Client, x: Tensor) -> Tensors:
            return client.h_weighted(client.h(x, client.sample("all")))

        H = ratio(fed.exchange(constraints, s.x, S, all=Steps(1, None))).nan_to_num(nan=-math.inf)
        largest = (H.amax() == H).to(s.x)
        excess = H.amax() - self.eps
        share = (excess > 0).to(s.x) if self.beta is None else (1 + self.beta * excess).clamp(0, 1)
        of_h = self.beta is not None or bool(share)
        of_f = self.beta is not None or not of_h

        def local_steps(client: Client, message: Tensors) -> Tensor:
            x, v = message
            v_i = client.h_weighted(v)[0]  # so that the mean of the h_i'v_i is H'v

            def step(x_i: Tensor, xi: Sample) -> Tensor:
                direction = (1 - v.sum()) * client.gradient(x_i, xi) if of_f else torch.zeros_like(x_i)
                direction = direction + client.h_vjp(x_i, v_i, xi) if of_h else direction
                return client.project_x(moved(x_i, direction, eta))

            return client.scan("local", step, x)

        message = (s.x, share * largest / largest.sum())
        change = fed.exchange(local_steps, message, S, origin=s.x, local=fed.local(self.tau, self.B)) - s.x
        total = s.total + 1 - share
        mean = s.mean + (1 - share) / total.clamp(min=1e-30) * (s.x - s.mean)
        return State(problem.project_x(s.x + self.gamma(fed.r) * change), mean, total)

    def output(self, s: State) -> Tensors:
        return (torch.where(s.total > 0, s.mean, s.x),)
