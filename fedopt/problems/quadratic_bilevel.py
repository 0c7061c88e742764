"""A strongly convex quadratic bilevel problem with closed forms: the first problem of any new method.

    g_i(x, y) = 1/2 y'A_i y - y'(B_i x + c_i + noise)
    f_i(x, y) = 1/2 x'D_i x - (d_i + noise)'x + 1/2 y'F_i y - (e_i + noise)'y + x'G_i y

With the means over clients written without index, y*(x) = A^-1 (B x + c), the hypergradient is
grad f(x) = D x - d + G y* + B' A^-1 (F y* - e + G'x), and it is linear in x.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt.metrics import DISTANCE, HYPERGRADIENT_NORM, OBJECTIVE
from fedopt.problems.classes import Bilevel, Rows
from fedopt.problems.quadratics import Families, centred_noise, gaussian, spd


class Sample(NamedTuple):
    """One client's matrices and its linear terms with the sample's noise."""

    A: Tensor
    B: Tensor
    c: Tensor
    D: Tensor
    d: Tensor
    F: Tensor
    e: Tensor
    G: Tensor


@dataclass(eq=False)
class QuadraticBilevel(Bilevel):
    """dx, dy: dimensions of x and y.

    conditioning: the ratio of the largest to the least eigenvalue of the Hessians of g_i in y and of f_i in (x, y).
    heterogeneity: 0 makes all clients equal, 1 mixes each client's matrices half and half with its own, and so on.
    noise: standard deviation of the examples' linear terms around their client's; a full local batch has none.
    examples: over all clients.
    """

    dx: PositiveInt
    dy: PositiveInt
    conditioning: Annotated[float, Field(ge=1)]
    heterogeneity: NonNegativeFloat
    noise: NonNegativeFloat
    examples: PositiveInt

    metrics = (DISTANCE, OBJECTIVE, HYPERGRADIENT_NORM)

    def __post_init__(self) -> None:
        world = self.world
        dx, dy = self.dx, self.dy
        self.splits = world.split(self.examples, None, 0.5)
        families = Families(self.clients, self.heterogeneity, world)

        def spds(dim: int) -> Tensor:
            return families(lambda rng: spd(rng, dim, self.conditioning))

        def gaussians(*shape: int) -> Tensor:
            return families(lambda rng: gaussian(rng, *shape))

        def noise(dim: int) -> Tensor:
            return centred_noise(families.noise, self.noise, self.examples, dim, self.splits, world)

        H = spds(dx + dy)  # of f in (x, y) together: then f(x, y*(x)) is strongly convex too
        blocks = {"D": H[:, :dx, :dx], "F": H[:, dx:, dx:], "G": H[:, :dx, dx:]}
        matrices = {"A": spds(dy), "B": gaussians(dy, dx), **blocks}
        linear = {"c": gaussians(dy), "d": gaussians(dx), "e": gaussians(dy)}
        self.per_client = {**matrices, **linear}
        self._noise = {name: noise(v.shape[1]) for name, v in linear.items()}
        self._solve()

    def _solve(self) -> None:
        m = {name: v.mean(0) for name, v in self.per_client.items()}
        self._mean = m
        S = torch.linalg.solve(m["A"], m["B"])  # dy*/dx
        y0 = torch.linalg.solve(m["A"], m["c"])
        self._hessian = m["D"] + m["G"] @ S + S.T @ m["G"].T + S.T @ m["F"] @ S
        self._constant = -m["d"] + m["G"] @ y0 + S.T @ (m["F"] @ y0 - m["e"])
        self.optimum = -torch.linalg.solve(self._hessian, self._constant)

    def inner_solution(self, x: Tensor) -> Tensor:
        """y*(x), [dy]."""
        return torch.linalg.solve(self._mean["A"], self._mean["B"] @ x + self._mean["c"])

    def hypergradient(self, x: Tensor) -> Tensor:
        """grad f(x), [dx], in closed form."""
        return self._hessian @ x + self._constant

    def start(self) -> tuple[Tensor, ...]:
        return self._constant.new_ones(self.dx), self._constant.new_zeros(self.dy)

    def sample(self, client: int | Tensor, rows: Rows) -> Sample:
        parts = {name: v[client] for name, v in self.per_client.items()}
        for name, split in (("c", "train"), ("d", "val"), ("e", "val")):
            if split in rows:
                index, weight = rows[split]
                parts[name] = parts[name] + weight @ self._noise[name][index]
        return Sample(**parts)

    def f(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        s = sample
        outer = 0.5 * x @ (s.D @ x) - s.d @ x
        return outer + 0.5 * y @ (s.F @ y) - s.e @ y + x @ (s.G @ y)

    def g(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        s = sample
        return 0.5 * y @ (s.A @ y) - y @ (s.B @ x + s.c)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x = point[0]
        assert self.optimum is not None
        y = self.inner_solution(x)
        objective = self.f(x, y, Sample(**self._mean))
        return {
            "objective": float(objective),
            "distance": float(torch.linalg.norm(x - self.optimum)),
            "hypergradient_norm": float(torch.linalg.norm(self.hypergradient(x))),
        }
