"""The quadratic bilevel problem whose lower level belongs to each client, with closed forms.

    min_x sum_i p_i f_i(x, y_i*(x)),    y_i*(x) = argmin_y g_i(x, y) = A_i^-1 (B_i x + c_i)

f_i, g_i and their numbers are those of `quadratic_bilevel`, whose y* solves the mean of the g_i: the solutions differ unless
clients are equal.
"""

from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedopt.problems.classes import LocalBilevel
from fedopt.problems.quadratic_bilevel import NestedQuadratic, Outer, Sample, reduced


def mean_reduced(terms: Sample, weights: np.ndarray) -> Outer:
    """Return sum_i p_i f_i(x, y_i*(x)) as a quadratic function of x.

    terms: the terms of all clients, [M, ...]. weights: [M], the p_i.
    """
    p = torch.from_numpy(weights).to(terms.A)
    return Outer(*(torch.tensordot(p, part, dims=1) for part in reduced(terms)))


@dataclass(eq=False)
class QuadraticLocalBilevel(NestedQuadratic, LocalBilevel):
    """A quadratic bilevel problem in which each client has a lower level, and so a solution y_i*(x), of its own.

    delta: as in `Quadratic`, but below 1, where a client's A_i may be singular.
    """

    delta: Annotated[float, Field(ge=0, lt=1)] | None = field(default=None, kw_only=True, metadata={"before": None})

    def outer(self, terms: Sample) -> Outer:
        return mean_reduced(terms, self.weights)

    def solution(self) -> tuple[Tensor, ...]:
        return (self._x,)
