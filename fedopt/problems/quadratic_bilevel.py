"""A strongly convex quadratic bilevel problem with closed forms, recommended as the first test of a new method.

The functions are::

    g_i(x, y) = 1/2 y'A_i y - y'(B_i x + c_i + noise)
    f_i(x, y) = 1/2 x'D_i x - (d_i + noise)'x + 1/2 y'F_i y - (e_i + noise)'y + x'G_i y

Terms without an index are means over clients. The solution of the lower level and the hypergradient, which is linear in
x, are::

    y*(x)     = A^-1 (B x + c)
    grad f(x) = D x - d + G y* + B' A^-1 (F y* - e + G'x)

If each client has its own lower level, these formulas hold with the client's terms, and the mean is taken afterwards.
"""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from fedopt.problems.classes import Bilevel, Nested
from fedopt.problems.function import Second, function
from fedopt.problems.quadratics import Outer, Reduced, columns, gaussian, spd

Sample = namedtuple("Sample", "A B c D d F e G")


def reduced(terms: Sample) -> Outer:
    """Return the outer objective f(x, y*(x)) as a quadratic function of x.

    Args:
        terms: The terms of one problem. With terms of M problems, ``[M, ...]`` each, the result contains M functions.
    """
    A, B, c, D, d, F, e, G = columns(terms)
    S, y0 = torch.linalg.solve(A, B), torch.linalg.solve(A, c)  # y*(x) = S x + y0
    hessian = D + G @ S + (G @ S).mT + S.mT @ F @ S
    constant = -d + G @ y0 + S.mT @ (F @ y0 - e)
    value = y0.mT @ (0.5 * F @ y0 - e)
    return Outer(hessian, constant[..., 0], value[..., 0, 0])


@dataclass(eq=False)
class NestedQuadratic(Reduced, Nested):
    """Base class of the quadratic bilevel problems.

    Half of each client's examples are for f and half for g. `Quadratic` describes the arguments that are not listed here.

    Args:
        dx, dy: Dimensions of x and y.
        conditioning: Condition number of the Hessians of g_i in y and of f_i in (x, y).
        delta: Heterogeneity around a fixed mean problem (see `Quadratic`). The mean A^-1 B then has norm 1, so that the
            condition number of the outer objective is at most twice the one of the lower level.
    """

    dx: PositiveInt
    dy: PositiveInt

    reduced = staticmethod(reduced)

    def __post_init__(self) -> None:
        dx, dy, family = self.dx, self.dy, self.families()
        self.splits = self.world.split(self.examples, None, 0.5)
        H = family(spd, dx + dy, self.conditioning)  # Hessian of f in (x, y); f(x, y*(x)) is then strongly convex too
        A = family(spd, dy, self.conditioning)

        def response(rng: np.random.Generator, count: int, *shape: int) -> np.ndarray:
            S = gaussian(rng, count, *shape)
            return np.tensordot(self.weights, A.cpu(), 1) @ (S / np.linalg.norm(S, 2, axis=(1, 2)))

        B, c = family(gaussian if self.delta is None else response, dy, dx), family(gaussian, dy)
        d, e = family(gaussian, dx), family(gaussian, dy)
        terms = Sample(A, B, c, H[:, :dx, :dx], d, H[:, dx:, dx:], e, H[:, :dx, dx:])
        self.set_up(terms, {**dict.fromkeys("ABc", "train"), **dict.fromkeys("DdFeG", "val")})

    def start(self) -> tuple[Tensor, ...]:
        return self._x.new_ones(self.dx), self._x.new_zeros(self.dy)

    @function
    def f(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        _, _, _, D, d, F, e, G = sample
        return 0.5 * x @ (D @ x) - d @ x + 0.5 * y @ (F @ y) - e @ y + x @ (G @ y)

    @f.both
    def f(self, x: Tensor, y: Tensor, sample: Sample) -> tuple[Tensor, Tensor]:
        _, _, _, D, d, F, e, G = sample
        return D @ x - d + G @ y, F @ y - e + x @ G

    @f.gradient
    def f(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        return sample.F @ y - sample.e + x @ sample.G

    @function
    def g(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        A, B, c, *_ = sample
        return 0.5 * y @ (A @ y) - y @ (B @ x + c)

    @g.both
    def g(self, x: Tensor, y: Tensor, sample: Sample) -> tuple[Tensor, Tensor]:
        A, B, c, *_ = sample
        return -(y @ B), A @ y - B @ x - c

    @g.gradient
    def g(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        return sample.A @ y - sample.B @ x - sample.c

    @g.second
    def g(self, x: Tensor, y: Tensor, sample: Sample) -> Second:
        A, B, c, *_ = sample
        return Second(A @ y - B @ x - c, lambda v: A @ v, lambda v: -(v @ B))


@dataclass(eq=False)
class QuadraticBilevel(NestedQuadratic, Bilevel):
    """A quadratic bilevel problem whose lower level is the mean of the clients' functions g_i: all clients share one y*(x).

    `NestedQuadratic` describes the arguments.
    """

    def inner_solution(self, x: Tensor) -> Tensor:
        """Return the solution y*(x) of the lower level, ``[dy]``.

        Args:
            x: The outer variable, ``[dx]``.
        """
        return torch.linalg.solve(self._mean.A, self._mean.B @ x + self._mean.c)

    def solution(self) -> tuple[Tensor, ...]:
        x, (A, _, _, _, _, F, e, G) = self._x, self._mean
        y = self.inner_solution(x)
        return x, y, torch.linalg.solve(A, F @ y - e + G.T @ x)
