"""Invariant logistic regression: labels do not change when the features are perturbed [Hu et al. 2020, Wu et al. 2023].

The problem is::

    min_x  E_{a, b} log(1 + exp(-b E_{eta | a}[eta]'x)) + lam sum_k gamma x_k^2 / (1 + gamma x_k^2)
    a ~ N(0, I),    b = sign(a'w),    eta ~ N(a, sigma^2 I)

Because E[eta | a] = a, the exact objective is logistic regression on a. A public code instead takes the mean of the
losses at single eta, which is another problem without nesting.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt.data import of_finite
from fedopt.metrics import OBJECTIVE, Metric
from fedopt.networks import number
from fedopt.problems.classes import Conditional, Rows
from fedopt.problems.keyed import normal
from fedopt.randomness import Part

GRADIENT_NORM = Metric("gradient_norm", "norm of the exact gradient", scale="log")
ERROR = Metric("error", "wrong labels on the clients' examples", "%")


class Sample(NamedTuple):
    """A sample of pairs (a, b).

    Attributes:
        a: Features, ``[B, d]``.
        b: Labels, -1 or 1, ``[B]``.
        weight: Weights with sum 1, ``[B]``.
        keys: The key of the inner samples, as a tuple with one element; empty for their expectation.
    """

    a: Tensor
    b: Tensor
    weight: Tensor
    keys: tuple[Tensor, ...] = ()


@dataclass(eq=False)
class InvariantLogistic(Conditional):
    """Logistic regression on perturbed features, a conditional problem.

    With features a, their perturbed copies eta, and labels b, the problem is::

        min_x  E_{a, b} log(1 + exp(-b E_{eta | a}[eta]'x)) + lam sum_k gamma x_k^2 / (1 + gamma x_k^2)

    Args:
        d: Dimension of x and a.
        examples: Number of pairs (a, b) over all clients.
        sigma: Standard deviation of eta around a.
        inner: Number of inner samples eta for each pair (a, b), new ones in every sample. None: their expectation.
        lam: Factor of the nonconvex penalty.
        gamma: Scale of the penalty.
    """

    d: PositiveInt
    examples: PositiveInt
    sigma: NonNegativeFloat
    inner: PositiveInt | None
    lam: NonNegativeFloat
    gamma: NonNegativeFloat

    metrics = (OBJECTIVE, GRADIENT_NORM, ERROR)

    def __post_init__(self) -> None:
        world = self.world
        rng = world.rng(Part.DATA)
        w, a = rng.standard_normal(self.d), rng.standard_normal((self.examples, self.d))
        self.a, self.w = world.tensor(a), world.tensor(w)
        self.b = torch.where(self.a @ self.w > 0, 1.0, -1.0).to(self.a)
        self.splits, self.random = world.split(self.examples), self.inner is not None

    def start(self) -> tuple[Tensor, ...]:
        return (torch.zeros_like(self.w),)

    def sample(self, client: int | Tensor, rows: Rows) -> Sample:
        index, weight = rows["train"]
        return Sample(self.a[index], self.b[index], weight)

    def keyed(self, sample: Sample, key: Tensor) -> Sample:
        return sample._replace(keys=(key,))

    def f(self, x: Tensor, sample: Sample) -> Tensor:
        a, b, weight, keys = sample
        for key in keys:  # the mean of `inner` normal eta is normal
            a = a + self.sigma / (self.inner or 1) ** 0.5 * normal(key, *a.shape).to(a)
        squares = self.gamma * x**2
        return weight @ F.softplus(-b * (a @ x)) + self.lam * torch.sum(squares / (1 + squares))

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name, for the exact objective with the expectation over eta.

        Args:
            point: The variable x.
        """
        everything = self.sample(0, {"train": self.pooled()})
        gradient, objective = torch.func.grad_and_value(self.f)(point[0], everything)
        margins = everything.a @ point[0]
        wrong = of_finite(margins.sign() != everything.b, margins)
        return {
            "objective": number(objective),
            "gradient_norm": number(torch.linalg.norm(gradient)),
            "error": 100 * number(everything.weight @ wrong),
        }
