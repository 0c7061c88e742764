"""A saddle point problem with closed forms that is not concave in y but satisfies the Polyak-Lojasiewicz condition.

The functions are::

    f_i(x, y) = 1/2 x'A_i x - (c_i + noise)'x - 1/2 u'D_i u - rho sum_j sin^2(z_j) + (e_i + noise)'y
    u = y - S x,    z = R u,    S'S = coupling^2 I,    sum_i e_i = 0

With terms without an index for means over clients and R = D^1/2::

    f(x, y) = 1/2 x'A x - c'x - h(z),    h(z) = 1/2 |z|^2 + rho sum_j sin^2(z_j)

The gradient of h, z + rho sin 2z, vanishes only at 0 if rho < 2.3017 (1/2 divided by the depth of the minimum of
sin(t)/t), and h is not convex if rho > 1/2. Therefore::

    y*(x) = S x,    max_y f(x, y) = 1/2 x'A x - c'x

Suppose that y moves r times as fast as x in the flow of descent-ascent. If r >= coupling^2, then 2 max_y f(x, y) -
f(x, y) decreases and the flow converges. Otherwise it may cycle or diverge.
"""

import math
from collections import namedtuple
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt.errors import UserError
from fedopt.metrics import DISTANCE, DISTANCE_Y, HYPERGRADIENT_NORM, OBJECTIVE
from fedopt.networks import number
from fedopt.problems.classes import Minimax
from fedopt.problems.function import function
from fedopt.problems.quadratics import Outer, Reduced, gaussian, isometry, spd
from fedopt.randomness import Part

Sample = namedtuple("Sample", "A c D e")


@dataclass(eq=False)
class PlMinimax(Reduced, Minimax):
    """A minimax problem that is not concave in y but satisfies the Polyak-Lojasiewicz (PL) condition.

    With u = y - S x and a matrix R, f is a quadratic function of x minus 1/2 |z|^2 + rho sum_j sin^2(z_j) for z = R u. The
    docstring of the module has the exact formulas. `Quadratic` describes the arguments that are not listed here.

    Args:
        d: Dimension of x and of y.
        rho: Factor of the term with sin^2 in f. For the allowed values, f satisfies the PL condition and is not concave in y.
        coupling: Value of all singular values of the matrix S, with which y*(x) = S x.
        conditioning: Condition number of the clients' matrices A_i and D_i, the Hessians of the quadratic terms in x and in y.
    """

    d: PositiveInt
    rho: Annotated[float, Field(gt=0.5, lt=2.3)]
    coupling: NonNegativeFloat

    metrics = (replace(DISTANCE, label="distance of x to the solution"), OBJECTIVE, HYPERGRADIENT_NORM, DISTANCE_Y)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        d, family = self.d, self.families()
        self.splits = self.world.split(self.examples)
        A, c = family(spd, d, self.conditioning), family(gaussian, d)
        D, e = family(spd, d, self.conditioning), family(gaussian, d)
        self.set_up(Sample(A, c, D, e - torch.from_numpy(self.weights).to(e) @ e), dict.fromkeys("AcDe", "train"))
        self._S = self.world.tensor(self.coupling * isometry(self.world.rng(Part.COUPLING), 1, d, d)[0])
        values, axes = torch.linalg.eigh(self._mean.D)
        self._R = axes * values.sqrt() @ axes.T

    def without(self, clients: np.ndarray) -> Any:
        why = "the solution of PLMinimax without some clients is unknown"
        raise UserError(f"participation.hostile: {why}; choose another problem, or set it to null")

    def reduced(self, terms: Sample) -> Outer:
        return Outer(terms.A, -terms.c, terms.c.new_zeros(()))

    def hessians(self) -> tuple[Tensor, ...]:
        """Return the Hessian of max_y f(x, y) in x, and the largest Hessian of -f in y, which is at y*(x)."""
        return self._mean.A, (1 + 2 * self.rho) * self._mean.D

    def solution(self) -> tuple[Tensor, ...]:
        return self._x, self._S @ self._x

    def start(self) -> tuple[Tensor, ...]:
        """Return x = (1, ..., 1), and the y for which every z_j is pi / 2. There, h has its most negative curvature."""
        x = torch.ones_like(self._x)
        return x, self._S @ x + torch.linalg.solve(self._R, x * (math.pi / 2))

    @function
    def f(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        (A, c, D, e), u = sample, y - self._S @ x
        curved = 0.5 * u @ (D @ u) + self.rho * torch.sum(torch.sin(self._R @ u) ** 2)
        return 0.5 * x @ (A @ x) - c @ x - curved + e @ y

    @f.both
    def f(self, x: Tensor, y: Tensor, sample: Sample) -> tuple[Tensor, Tensor]:
        (A, c, D, e), u = sample, y - self._S @ x
        slope = D @ u + self.rho * (self._R @ torch.sin(2 * (self._R @ u)))
        return A @ x - c + slope @ self._S, e - slope

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name. The objective is max_y f(x, y).

        Args:
            point: The variables (x, y).
        """
        _, y_s = self.solution()
        return {**super().evaluate(*point), "distance_y": number(torch.linalg.norm(point[1] - y_s))}
