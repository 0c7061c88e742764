"""Federated averaging (FedAvg) [McMahan et al. 2017, Alg. 1], and FedProx, which adds a proximal term [Li et al. 2020, Alg. 2].

The server's step size is from Reddi et al. 2021 (Alg. 1), its momentum from Hsu et al. 2019, and its adaptive steps (FedAdam,
FedYogi and FedAdagrad) from Reddi et al. 2021 (Alg. 2). FedAvg and FedProx agree with the public code litian96/FedProx, and FedAdam
and FedYogi with Flower, which starts v at 0.
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
    """The state of FedAvg and FedOpt.

    Attributes:
        x: The server's point, ``[d]``.
        v: In FedAvg, (momentum,) of the server, or () without momentum. In FedOpt, (m, v): the first and the second moments. Each
            vector is ``[d]``.
    """

    x: Tensor
    v: Tensors


Decay = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True)
class FedAvg:
    """FedAvg and, with mu > 0, FedProx.

    Args:
        eta: The local step size.
        gamma: The server's step size along the mean change of the clients.
        momentum: The server's momentum.
        tau: The amount of local work: epochs over batches of B examples, or steps on independent batches drawn with replacement.
        B: The batch size. None: all examples of the client.
        mu: The coefficient of the proximal term mu/2 |x_i - x|^2 in each client's objective. 0 is FedAvg.
    """

    eta: Schedule
    gamma: Schedule
    momentum: Decay
    tau: LocalWork
    B: PositiveInt | None
    mu: NonNegativeFloat

    solves: ClassVar = (Minimisation,)
    uneven: ClassVar = "tau"
    projects_x: ClassVar = True

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

        mean = fed.exchange(local_steps, s.x, fed.cohort(), origin=s.x, local=fed.local(self.tau, self.B, replace=True))
        direction, v = self.direction(mean - s.x, s.v)
        return State(problem.project_x(s.x + self.gamma(fed.r) * direction), v)

    def direction(self, change: Tensor, v: Tensors) -> tuple[Tensor, Tensors]:
        """Return the direction of the server's step, ``[d]``, and the new momentum, (momentum,) or ().

        Args:
            change: The mean change of the clients, ``[d]``.
            v: (momentum,) before the step, or () without momentum.
        """
        v = tuple(self.momentum * of_before + change for of_before in v)
        return (v[0] if v else change), v

    def output(self, s: State) -> Tensors:
        return (s.x,)


@dataclass(frozen=True)
class FedOpt(FedAvg):
    """FedAdam, FedYogi and FedAdagrad: FedAvg whose server divides each coordinate by the square root of its second moment.

    It has the hyperparameters of `FedAvg`, with momentum = 0 (ValueError otherwise), and the following ones.

    Args:
        server: The rule of the second moments v: ``adam``, ``yogi`` or ``adagrad``.
        beta_1: The decay of the first moments m.
        beta_2: The decay of the second moments v; adagrad does not use it.
        epsilon: The server divides by sqrt(v) + epsilon. The paper calls it tau.
        v_0: The initial value of every coordinate of v.
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
        """Return the server's direction m / (sqrt(v) + epsilon), ``[d]``, and the new moments (m, v).

        Args:
            change: The mean change of the clients, ``[d]``.
            v: The moments (m, v) before the step.
        """
        (m, second), square = v, change**2
        m = self.beta_1 * m + (1 - self.beta_1) * change
        if self.server == "adagrad":
            second = second + square
        elif self.server == "yogi":
            second = second - (1 - self.beta_2) * square * torch.sign(second - square)
        else:
            second = self.beta_2 * second + (1 - self.beta_2) * square
        return m / (second.sqrt() + self.epsilon), (m, second)
