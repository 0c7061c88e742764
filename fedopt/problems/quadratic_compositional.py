"""A strongly convex quadratic composition of two levels, with closed forms.

The functions are::

    f_i^0(x) = A_i x + c_i + noise
    f_i^1(y) = 1/2 y'Q_i y - (e_i + noise)'y

With terms without an index for means over clients, the gradient of F^1(F^0(x)) is linear in x::

    A' (Q (A x + c) - e)
"""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor

from fedopt.errors import UserError
from fedopt.problems.classes import Composition, TwoLevel
from fedopt.problems.function import function
from fedopt.problems.quadratics import Outer, Reduced, columns, gaussian, isometry, spd

Sample = namedtuple("Sample", "A c Q e")


@dataclass(eq=False)
class QuadraticComposition(Reduced, Composition):
    """Base class of the quadratic compositions.

    The matrix A_i is a mixture of a common matrix and of the client's own matrix, which both have orthonormal columns.
    `Quadratic` describes the arguments that are not listed here.

    Args:
        d0, d1: Dimensions of x and of f^0(x).
        conditioning: Condition number of the matrices Q_i.

    Raises:
        UserError: d0 is larger than d1.
    """

    d0: PositiveInt
    d1: PositiveInt

    def __post_init__(self) -> None:
        if self.d0 > self.d1:
            raise UserError(f"problem.d0={self.d0}: must be at most problem.d1={self.d1}; choose a smaller problem.d0")
        self.splits, family = self.world.split(self.examples), self.families()
        self.dims = (self.d0, self.d1)
        A, Q = family(isometry, self.d1, self.d0), family(spd, self.d1, self.conditioning)
        self.set_up(Sample(A, family(gaussian, self.d1), Q, family(gaussian, self.d1)), dict.fromkeys("AcQe", "train"))

    def reduced(self, terms: Sample) -> Outer:
        A, c, Q, e = columns(terms)
        constant, value = A.mT @ (Q @ c - e), c.mT @ (0.5 * Q @ c - e)
        return Outer(A.mT @ Q @ A, constant[..., 0], value[..., 0, 0])

    def hessians(self) -> tuple[Tensor, ...]:
        lower = torch.eye(self.d1).to(self._x)  # Hessian of the equivalent lower level, 1/2 |y - f^0(x)|^2
        return self._outer.hessian, lower

    @function
    def level(self, n: int, z: Tensor, sample: Sample) -> Tensor:
        A, c, Q, e = sample
        return A @ z + c if n == 0 else 0.5 * z @ (Q @ z) - e @ z

    @level.gradient
    def level(self, n: int, z: Tensor, sample: Sample) -> Tensor:
        return sample.Q @ z - sample.e

    @level.pullback
    def level(self, n: int, z: Tensor, sample: Sample) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return sample.A @ z + sample.c, lambda v: v @ sample.A


@dataclass(eq=False)
class QuadraticCompositional(QuadraticComposition, TwoLevel):
    """A quadratic composition of means over clients. `QuadraticComposition` describes the arguments."""

    def solution(self) -> tuple[Tensor, ...]:
        return self._x, self.level(0, self._x, self._mean)
