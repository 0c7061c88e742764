"""Problems to test with, and their derivatives by central differences."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedopt.data.partitioners import Iid
from fedopt.data.world import World
from fedopt.problems.quadratic_bilevel import QuadraticBilevel
from fedopt.problems.quadratic_compositional import QuadraticCompositional

F64 = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def full(problem: Any, client: int) -> Any:
    """The sample of all examples of a client."""
    return problem.sample(client, {name: whole(split[client]) for name, split in problem.splits.items()})


def whole(rows: np.ndarray) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(rows), torch.full((len(rows),), 1 / len(rows), dtype=F64)


def mean(problem: Any, fn: Callable[[Any], Any]) -> Any:
    """(1/M) sum_i fn(sample of all examples of client i)."""
    return sum(fn(full(problem, i)) for i in range(problem.clients)) / problem.clients


def central_differences(fn: Callable[[Tensor], Any], x: Any, step: float = 1e-5) -> np.ndarray:
    """The gradient of a scalar function, or the Jacobian of a vector one: [..., d]."""
    x = np.asarray(x, dtype=np.float64)
    columns = []
    for e in np.eye(len(x)) * step:
        high, low = (np.asarray(fn(torch.from_numpy(z)), dtype=np.float64) for z in (x + e, x - e))
        columns.append((high - low) / (2 * step))
    return np.stack(columns, axis=-1)


def quadratic(seed: int = 0, clients: int = 4, **changes: Any) -> QuadraticBilevel:
    fields: dict[str, Any] = {
        "dx": 3,
        "dy": 5,
        "conditioning": 10.0,
        "heterogeneity": 1.0,
        "noise": 2.0,
        "examples": 120,
        **changes,
    }
    return QuadraticBilevel(World(seed, Iid(clients), dtype=F64), **fields)


def two_levels(clients: int = 4, **changes: Any) -> QuadraticCompositional:
    fields: dict[str, Any] = {
        "d0": 3,
        "d1": 5,
        "conditioning": 10.0,
        "heterogeneity": 1.0,
        "noise": 2.0,
        "examples": 120,
        **changes,
    }
    return QuadraticCompositional(World(0, Iid(clients), dtype=F64), **fields)


class Given:
    """A data source that holds the data itself."""

    def __init__(self, data: Any):
        self.data = data

    def load(self) -> Any:
        return self.data
