"""Federated averaging [McMahan et al. 2017, Alg. 1], with a proximal term FedProx [Li et al. 2020, Alg. 2]; the server's step and
momentum as Reddi et al. 2021, Alg. 1, and Hsu et al. 2019 have them, its adaptive steps as Reddi et al. 2021, Alg. 2.

FedAvg and FedProx agree with the public code litian96/FedProx, and FedAdam and FedYogi with Flower, which starts v at 0.
FedAdagrad is unverified: reconstructed without the paper's text.

Explained in docs/algorithms/fedavg.md.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.config import LocalWork, Schedule
from fedopt.federation import Client, Round, Sample
from fedopt.problems import Minimisation
from fedopt.toolbox import Tensors


class State(NamedTuple):
    """v: (the server's momentum,), or () without one; in FedOpt (m, v), the first and the second moments."""

    x: Tensor
    v: Tensors


Decay = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class FedAvg:
    """FedAvg, and with mu FedProx.

    Args:
        eta: The local step size.
        gamma, momentum: The server's step size along the clients' mean change, and its momentum.
        tau: The local work, in epochs over batches of B examples, or in steps on independent batches drawn with replacement.
        B: The examples of a batch; None for all of a client's.
        mu: The factor of the proximal term mu/2 |x_i - x|^2 in each client's objective; 0 is FedAvg.
    """

    eta: Schedule
    gamma: Schedule
    momentum: Decay
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
            def step(x_i: Tensor, xi: Sample) -> Tensor:
                proximal = (x_i - x).mul_(self.mu) if self.mu else None
                return client.gradient_step_(x_i, xi, eta, proximal)  # x_i - eta (grad f_i(x_i) + mu (x_i - x))

            return client.scan("local", step, x)

        mean = fed.exchange(local_steps, s.x, fed.cohort(), local=fed.local(self.tau, self.B, replace=True))
        direction, v = self.direction(mean - s.x, s.v)
        return State(s.x + self.gamma(fed.r) * direction, v)

    def direction(self, change: Tensor, v: Tensors) -> tuple[Tensor, Tensors]:
        """Return the server's direction after the clients' mean change, and its new momentum.

        Args:
            v: The momentum before, (momentum,) or ().
        """
        v = tuple(self.momentum * of_before + change for of_before in v)
        return (v[0] if v else change), v

    def output(self, s: State) -> Tensors:
        return (s.x,)


@dataclass(frozen=True)
class FedOpt(FedAvg):
    """FedAvg whose server divides by roots of second moments, coordinate by coordinate: FedAdam, FedYogi, FedAdagrad.

    Hyperparameters as in `FedAvg`, with momentum = 0 (else ValueError), and: server: the rule of the second moments v.

    Args:
        beta_1, beta_2: The decays of m and, except for adagrad, of v.
        epsilon: The server divides by sqrt(v) + epsilon; tau in the paper.
        v_0: Every coordinate of v before the first round.
    """

    server: Literal["adam", "yogi", "adagrad"]
    beta_1: Decay
    beta_2: Decay
    epsilon: PositiveFloat
    v_0: NonNegativeFloat

    def __post_init__(self) -> None:
        if self.momentum:
            raise ValueError(f"momentum must be 0, not {self.momentum:g}; use beta_1 here instead")

    def init(self, problem: Minimisation) -> State:
        (x,) = problem.start()
        return State(x, (0 * x, 0 * x + self.v_0))

    def direction(self, change: Tensor, v: Tensors) -> tuple[Tensor, Tensors]:
        """Return m / (sqrt(v) + epsilon), and (m, v), after the clients' mean change."""
        (m, second), square = v, change**2
        m = self.beta_1 * m + (1 - self.beta_1) * change
        if self.server == "adagrad":
            second = second + square
        elif self.server == "yogi":
            second = second - (1 - self.beta_2) * square * torch.sign(second - square)
        else:
            second = self.beta_2 * second + (1 - self.beta_2) * square
        return m / (second.sqrt() + self.epsilon), (m, second)
