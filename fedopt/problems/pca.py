"""The first principal component: a quadratic on the sphere, whose minimiser is known.

The problem is::

    min_{|x| = 1}  sum_i p_i f_i(x),    f_i(x) = -1/2 x'A_i x

The solutions are the eigenvectors x and -x of the mean of the A_i to its largest eigenvalue.
"""

from collections import namedtuple
from dataclasses import dataclass

import torch
from pydantic import PositiveInt
from torch import Tensor

from fedopt.metrics import DISTANCE, OBJECTIVE
from fedopt.networks import number
from fedopt.problems.classes import Minimisation
from fedopt.problems.quadratics import Quadratic, spd

Sample = namedtuple("Sample", "A")


@dataclass(eq=False)
class Pca(Quadratic, Minimisation):
    """The first principal component of random matrices A_i.

    `Quadratic` describes the arguments that are not listed here.

    Args:
        dim: Dimension of x.
    """

    dim: PositiveInt

    metrics = (DISTANCE, OBJECTIVE)

    def __post_init__(self) -> None:
        family = self.families()
        self.splits = self.world.split(self.examples)
        self.set_up(Sample(family(spd, self.dim, self.conditioning)), {"A": "train"})
        self.weigh()

    def weigh(self) -> None:
        self._mean = self.mean(self.weights)
        component = torch.linalg.eigh(self._mean.A).eigenvectors[:, -1]
        self._component = component * torch.sign(component.sum())

    def hessians(self) -> tuple[Tensor, ...]:
        return (self._mean.A,)

    def start(self) -> tuple[Tensor, ...]:
        return (self.project_x(self.per_client["A"].new_ones(self.dim)),)

    def solution(self) -> tuple[Tensor, ...]:
        """Return the solution that is nearest to the initial point."""
        return (self._component,)

    def project_x(self, x: Tensor) -> Tensor:
        return x / torch.linalg.norm(x)

    def f(self, x: Tensor, sample: Sample) -> Tensor:
        return -0.5 * x @ (sample.A @ x)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x = point[0]
        distance = torch.minimum(torch.linalg.norm(x - self._component), torch.linalg.norm(x + self._component))
        return {"distance": number(distance), "objective": number(self.f(x, self._mean))}
