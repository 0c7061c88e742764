"""A strongly convex quadratic hierarchical problem with closed forms.

The functions are::

    f1(x)     = 1/2 |x|^2
    f2_i(y)   = 1/2 |y - d_i|^2
    h_i(x, y) = 1/2 y'A_i y - y'(B_i x + c_i + noise)

Each client has its own solution y_i(x) of the lower level. The gradient of the implicit function is linear in x, so that
smoothing over a ball does not change it::

    y_i(x)   = A_i^-1 (B_i x + c_i)
    gradient = x + mean_i B_i' A_i^-1 (y_i(x) - d_i)
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

    `Quadratic` describes the arguments that are not listed here.

    Args:
        d: Dimension of x and of each y_i.
        conditioning: Condition number of the matrices A_i, whose largest eigenvalue is at most 1.
        delta: Heterogeneity around a fixed mean problem (see `Quadratic`). It must be below 1, because an A_i could be singular
            otherwise.
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

    def server_sample(self, rng: np.random.Generator, size: int | None) -> None:
        return None

    def f1(self, x: Tensor, sample: None) -> Tensor:
        return 0.5 * x @ x

    def f2(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        return 0.5 * torch.sum((y - sample.d) ** 2)

    def h(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        return 0.5 * y @ (sample.A @ y) - y @ (sample.B @ x + sample.c)
