"""A strongly convex quadratic of two levels with closed forms.

    f_i^0(x) = A_i x + c_i + noise
    f_i^1(y) = 1/2 y'Q_i y - (e_i + noise)'y

With the means over clients written without index, the gradient of F^1(F^0(x)) is A' (Q (A x + c) - e), linear in x.
"""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor

from fedopt.errors import UserError
from fedopt.metrics import DISTANCE, HYPERGRADIENT_NORM, OBJECTIVE
from fedopt.problems.classes import Composition, TwoLevel
from fedopt.problems.function import function
from fedopt.problems.quadratics import Quadratic, gaussian, isometry, spd

Sample = namedtuple("Sample", "A c Q e")


@dataclass(eq=False)
class QuadraticComposition(Quadratic, Composition):
    """What the quadratic compositions share.

    d0, d1: the dimensions of x and of f^0(x), d0 <= d1 (else UserError). The common matrix and each client's, which are mixed
        into A_i, have orthonormal columns.
    conditioning: the condition number of the Q_i. heterogeneity, noise, examples: as in `Quadratic`.
    """

    d0: PositiveInt
    d1: PositiveInt

    metrics = (DISTANCE, OBJECTIVE, HYPERGRADIENT_NORM)

    def __post_init__(self) -> None:
        if self.d0 > self.d1:
            raise UserError(
                f"problem.d0={self.d0}: must be at most problem.d1={self.d1}, else the composition is not strongly convex"
            )
        self.splits, family = self.world.split(self.examples), self.families()
        self.dims = (self.d0, self.d1)
        A, Q = family(isometry, self.d1, self.d0), family(spd, self.d1, self.conditioning)
        self.set_up(Sample(A, family(gaussian, self.d1), Q, family(gaussian, self.d1)), dict.fromkeys("AcQe", "train"))
        (A, c, Q, e), w = self.compositions()
        Qc = torch.einsum("pjk,pk->pj", Q, c)
        self._hessian = torch.einsum("p,pji,pjk,pkl->il", w, A, Q, A)
        self._linear = torch.einsum("p,pji,pj->i", w, A, e - Qc)
        self._constant = w @ torch.sum(c * (Qc / 2 - e), dim=1)
        self._x = torch.linalg.solve(self._hessian, self._linear)

    def compositions(self) -> tuple[Sample, Tensor]:
        """Return the terms of P compositions, [P, ...] each, and their weights, [P]. Their weighted mean is the objective."""
        raise NotImplementedError

    def gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of the objective, [d0], in closed form."""
        return self._hessian @ x - self._linear

    def hessians(self) -> tuple[Tensor, ...]:
        return self._hessian, torch.eye(self.d1).to(
            self._hessian
        )  # a lower level, 1/2 |y - f^0(x)|^2, would give y = f^0(x)

    def start(self) -> tuple[Tensor, ...]:
        return (self._linear.new_ones(self.d0),)

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

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x = point[0]
        return {
            "objective": float(x @ (self._hessian @ x / 2 - self._linear) + self._constant),
            "distance": float(torch.linalg.norm(x - self._x)),
            "hypergradient_norm": float(torch.linalg.norm(self.gradient(x))),
        }


@dataclass(eq=False)
class QuadraticCompositional(QuadraticComposition, TwoLevel):
    """A quadratic composition of the clients' means. The keys are those of `QuadraticComposition`."""

    def compositions(self) -> tuple[Sample, Tensor]:
        self._mean = self.mean(self.weights)
        return Sample(*(term[None] for term in self._mean)), self._mean.c.new_ones(1)

    def solution(self) -> tuple[Tensor, ...]:
        return self._x, self.level(0, self._x, self._mean)
