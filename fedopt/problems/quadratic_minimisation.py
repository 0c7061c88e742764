"""A strongly convex quadratic with known solution, for minimisation methods.

The functions are::

    f_i(x) = 1/2 x'A_i x - (c_i + noise)'x

With terms without an index for means over clients, the solution solves A x = c. If clients are heterogeneous, methods
with plain local steps converge to another point (tests/algorithms/test_minimisation.py has its closed form).
"""

from collections import namedtuple
from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor

from fedopt.metrics import DISTANCE, OBJECTIVE, WORST_LOSS
from fedopt.networks import number
from fedopt.problems.classes import Minimisation
from fedopt.problems.function import function
from fedopt.problems.quadratics import Outer, Reduced, gaussian, spd

Sample = namedtuple("Sample", "A c")


@dataclass(eq=False)
class QuadraticMinimisation(Reduced, Minimisation):
    """A quadratic minimisation problem.

    `Quadratic` describes the arguments that are not listed here.

    Args:
        dim: Dimension of x.
    """

    dim: PositiveInt

    metrics = (DISTANCE, OBJECTIVE, WORST_LOSS)

    def __post_init__(self) -> None:
        family = self.families()
        self.splits = self.world.split(self.examples)
        terms = Sample(A=family(spd, self.dim, self.conditioning), c=family(gaussian, self.dim))
        self.set_up(terms, dict.fromkeys("Ac", "train"))

    def reduced(self, terms: Sample) -> Outer:
        return Outer(terms.A, -terms.c, terms.c.new_zeros(()))

    def hessians(self) -> tuple[Tensor, ...]:
        return (self._outer.hessian,)

    def last_layer(self) -> int:
        return max(self.dim // 2, 1)  # half of x, for methods that share only the other half

    @function
    def f(self, x: Tensor, sample: Sample) -> Tensor:
        A, c = sample
        return 0.5 * x @ (A @ x) - c @ x

    @f.gradient
    def f(self, x: Tensor, sample: Sample) -> Tensor:
        return sample.A @ x - sample.c

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        found = super().evaluate(*point)
        del found["hypergradient_norm"]
        losses = torch.func.vmap(self.f, in_dims=(None, 0))(point[0], Sample(**self.per_client))
        return {**found, "worst_loss": number(losses.max())}
