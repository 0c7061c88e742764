"""A quadratic saddle point problem with a known solution [FedNest, Sec. 4.3].

The functions are::

    f_i(x, y) = -(1/2 |y|^2 - b_i'y + y'A_i x) + lam/2 |x|^2,    A_i = t_i I,    sum_i b_i = 0

With t = mean t_i, the solution is x* = 0, y* = 0::

    y*(x) = -t x,    max_y f(x, y) = (lam + t^2)/2 |x|^2
"""

from dataclasses import dataclass, replace

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.metrics import DISTANCE, DISTANCE_X, DISTANCE_Y, OBJECTIVE
from fedopt.networks import number
from fedopt.problems.classes import Minimax, Rows
from fedopt.problems.function import function
from fedopt.randomness import Part


@dataclass(eq=False)
class Saddle(Minimax):
    """A quadratic saddle point problem with random terms.

    The functions and the random terms of the clients are::

        f_i(x, y) = -(1/2 |y|^2 - b_i'y + t_i y'x) + lam/2 |x|^2
        t_i ~ U(0, t_max),    b_i = b'_i - mean b',    b'_i ~ N(0, s^2 I)

    Args:
        d: Dimension of x and of y.
        s: Standard deviation of the b'_i.
        lam: Factor of |x|^2 / 2 in f_i.
        t_max: Upper bound of the t_i.
        x0: Initial value of every coordinate of x and y.
    """

    d: PositiveInt
    s: NonNegativeFloat
    lam: PositiveFloat
    t_max: NonNegativeFloat
    x0: float

    metrics = (replace(DISTANCE, label="distance of x to the solution"), OBJECTIVE, DISTANCE_X, DISTANCE_Y)

    def __post_init__(self) -> None:
        world = self.world
        rng = world.rng(Part.DATA)
        M = world.clients
        self.splits = world.split(M)  # one placeholder example per client
        b = self.s * rng.standard_normal((M, self.d))
        self.per_client = {"t": world.tensor(rng.uniform(0, self.t_max, M)), "b": world.tensor(b - b.mean(0))}
        self._t = float(self.per_client["t"].mean())

    def solution(self) -> tuple[Tensor, ...]:
        zero = torch.zeros_like(self.per_client["b"][0])
        return zero, zero

    def start(self) -> tuple[Tensor, ...]:
        x = torch.full_like(self.per_client["b"][0], self.x0)
        return x, x.clone()

    def sample(self, client: int | Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        return self.per_client["t"][client], self.per_client["b"][client]  # no noise

    @function
    def f(self, x: Tensor, y: Tensor, sample: tuple[Tensor, Tensor]) -> Tensor:
        t, b = sample
        return -(0.5 * y @ y - b @ y + t * (y @ x)) + 0.5 * self.lam * x @ x

    @f.both
    def f(self, x: Tensor, y: Tensor, sample: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        t, b = sample
        return self.lam * x - t * y, b - y - t * x

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name. The objective is max_y f(x, y).

        Args:
            point: The variables (x, y).
        """
        x, y = point[:2]
        distance = number(torch.linalg.norm(x))
        return {
            "objective": 0.5 * (self.lam + self._t**2) * distance**2,
            "distance": distance,
            "distance_x": distance,
            "distance_y": number(torch.linalg.norm(y)),
        }
