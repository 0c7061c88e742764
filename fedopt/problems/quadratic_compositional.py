"""A strongly convex quadratic of two levels with closed forms.

    f_i^0(x) = A_i x + c_i + noise
    f_i^1(y) = 1/2 y'Q_i y - (e_i + noise)'y

With the means over clients written without index, the gradient of F^1(F^0(x)) is A' (Q (A x + c) - e), linear in x.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt.errors import UserError
from fedopt.metrics import DISTANCE, HYPERGRADIENT_NORM, OBJECTIVE
from fedopt.problems.classes import Rows, TwoLevel
from fedopt.problems.quadratics import Families, centred_noise, gaussian, isometry, spd


class Sample(NamedTuple):
    """One client's matrices and its linear terms with the sample's noise."""

    A: Tensor
    c: Tensor
    Q: Tensor
    e: Tensor


@dataclass(eq=False)
class QuadraticCompositional(TwoLevel):
    """d0, d1: dimensions of x and of y = F^0(x), d0 <= d1. Each A_i is drawn with orthonormal columns before it is mixed.

    conditioning: the ratio of the largest to the least eigenvalue of the Q_i.
    heterogeneity: 0 makes all clients equal, 1 mixes each client's matrices half and half with its own, and so on.
    noise: standard deviation of the examples' linear terms around their client's; a full local batch has none.
    examples: over all clients.
    """

    d0: PositiveInt
    d1: PositiveInt
    conditioning: Annotated[float, Field(ge=1)]
    heterogeneity: NonNegativeFloat
    noise: NonNegativeFloat
    examples: PositiveInt

    metrics = (DISTANCE, OBJECTIVE, HYPERGRADIENT_NORM)

    def __post_init__(self) -> None:
        if self.d0 > self.d1:
            raise UserError(
                f"problem.d0={self.d0}: must be at most problem.d1={self.d1}, else the composition is not strongly convex"
            )
        world = self.world
        self.splits = world.split(self.examples)
        self.dims = (self.d0, self.d1)
        families = Families(self.clients, self.heterogeneity, world)
        self.per_client = {
            "A": families(lambda rng: isometry(rng, self.d1, self.d0)),
            "Q": families(lambda rng: spd(rng, self.d1, self.conditioning)),
            **{name: families(lambda rng: gaussian(rng, self.d1)) for name in "ce"},
        }
        self._noise = {
            name: centred_noise(families.noise, self.noise, self.examples, self.d1, self.splits, world) for name in "ce"
        }
        self._mean = Sample(**{name: v.mean(0) for name, v in self.per_client.items()})
        A, c, Q, e = self._mean
        self.optimum = torch.linalg.solve(A.T @ Q @ A, A.T @ (e - Q @ c))

    def gradient(self, x: Tensor) -> Tensor:
        """grad F^1(F^0(x)), [d0], in closed form."""
        A, c, Q, e = self._mean
        return A.T @ (Q @ (A @ x + c) - e)

    def start(self) -> tuple[Tensor, ...]:
        return (self._mean.A.new_ones(self.d0),)

    def sample(self, client: int | Tensor, rows: Rows) -> Sample:
        index, weight = rows["train"]
        own = {name: v[client] for name, v in self.per_client.items()}
        noisy = {name: own[name] + weight @ noise[index] for name, noise in self._noise.items()}
        return Sample(**own | noisy)

    def level(self, n: int, z: Tensor, sample: Sample) -> Tensor:
        s = sample
        return s.A @ z + s.c if n == 0 else 0.5 * z @ (s.Q @ z) - s.e @ z

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x = point[0]
        assert self.optimum is not None
        return {
            "objective": float(self.level(1, self.level(0, x, self._mean), self._mean)),
            "distance": float(torch.linalg.norm(x - self.optimum)),
            "hypergradient_norm": float(torch.linalg.norm(self.gradient(x))),
        }
