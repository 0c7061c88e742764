"""A quadratic game, the test problem of local minimax methods [ProxSkip-VIP, Zhang et al. 2024].

With the mean over client i's functions j::

    f_i(x, y) = mean_j  1/2 x'A_j x + x'B_j y - 1/2 y'C_j y + a_j'x - c_j'y

The public code (ProxSkipVIP), which we read, has 20 clients with 100 functions each, 10 + 10 dimensions, eigenvalues of
A_j and C_j uniform in [0.01, 1], eigenvalues of B_j uniform in [0, 1], standard normal a_j and c_j, and starts at 0.
Example j of the data is function j.
"""

from collections import namedtuple
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.metrics import DISTANCE, Metric
from fedopt.networks import number
from fedopt.problems.classes import Minimax, Rows
from fedopt.problems.function import function, written_for
from fedopt.problems.quadratics import isometry, of_client
from fedopt.randomness import Part

RELATIVE = Metric("relative_distance", "|w - w*|² / |w*|²", scale="log")

Function = namedtuple("Function", "A B C a c")


@dataclass(eq=False)
class QuadraticGame(Minimax):
    """A saddle point problem in which each example is a quadratic function, and f_i is the mean of client i's functions.

    Args:
        d: Dimension of x and of y.
        examples: Number of functions over all clients.
        mu, L: The eigenvalues of A_j and C_j are uniform between mu and L.
        coupling: The eigenvalues of B_j are uniform between 0 and this value.
        heterogeneity: 0: all functions are replaced with their mean. 1: the random functions are used. Other values interpolate.
    """

    d: PositiveInt
    examples: PositiveInt
    mu: PositiveFloat
    L: PositiveFloat
    coupling: NonNegativeFloat
    heterogeneity: Annotated[float, Field(ge=0, le=1)]

    metrics = (RELATIVE, DISTANCE)

    def __post_init__(self) -> None:
        world, n, d = self.world, self.examples, self.d
        self.splits, rng = world.split(n), world.rng(Part.DATA)

        def symmetric(low: float, high: float) -> np.ndarray:
            axes = isometry(rng, n, d, d)
            return (axes * rng.uniform(low, high, (n, 1, d))) @ axes.swapaxes(1, 2)

        A, B, C = symmetric(self.mu, self.L), symmetric(0.0, self.coupling), symmetric(self.mu, self.L)
        sampled = Function(A, B, C, rng.standard_normal((n, d)), rng.standard_normal((n, d)))
        weights = self.splits["train"].example_weights(self.weights)
        self._functions, self.per_client, means = [], {}, []
        train = self.splits["train"]
        for name, terms in sampled._asdict().items():
            mean = np.tensordot(weights, terms[train.rows], 1)
            functions = mean + self.heterogeneity * (terms - mean)
            self._functions.append(world.tensor(functions))
            sums = np.add.reduceat(functions[train.rows], train.offsets)
            self.per_client[name] = world.tensor(sums / train.sizes.reshape(-1, *[1] * (terms.ndim - 1)))
            means.append(mean)
        A, B, C, a, c = means
        w = np.linalg.solve(np.block([[A, B], [B.T, -C]]), np.concatenate([-a, c]))
        self._solution = tuple(world.tensor(v) for v in np.split(w, 2))

    def solution(self) -> tuple[Tensor, ...]:
        return self._solution

    def start(self) -> tuple[Tensor, ...]:
        zero = torch.zeros_like(self._solution[0])
        return zero, zero.clone()

    def sample(self, client: int | Tensor, rows: Rows) -> Function:
        """Return the weighted mean of several functions of the client.

        Args:
            client: Index of the client, which is not used.
            rows: For the split ``train``, the indices of the functions (over all clients), ``[B]``, and their weights, ``[B]``.
        """
        index, weight = rows["train"]
        return Function(*(torch.tensordot(weight, terms[index], dims=1) for terms in self._functions))

    @written_for(sample)
    def full_sample(self, client: int | Tensor) -> Function:
        """Return the mean of all of the client's functions.

        Args:
            client: Index of the client.
        """
        return Function(*of_client(self.per_client, client))

    @function
    def f(self, x: Tensor, y: Tensor, sample: Function) -> Tensor:
        A, B, C, a, c = sample
        return 0.5 * x @ (A @ x) + x @ (B @ y) - 0.5 * y @ (C @ y) + a @ x - c @ y

    @f.both
    def f(self, x: Tensor, y: Tensor, sample: Function) -> tuple[Tensor, Tensor]:
        A, B, C, a, c = sample
        return A @ x + B @ y + a, x @ B - C @ y - c

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        known = torch.cat(self._solution)
        off = torch.linalg.norm(torch.cat(point[:2]) - known)
        return {"relative_distance": number((off / torch.linalg.norm(known)) ** 2), "distance": number(off)}
