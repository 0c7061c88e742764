"""FedBiOAcc and FedBiOAcc-Local: bilevel steps along recursive momenta, averaged in two exchanges [Li, Huang & Huang 2023].

Unverified: reconstructed without the paper's text; its abstract confirms the rates. The limits that the tests check are derived
here.

Explained in docs/algorithms/fedbioacc.md.

Notation
    z = (x, y, u)            the variables; u estimates [grad^2_yy g]^-1 grad_y f, which toolbox/directions.py calls v
    m                        the momenta of the variables, which toolbox/storm.py calls d
    alpha_t                  delta / (u0 + t)^(1/3), which decays from t = 0 on. The step sizes of x, y and u are eta alpha_t,
                             gamma alpha_t and tau alpha_t
    c = (c_x, c_y, c_u)      the factors of the weights c alpha_t^2 that the newest directions have in m_{t+1}
    t, I                     the iteration, counted from 0, and the number of iterations per round
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from fedopt.federation import Client, Round, Steps
from fedopt.problems import Bilevel, LocalBilevel, Nested
from fedopt.toolbox import (
    Means,
    Storm,
    Tensors,
    Vectors,
    bilevel_start,
    check_weights,
    descend,
    independent_maps,
    means_at_start,
    points_first,
)


@dataclass(frozen=True)
class FedBiOAcc:
    """FedBiOAcc: bilevel steps along recursive momenta. In iteration t = 0, 1, ..., step sizes are multiples of::

        alpha_t = delta / (u0 + t)^(1/3)

    u estimates [grad^2_yy g]^-1 grad_y f, the variable v of other methods.

    Args:
        eta: The step size of x is eta alpha_t.
        gamma: The step size of y is gamma alpha_t.
        tau: The step size of u is tau alpha_t.
        delta: The numerator of alpha_t.
        u0: The offset in the denominator. alpha_t decays from t = 0 on: slowly while t is less than u0, and it is half of alpha_0
            at t = 7 u0.
        c_x: The newest direction of x has the weight c_x alpha_t^2, which must be at most 1 (ValueError otherwise).
        c_y: The newest direction of y has the weight c_y alpha_t^2, which must be at most 1 (ValueError otherwise).
        c_u: The newest direction of u has the weight c_u alpha_t^2, which must be at most 1 (ValueError otherwise).
        I: The number of iterations per round. Variables and momenta are averaged at the end of a round.
        B: The batch size. Each direction has its own sample. None: all examples of the client.
        B1: The batch size for the initial momenta m_0. None: all examples of the client.
    """

    eta: PositiveFloat
    gamma: PositiveFloat
    tau: PositiveFloat
    delta: PositiveFloat
    u0: PositiveFloat
    c_x: NonNegativeFloat
    c_y: NonNegativeFloat
    c_u: NonNegativeFloat
    I: PositiveInt
    B: PositiveInt | None
    B1: PositiveInt | None

    solves: ClassVar[Any] = (Bilevel,)
    averaged: ClassVar = 3  # the number of variables that the server averages, in the order x, y, u

    def __post_init__(self) -> None:
        weights = {"c_x": self.c_x, "c_y": self.c_y, "c_u": self.c_u}
        check_weights({f"{name} * alpha_0^2": c * self.alpha(0) ** 2 for name, c in weights.items()})

    def alpha(self, t: int) -> Any:
        return self.delta / (self.u0 + t) ** (1 / 3)

    def init(self, problem: Nested) -> Means:
        return means_at_start(bilevel_start(problem), self.averaged, problem.clients)

    def step(self, s: Means, problem: Nested, fed: Round) -> Means:
        def move(client: Client, z: Vectors, m: Vectors, t: int) -> Vectors:
            return descend(client, z, m, [step * self.alpha(t) for step in (self.eta, self.gamma, self.tau)])

        def c(t: int) -> list[float]:
            return [weight * self.alpha(t) ** 2 for weight in (self.c_x, self.c_y, self.c_u)]

        samples = {"first": Steps(1, self.B1, 3), "xi": Steps(self.I - 1, self.B, 3), "last": Steps(1, self.B, 3)}
        sizes = [len(variable) for variable in bilevel_start(problem)]
        return points_first(Storm(independent_maps, move, c), s, sizes, fed, self.I, samples)

    def output(self, s: Means) -> Tensors:
        return s.z


@dataclass(frozen=True)
class FedBiOAccLocal(FedBiOAcc):
    """FedBiOAcc for local lower-level problems: y_i, u_i and their momenta stay on the client and are not averaged."""

    solves: ClassVar[Any] = (LocalBilevel,)
    averaged: ClassVar = 1
