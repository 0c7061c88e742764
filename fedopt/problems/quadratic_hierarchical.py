"""A strongly convex quadratic hierarchical problem with closed forms.

    f1(x) = 1/2 |x|^2,    f2_i(y) = 1/2 |y - d_i|^2,    h_i(x, y) = 1/2 y'A_i y - y'(B_i x + c_i + noise)

y_i(x) = A_i^-1 (B_i x + c_i) is each client's own, and the gradient of the implicit function,
x + mean_i B_i' A_i^-1 (y_i(x) - d_i), is linear in x. Smoothing it over a ball leaves it as it is.
"""

from collections import namedtuple
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedopt.problems.classes import Hierarchical
from fedopt.problems.quadratics import Outer, Reduced, columns, gaussian, spd

Sample = namedtuple("Sample", "A B c d")


@dataclass(eq=False)
class QuadraticHierarchical(Reduced, Hierarchical):
    """A quadratic hierarchical problem.

    d: the dimension of x and of each y_i.
    conditioning: the condition number of the A_i, whose largest eigenvalue is at most 1. heterogeneity, noise, examples: as
        in `Quadratic`. delta is below 1, where an A_i may be singular.
    """

    d: PositiveInt
    delta: Annotated[float, Field(ge=0, lt=1)] | None = field(default=None, kw_only=True, metadata={"before": None})

    each_client = True

    def __post_init__(self) -> None:
        self.splits, family, d = self.world.split(self.examples), self.families(), self.d
        A, B = family(spd, d, self.conditioning), family(gaussian, d, d)
        terms = Sample(A, B, family(gaussian, d), family(gaussian, d))
        self.set_up(terms, dict.fromkeys("ABc", "train"))

    def reduced(self, terms: Sample) -> Outer:
        A, B, c, d = columns(terms)
        S, off = torch.linalg.solve(A, B), torch.linalg.solve(A, c) - d  # y_i(x) - d_i = S_i x + off_i
        value = 0.5 * off.mT @ off
        return Outer(torch.eye(self.d).to(A) + S.mT @ S, (S.mT @ off)[..., 0], value[..., 0, 0])

    def inner_solutions(self, x: Tensor) -> Tensor:
        """Return y_i(x) of all clients, [M, d]."""
        own = self.per_client
        return torch.linalg.solve(own["A"], own["B"] @ x + own["c"])

    def server_sample(self, rng: np.random.Generator, size: int | None) -> None:
        return None

    def f1(self, x: Tensor, sample: None) -> Tensor:
        return 0.5 * x @ x

    def f2(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        return 0.5 * torch.sum((y - sample.d) ** 2)

    def h(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        return 0.5 * y @ (sample.A @ y) - y @ (sample.B @ x + sample.c)
