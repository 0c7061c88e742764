"""The smallest hierarchical problem whose implicit function is neither smooth nor convex [ZO-HFL, appendix, eq. 2].

The functions are::

    f1 = 0,    f2_i(x, y) = 1/2 |x + 1 - y|^2,    h_i(x, y) = |y - x|^2 over y >= 0
    y_i(x) = max(x, 0)

In each coordinate, the objective 1/2 (x + 1 - max(x, 0))^2 has its minimum 0 at x = -1. For x >= 0 it is constant, 1/2,
and so stationary for x > 0.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from fedopt.metrics import DISTANCE, OBJECTIVE
from fedopt.networks import number
from fedopt.problems.classes import Hierarchical, Rows


@dataclass(eq=False)
class ImplicitToy(Hierarchical):
    """A small hierarchical problem without data, which is the same for all clients.

    The outer functions are f1 = 0 and f2_i(x, y) = 1/2 |x + 1 - y|^2, and the inner function is h_i(x, y) = |y - x|^2 over
    y >= 0.

    Args:
        d: Dimension of x.
        x0: Initial value of every coordinate.
    """

    d: PositiveInt
    x0: float

    metrics = (DISTANCE, OBJECTIVE)

    def __post_init__(self) -> None:
        world = self.world
        self.splits = world.split(world.clients)  # one placeholder example per client
        self._start = torch.full((self.d,), self.x0, device=world.device, dtype=world.dtype)

    def solution(self) -> tuple[Tensor, ...]:
        return (torch.full_like(self._start, -1.0),)

    def start(self) -> tuple[Tensor, ...]:
        return (self._start,)

    def sample(self, client: int | Tensor, rows: Rows) -> Tensor:
        return rows["train"][1]  # a placeholder: the functions need no data

    def server_sample(self, rng: np.random.Generator, size: int | None) -> None:
        return None

    def f1(self, x: Tensor, sample: Any) -> Tensor:
        return 0 * x.sum()

    def f2(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        return 0.5 * torch.sum((x + 1 - y) ** 2)

    def h(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        return torch.sum((y - x) ** 2)

    def project(self, x: Tensor, y: Tensor, sample: Any) -> Tensor:
        return y.clamp(min=0)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        (x,) = point
        y = x.clamp(min=0)
        return {"objective": number(self.f2(x, y, None)), "distance": number(torch.linalg.norm(x + 1))}
