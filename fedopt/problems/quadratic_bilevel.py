"""A strongly convex quadratic bilevel problem with closed forms: the first problem of any new method.

    g_i(x, y) = 1/2 y'A_i y - y'(B_i x + c_i + noise)
    f_i(x, y) = 1/2 x'D_i x - (d_i + noise)'x + 1/2 y'F_i y - (e_i + noise)'y + x'G_i y

With the means over clients written without index, y*(x) = A^-1 (B x + c), the hypergradient is
grad f(x) = D x - d + G y* + B' A^-1 (F y* - e + G'x), and it is linear in x.
"""

from collections import namedtuple
from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor

from fedopt.metrics import DISTANCE, HYPERGRADIENT_NORM, OBJECTIVE
from fedopt.problems.classes import Bilevel
from fedopt.problems.quadratics import Quadratic, gaussian, spd

Sample = namedtuple("Sample", "A B c D d F e G")


@dataclass(eq=False)
class QuadraticBilevel(Quadratic, Bilevel):
    """dx, dy: dimensions of x and y.

    conditioning: of the Hessians of g_i in y and of f_i in (x, y); heterogeneity, noise, examples: see `Quadratic`.
    """

    dx: PositiveInt
    dy: PositiveInt

    metrics = (DISTANCE, OBJECTIVE, HYPERGRADIENT_NORM)

    def __post_init__(self) -> None:
        dx, dy, family = self.dx, self.dy, self.families()
        self.splits = self.world.split(self.examples, None, 0.5)
        H = family(spd, dx + dy, self.conditioning)  # of f in (x, y) together: then f(x, y*(x)) is strongly convex too
        terms = Sample(
            A=family(spd, dy, self.conditioning),
            B=family(gaussian, dy, dx),
            c=family(gaussian, dy),
            D=H[:, :dx, :dx],
            d=family(gaussian, dx),
            F=H[:, dx:, dx:],
            e=family(gaussian, dy),
            G=H[:, :dx, dx:],
        )
        self.set_up(terms, {"c": "train", "d": "val", "e": "val"})
        A, B, c, D, d, F, e, G = self._mean = self.mean(self.weights)
        S, y0 = torch.linalg.solve(A, B), torch.linalg.solve(A, c)  # y*(x) = S x + y0
        self._hessian = D + G @ S + S.T @ G.T + S.T @ F @ S
        self._constant = -d + G @ y0 + S.T @ (F @ y0 - e)
        self._x = -torch.linalg.solve(self._hessian, self._constant)

    def inner_solution(self, x: Tensor) -> Tensor:
        """y*(x), [dy]."""
        return torch.linalg.solve(self._mean.A, self._mean.B @ x + self._mean.c)

    def hypergradient(self, x: Tensor) -> Tensor:
        """grad f(x), [dx], in closed form."""
        return self._hessian @ x + self._constant

    def solution(self) -> tuple[Tensor, ...]:
        x, (A, _, _, _, _, F, e, G) = self._x, self._mean
        y = self.inner_solution(x)
        return x, y, torch.linalg.solve(A, F @ y - e + G.T @ x)

    def start(self) -> tuple[Tensor, ...]:
        return self._constant.new_ones(self.dx), self._constant.new_zeros(self.dy)

    def f(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        _, _, _, D, d, F, e, G = sample
        return 0.5 * x @ (D @ x) - d @ x + 0.5 * y @ (F @ y) - e @ y + x @ (G @ y)

    def g(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        A, B, c, *_ = sample
        return 0.5 * y @ (A @ y) - y @ (B @ x + c)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x = point[0]
        return {
            "objective": float(self.f(x, self.inner_solution(x), self._mean)),
            "distance": float(torch.linalg.norm(x - self._x)),
            "hypergradient_norm": float(torch.linalg.norm(self.hypergradient(x))),
        }
