"""A strongly convex, strongly concave quadratic saddle with closed forms, also of what naive averaging makes of it
[Fed-Norm-SGDA Fig. 1].

    f_i(x, y) = 1/2 x'A_i x - (c_i + noise)'x + x'B_i y - 1/2 y'D_i y + (e_i + noise)'y

With weights w_i, and the weighted means over clients written without index, the saddle solves A x + B y = c, B'x - D y = -e.
Equal weights give the solution; averaging without normalisation ends where w_i is proportional to |a_i|_1 (eq. 2), for local
steps that vanish.
"""

from collections import namedtuple
from dataclasses import dataclass, field

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.errors import UserError
from fedopt.metrics import DISTANCE, DISTANCE_X, DISTANCE_Y, OBJECTIVE, Metric
from fedopt.networks import number
from fedopt.problems.classes import Minimax
from fedopt.problems.function import function
from fedopt.problems.quadratics import Quadratic, gaussian, spd

MISMATCHED = Metric("distance_mismatched", "distance to the saddle of mismatched weights", scale="log")

Sample = namedtuple("Sample", "A B D c e")


@dataclass(eq=False)
class QuadraticMinimax(Quadratic, Minimax):
    """A quadratic saddle point problem.

    dx, dy: the dimensions of x and y.
    conditioning: the condition number of the A_i and of the D_i. heterogeneity, noise, examples: as in `Quadratic`.
    mismatch: [M], wrong weights of the clients, up to a factor. The metric `distance_mismatched` is the distance to the
        saddle of the sum with these weights; None leaves the metric out. UserError if it does not have M entries.
    coupling: the factor of the B_i. Where it is large the game turns, and descent-ascent needs small steps or diverges.
    """

    dx: PositiveInt
    dy: PositiveInt
    mismatch: list[PositiveFloat] | None
    coupling: NonNegativeFloat = field(default=1.0, kw_only=True, metadata={"before": 1.0})

    def __post_init__(self) -> None:
        dx, dy, family = self.dx, self.dy, self.families()
        self.splits = self.world.split(self.examples)
        if self.mismatch is not None and len(self.mismatch) != self.clients:
            raise UserError(
                f"problem.mismatch={self.mismatch}: must be a list with an entry for each of the {self.clients} clients"
            )
        terms = Sample(
            A=family(spd, dx, self.conditioning),
            B=self.coupling * family(gaussian, dx, dy),
            D=family(spd, dy, self.conditioning),
            c=family(gaussian, dx),
            e=family(gaussian, dy),
        )
        self.set_up(terms, dict.fromkeys("ABDce", "train"))
        self._mean = self.mean(self.weights)
        self._saddles = {"distance": self.saddle(self.weights)}
        if self.mismatch is not None:
            self._saddles["distance_mismatched"] = self.saddle(np.array(self.mismatch))
        self.metrics = (DISTANCE, OBJECTIVE, DISTANCE_X, DISTANCE_Y, *([] if self.mismatch is None else [MISMATCHED]))

    def saddle(self, weights: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return (x, y), the saddle of sum_i w_i f_i. weights: [M], which are divided by their sum."""
        A, B, D, c, e = self.mean(weights)
        x = torch.linalg.solve(A + B @ torch.linalg.solve(D, B.T), c - B @ torch.linalg.solve(D, e))
        return x, torch.linalg.solve(D, e + B.T @ x)

    def hessians(self) -> tuple[Tensor, ...]:
        A, B, D, *_ = self._mean
        return A + B @ torch.linalg.solve(D, B.T), D

    def constants(self) -> dict[str, float]:
        """Return the constants of the mean game. kappa: Lipschitz constant over strong monotonicity of its field."""
        A, B, D, *_ = self._mean
        field = torch.cat([torch.cat([A, B], 1), torch.cat([-B.T, D], 1)])
        modulus = min(torch.linalg.eigvalsh(matrix)[0] for matrix in (A, D))
        return {**super().constants(), "kappa": float(torch.linalg.matrix_norm(field, 2) / modulus)}

    def solution(self) -> tuple[Tensor, ...]:
        return self._saddles["distance"]

    def start(self) -> tuple[Tensor, ...]:
        return self._mean.c.new_ones(self.dx), self._mean.e.new_ones(self.dy)

    @function
    def f(self, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        A, B, D, c, e = sample
        return 0.5 * x @ (A @ x) - c @ x + x @ (B @ y) - 0.5 * y @ (D @ y) + e @ y

    @f.both
    def f(self, x: Tensor, y: Tensor, sample: Sample) -> tuple[Tensor, Tensor]:
        A, B, D, c, e = sample
        return A @ x - c + B @ y, x @ B - D @ y + e

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the metrics. The objective is max_y f(x, y)."""
        x, y = point[:2]
        best = torch.linalg.solve(self._mean.D, self._mean.e + self._mean.B.T @ x)
        off = {name: (x - x_s, y - y_s) for name, (x_s, y_s) in self._saddles.items()}
        off_x, off_y = off["distance"]
        return {
            "objective": number(self.f(x, best, self._mean)),
            "distance_x": number(torch.linalg.norm(off_x)),
            "distance_y": number(torch.linalg.norm(off_y)),
            **{name: number(torch.linalg.norm(torch.cat(both))) for name, both in off.items()},
        }
