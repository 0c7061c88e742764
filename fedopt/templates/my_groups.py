from dataclasses import dataclass

import torch
from fedopt import Metric, Minimax, simplex


@dataclass(eq=False)
class MyGroups(Minimax):
    """Minimise the error of the worst group of examples; x has the coefficients, y the weights of the groups (in the simplex)."""

    d: int
    examples: int
    groups: int
    lam: float

    metrics = (Metric("worst_mse", "mean squared error of the worst group", scale="log", bounds=True),)
    weighting = "samples"  # clients are weighted by their number of examples, as in `evaluate`

    def __post_init__(self):
        rng, world = self.world.rng("data"), self.world
        a, x = rng.standard_normal((self.examples, self.d)), rng.standard_normal(self.d)
        group = rng.integers(self.groups, size=self.examples)
        b = a @ x + 0.1 * 2**group * rng.standard_normal(self.examples)  # each group is noisier than the one before
        self.a, self.b, self.group = world.tensor(a), world.tensor(b), torch.from_numpy(group).to(world.device)
        self.splits = world.split(self.examples)

    def start(self):
        y = self.b.new_full((self.groups,), 1 / self.groups)
        return torch.zeros_like(self.a[0]), y

    def sample(self, client, rows):
        index, weight = rows["train"]
        return self.a[index], self.b[index], self.group[index], weight

    def f(self, x, y, sample):
        a, b, group, weight = sample
        return (weight * self.groups * y[group]) @ (a @ x - b) ** 2 - 0.5 * self.lam * y @ y

    def project(self, y):
        return simplex(y)  # the nearest point with entries >= 0 whose sum is 1

    def evaluate(self, x, *more):
        errors = (self.a @ x - self.b) ** 2
        return {"worst_mse": max(float(errors[self.group == g].mean()) for g in range(self.groups))}
