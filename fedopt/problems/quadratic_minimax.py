"""A strongly convex, strongly concave quadratic saddle point problem with closed forms [Fed-Norm-SGDA, Fig. 1].

The functions are::

    f_i(x, y) = 1/2 x'A_i x - (c_i + noise)'x + x'B_i y - 1/2 y'D_i y + (e_i + noise)'y

With weights w_i and terms without an index for the weighted means over clients, the saddle point solves::

    A x + B y = c
    B'x - D y = -e

Equal weights give the solution. If clients take different numbers of local steps, averaging without normalisation
converges to the saddle point with weights w_i proportional to |a_i|_1 (eq. 2 of the paper) as local steps vanish.
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

    `Quadratic` describes the arguments that are not listed here.

    Args:
        dx, dy: Dimensions of x and y.
        conditioning: Condition number of the matrices A_i and D_i.
        mismatch: Wrong weights of the clients, ``[M]``, up to a factor. The metric distance_mismatched is the distance to the
            saddle point of the problem with these weights. None: there is no such metric.
        coupling: Factor of the matrices B_i. With a large value, the game rotates, and descent-ascent diverges unless its
            steps are small.

    Raises:
        UserError: ``mismatch`` does not have M entries.
    """

    dx: PositiveInt
    dy: PositiveInt
    mismatch: list[PositiveFloat] | None
    coupling: NonNegativeFloat = field(default=1.0, kw_only=True, metadata={"before": 1.0})

    def __post_init__(self) -> None:
        dx, dy, family = self.dx, self.dy, self.families()
        self.splits = self.world.split(self.examples)
        if self.mismatch is not None and len(self.mismatch) != self.clients:
            raise UserError(f"problem.mismatch={self.mismatch}: must have a number for each of {self.clients} clients")
        A, B = family(spd, dx, self.conditioning), self.coupling * family(gaussian, dx, dy)
        D, c, e = family(spd, dy, self.conditioning), family(gaussian, dx), family(gaussian, dy)
        self.set_up(Sample(A, B, D, c, e), dict.fromkeys("ABDce", "train"))
        self.weigh()
        self.metrics = (DISTANCE, OBJECTIVE, DISTANCE_X, DISTANCE_Y, *([] if self.mismatch is None else [MISMATCHED]))

    def weigh(self) -> None:
        self._mean = self.mean(self.weights)
        self._saddles = {"distance": self.saddle(self.weights)}
        if self.mismatch is not None:
            self._saddles["distance_mismatched"] = self.saddle(np.array(self.mismatch))

    def saddle(self, weights: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the saddle point (x, y) of sum_i w_i f_i.

        Args:
            weights: Weights of the clients, ``[M]``, up to a factor.
        """
        A, B, D, c, e = self.mean(weights)
        x = torch.linalg.solve(A + B @ torch.linalg.solve(D, B.T), c - B @ torch.linalg.solve(D, e))
        return x, torch.linalg.solve(D, e + B.T @ x)

    def hessians(self) -> tuple[Tensor, ...]:
        A, B, D, *_ = self._mean
        return A + B @ torch.linalg.solve(D, B.T), D

    def constants(self) -> dict[str, float]:
        """Return constants of the mean problem by name: L_x and L_y as in `Quadratic.constants`, and kappa.

        ``kappa`` is the Lipschitz constant of the gradient field, divided by its strong monotonicity constant.
        """
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
        """Return the value of each metric by name. The objective is max_y f(x, y).

        Args:
            point: The variables (x, y).
        """
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
