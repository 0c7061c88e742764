"""Problems to test with, and their derivatives by central differences."""

import numpy as np
import torch

from fedopt.data.partitioners import Iid
from fedopt.data.world import World
from fedopt.problems.quadratic_bilevel import QuadraticBilevel
from fedopt.problems.quadratic_compositional import QuadraticCompositional

F64 = torch.float64


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def full(problem, client):
    """The sample of all examples of a client."""
    return problem.sample(client, {name: whole(split[client]) for name, split in problem.splits.items()})


def whole(rows):
    return torch.from_numpy(rows), torch.full((len(rows),), 1 / len(rows), dtype=F64)


def mean(problem, fn):
    """(1/M) sum_i fn(sample of all examples of client i)."""
    return sum(fn(full(problem, i)) for i in range(problem.clients)) / problem.clients


def central_differences(fn, x, step=1e-5):
    """The gradient of a scalar function, or the Jacobian of a vector one: [..., d]."""
    x = np.asarray(x, dtype=np.float64)
    columns = []
    for e in np.eye(len(x)) * step:
        high, low = (np.asarray(fn(torch.from_numpy(z)), dtype=np.float64) for z in (x + e, x - e))
        columns.append((high - low) / (2 * step))
    return np.stack(columns, axis=-1)


def quadratic(seed=0, clients=4, **changes):
    fields = {"dx": 3, "dy": 5, "conditioning": 10.0, "heterogeneity": 1.0, "noise": 2.0, "examples": 120, **changes}
    return QuadraticBilevel(World(seed, Iid(clients), dtype=F64), **fields)


def two_levels(clients=4, **changes):
    fields = {"d0": 3, "d1": 5, "conditioning": 10.0, "heterogeneity": 1.0, "noise": 2.0, "examples": 120, **changes}
    return QuadraticCompositional(World(0, Iid(clients), dtype=F64), **fields)


class Given:
    """A data source that holds the data itself."""

    def __init__(self, data):
        self.data = data

    def load(self):
        return self.data
