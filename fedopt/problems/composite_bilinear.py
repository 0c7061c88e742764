"""A bilinear saddle point problem with l1 penalties and box constraints [FeDualEx, Bai & Bullins 2024].

The problem is::

    min over |x_k| <= D, max over |y_k| <= D of   y'(A x - b) + lam |x|_1 - lam |y|_1

Read in the paper's text: dimensions 600 and 300, lam = 0.1, D = 0.05, 100 clients, gradients with noise of standard
deviation 0.1, and both metrics. Chosen here: A and b are standard normal, and the noise is in the linear terms of
examples, which sum to zero over each client.

Problems can have a constraint set for y but not for x. Therefore A is applied to the projection of x onto the box,
while |x|_1 is the norm of x itself. The solutions are the same: inside the box, f is unchanged; outside, the penalty
makes the projection a better point.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.data import of_finite
from fedopt.metrics import Metric
from fedopt.networks import number
from fedopt.problems.classes import Minimax, Rows
from fedopt.problems.policeman_burglar import DUALITY_GAP
from fedopt.problems.projections import box
from fedopt.randomness import Part

NON_ZEROS = Metric("non_zeros", "share of non-zero entries of x and y", better="neither")


class Sample(NamedTuple):
    """One client's sample.

    Attributes:
        b: The client's vector b_i, ``[n]``.
        x: Mean of the examples' linear terms in x, ``[m]``.
        y: Mean of the examples' linear terms in y, ``[n]``.
    """

    b: Tensor
    x: Tensor
    y: Tensor


@dataclass(eq=False)
class CompositeBilinear(Minimax):
    """A bilinear saddle point problem with l1 penalties and box constraints.

    The problem is::

        min over |x_k| <= D, max over |y_k| <= D of   y'(A x - b) + lam |x|_1 - lam |y|_1

    Args:
        m, n: Dimensions of x and y.
        lam: Factor of the penalties.
        D: Half the width of the boxes.
        penalties: ``in_f``: f includes the penalties. ``by_method``: f does not, for methods that apply them themselves, such
            as FeDualEx.
        heterogeneity: Standard deviation of the clients' b_i around their mean b.
        noise: Standard deviation of the examples' linear terms, which sum to zero over each client's examples.
        examples: Number of examples over all clients.
        x0: Initial value of every coordinate of x and y.
    """

    m: PositiveInt
    n: PositiveInt
    lam: NonNegativeFloat
    D: PositiveFloat
    penalties: Literal["in_f", "by_method"]
    heterogeneity: NonNegativeFloat
    noise: NonNegativeFloat
    examples: PositiveInt
    x0: float

    metrics = (DUALITY_GAP, NON_ZEROS)

    def __post_init__(self) -> None:
        world = self.world
        self.splits = world.split(self.examples)
        rng = world.rng(Part.COMMON)
        A, b = rng.standard_normal((self.n, self.m)), rng.standard_normal(self.n)
        own = self.heterogeneity * world.rng(Part.CLIENTS).standard_normal((self.clients, self.n))
        terms = self.noise * world.rng(Part.EXAMPLES).standard_normal((self.examples, self.m + self.n))
        for rows in self.splits["train"]:
            terms[rows] -= terms[rows].mean(0)
        self._A, self._b, self._terms = (world.tensor(v) for v in (A, b, terms))
        self.per_client = {"b": world.tensor(b + own - own.mean(0))}

    def start(self) -> tuple[Tensor, ...]:
        return self._A.new_full((self.m,), self.x0), self._b.new_full((self.n,), self.x0)

    def sample(self, client: int | Tensor, rows: Rows) -> Sample:
        index, weight = rows["train"]
        of_x, of_y = (weight @ self._terms[index]).split([self.m, self.n])
        return Sample(self.per_client["b"][client], of_x, of_y)

    def f(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        value = y @ (self._A @ self.project(x) - sample.b) + sample.x @ x + sample.y @ y
        return value if self.penalties == "by_method" else value + self.lam * (x.abs().sum() - y.abs().sum())

    def project(self, y: Tensor) -> Tensor:
        return box(y, -self.D, self.D)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name, at the projections of x and y onto the boxes.

        The duality gap is::

            lam (|x|_1 + |y|_1) + b'y + D sum_k (|A x - b|_k - lam)_+ + D sum_k (|A'y|_k - lam)_+

        Args:
            point: The variables (x, y).
        """
        x, y = map(self.project, point[:2])
        reached = [torch.relu(slope.abs() - self.lam).sum() for slope in (self._A @ x - self._b, self._A.T @ y)]
        entries = torch.cat([x, y])
        gap = self.lam * entries.abs().sum() + self._b @ y + self.D * sum(reached)
        return {"duality_gap": number(gap), "non_zeros": number(of_finite(entries != 0, entries).double().mean())}
