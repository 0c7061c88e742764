"""FedSGDA-M [Wu et al. 2023] and Momentum Local SGDA [Sharma et al. 2022]: minimax steps along momenta of the gradients.

Unverified: reconstructed without the papers' text. Their abstracts confirm FedSGDA-M's rates, and that in Momentum Local SGDA all
clients take part. The limits that the tests check are derived here.

Explained in docs/algorithms/fedsgda_m.md.

Notation
    z = (x, y)    the variables; each client has its own until they are averaged
    d = (u, v)    the momenta of the variables, which estimate (grad_x f, -grad_y f), so that both variables descend
    q, tau        the number of iterations per round, after which the server averages z and d
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt

from fedopt.config import Schedule
from fedopt.federation import Client, Round, Steps
from fedopt.problems import Minimax
from fedopt.toolbox import (
    Averages,
    Pair,
    Storm,
    Tensors,
    Vectors,
    at_start,
    check_weights,
    descend,
    minimax_field,
    moved,
    together,
)

Weight = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class FedSGDAM:
    """FedSGDA-M: recursive momentum on each client.

    Args:
        eta_x: The step size of x.
        eta_y: The step size of y.
        alpha: The weight of the newest gradient in the momentum u of x.
        beta: The weight of the newest gradient in the momentum v of y.
        q: The number of iterations per round, after which variables and momenta are averaged (Q in the paper).
        B: The batch size. None: all examples of the client.
        S: The number of samples over which the first u and v are averaged.
    """

    eta_x: Schedule
    eta_y: Schedule
    alpha: Weight
    beta: Weight
    q: PositiveInt
    B: PositiveInt | None
    S: PositiveInt

    solves: ClassVar = (Minimax,)

    def init(self, problem: Minimax) -> Averages:
        return at_start(Vectors(problem.start()), problem.clients)

    def step(self, s: Averages, problem: Minimax, fed: Round) -> Averages:
        eta_x, eta_y = self.eta_x(fed.r), self.eta_y(fed.r)

        def move(client: Client, z: Vectors, d: Vectors, t: int) -> Vectors:
            return descend(client, z, d, (eta_x, eta_y))

        S = self.S if fed.r == 0 and (self.B is not None or problem.random) else 1  # all examples make one sample
        storm = Storm(minimax_field, move, lambda t: (self.alpha, self.beta))
        return together(storm, s, fed, self.q, Steps(S - 1 + self.q, self.B), S)

    def output(self, s: Averages) -> Tensors:
        return s.z


@dataclass(frozen=True)
class MomentumLocalSGDA:
    """Momentum Local SGDA: partial steps along momenta, which are averaged too. An iteration is::

        x <- x - alpha eta_x u,    y <- y + alpha (P(y - eta_y v) - y)

    Args:
        eta_x: The step size of x.
        eta_y: The step size of y.
        alpha: The fraction of the step that is taken.
        beta_x: The newest gradient in u has the weight beta_x alpha, which must be at most 1 (ValueError otherwise).
        beta_y: The newest gradient in v has the weight beta_y alpha, which must be at most 1 (ValueError otherwise).
        tau: The number of iterations per round.
        B: The batch size. None: all examples of the client.
    """

    eta_x: Schedule
    eta_y: Schedule
    alpha: Weight
    beta_x: NonNegativeFloat
    beta_y: NonNegativeFloat
    tau: PositiveInt
    B: PositiveInt | None

    solves: ClassVar = (Minimax,)

    def __post_init__(self) -> None:
        check_weights({"beta_x * alpha": self.beta_x * self.alpha, "beta_y * alpha": self.beta_y * self.alpha})

    def init(self, problem: Minimax) -> Pair:
        z = Vectors(problem.start())
        return Pair(z, 0.0 * z)

    def step(self, s: Pair, problem: Minimax, fed: Round) -> Pair:
        alpha, eta_x, eta_y = self.alpha, self.eta_x(fed.r), self.eta_y(fed.r)

        def gradients(client: Client, z: Vectors) -> Vectors:
            return minimax_field(client, z, client.sample("xi"))

        def iterations(client: Client, message: Pair) -> Pair:
            (x, y), (u, v) = message
            for xi in client.steps("xi"):
                x, y = client.moved_(x, u, alpha * eta_x), torch.lerp(y, client.project(moved(y, v, eta_y)), alpha)
                new_u, new_v = minimax_field(client, Vectors((x, y)), xi)
                u, v = torch.lerp(u, new_u, self.beta_x * alpha), torch.lerp(v, new_v, self.beta_y * alpha)
            return Pair(Vectors((x, y)), Vectors((u, v)))

        d = s.d if fed.r else fed.exchange(gradients, s.z, fed.cohort(), xi=Steps(1, self.B))
        return Pair(
            *fed.exchange(iterations, Pair(s.z, d), fed.new_cohort(), origin=(s.z, None), xi=Steps(self.tau, self.B))
        )

    def output(self, s: Pair) -> Tensors:
        return s.z
