"""Risk-averse optimisation, a composition of three levels [FedMSA, Sec. 4; Balasubramanian et al. 2022].

The problem is::

    min_x  E U(x) + lam sqrt(E max(0, U(x) - E U(x))^2 + delta),    U(x) = (b - (a'x)^2)^2

The paper's formula of f1 omits the square. U depends only on (a'x)^2, so x* and -x* are both solutions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.metrics import DISTANCE, OBJECTIVE, Metric
from fedopt.networks import number
from fedopt.problems.classes import Compositional, Rows
from fedopt.problems.function import function
from fedopt.randomness import Part

Sample = tuple[Tensor, Tensor, Tensor]  # vectors a, [B, d], numbers b, [B], and weights, [B]
SUBOPTIMALITY = Metric("suboptimality", "objective minus its value at x*")


@dataclass(eq=False)
class Mco(Compositional):
    """Risk-averse phase retrieval, a composition of three levels [FedMSA].

    With the loss U(x) = (b - (a'x)^2)^2 of an example (a, b), the problem is::

        min_x  E U(x) + lam sqrt(E max(0, U(x) - E U(x))^2 + delta)

    The data are random::

        a ~ N(0, C),    C = (A'A)^(1/2),    A_ij ~ N(0, 1)
        b = (a'x*)^2 + noise,    x* ~ N(0, I)

    Args:
        d: Dimension of x.
        examples: Number of pairs (a, b) over all clients.
        lam: Factor of the risk.
        delta: Constant under the square root of the risk.
        noise_variance: Variance of the noise in b.
        x0: Initial value of every coordinate.
    """

    d: PositiveInt
    examples: PositiveInt
    lam: NonNegativeFloat
    delta: PositiveFloat
    noise_variance: NonNegativeFloat
    x0: Annotated[float, Field(ge=-1e30, le=1e30)]

    metrics = (DISTANCE, OBJECTIVE, SUBOPTIMALITY)

    def __post_init__(self) -> None:
        world = self.world
        rng = world.rng(Part.DATA)
        A = rng.standard_normal((self.d, self.d))
        variances, axes = np.linalg.eigh(A.T @ A)  # C = axes sqrt(variances) axes', so that C^(1/2) has the fourth root
        root = axes * np.maximum(variances, 0) ** 0.25
        solution = rng.standard_normal(self.d)
        a = rng.standard_normal((self.examples, self.d)) @ root.T
        b = (a @ solution) ** 2 + np.sqrt(self.noise_variance) * rng.standard_normal(self.examples)
        self.a, self.b, self.planted = (world.tensor(v) for v in (a, b, solution))
        self.splits = world.split(self.examples)
        self.dims = (self.d, self.d + 1, 2)
        self._objective_at_planted = self._objective(self.planted)

    def start(self) -> tuple[Tensor, ...]:
        return (torch.full_like(self.a[0], self.x0),)

    def sample(self, client: int | Tensor, rows: Rows) -> Sample:
        index, weight = rows["train"]
        return self.a[index], self.b[index], weight

    @function
    def level(self, n: int, z: Tensor, sample: Sample) -> Tensor:
        if n == 2:  # f2(u, s) = u + lam sqrt(s + delta); a noisy s may be negative
            return z[0] + self.lam * torch.sqrt(torch.relu(z[1]) + self.delta)
        a, b, weight = sample
        U = (b - (a @ z[: self.d]) ** 2) ** 2
        if n == 0:  # f0(x) = (x, E U(x))
            return torch.cat([z, (weight @ U)[None]])
        excess = torch.relu(U - z[self.d])  # f1(x, u) = (u, E max(0, U(x) - u)^2)
        return torch.stack([z[self.d], weight @ excess**2])

    @level.gradient
    def level(self, n: int, z: Tensor, sample: Sample) -> Tensor:
        slope = 0.5 * self.lam / torch.sqrt(torch.relu(z[1]) + self.delta)
        return torch.stack([torch.ones_like(slope), torch.where(z[1] > 0, slope, 0.0)])

    @level.pullback
    def level(self, n: int, z: Tensor, sample: Sample) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        (a, b, weight), x = sample, z[: self.d]
        inner = a @ x
        off = b - inner**2
        U = off**2  # its gradient is -4 off inner a
        if n == 0:
            return torch.cat([x, (weight @ U)[None]]), lambda v: v[:-1] - (4 * v[-1] * weight * off * inner) @ a
        excess = torch.relu(U - z[-1])
        value, share = torch.stack([z[-1], weight @ excess**2]), 2 * weight * excess

        def pull(v: Tensor) -> Tensor:
            return torch.cat([-(4 * v[1] * share * off * inner) @ a, (v[0] - v[1] * share.sum())[None]])

        return value, pull

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name.

        The suboptimality may be negative, since x* solves the problem without noise in b and is only close to the minimiser.

        Args:
            point: The variable x. Further entries are ignored.
        """
        x = point[0]
        objective = self._objective(x)
        distance = torch.minimum(torch.linalg.norm(x - self.planted), torch.linalg.norm(x + self.planted))
        return {
            "objective": number(objective),
            "distance": number(distance),
            "suboptimality": number(objective - self._objective_at_planted),
        }

    def _objective(self, x: Tensor) -> Tensor:
        everything, z = self.sample(0, {"train": self.pooled()}), x
        for n in range(3):
            z = self.level(n, z, everything)
        return z
