from dataclasses import dataclass

import torch
from fedopt import Metric, Minimisation


@dataclass(eq=False)
class MyRegression(Minimisation):
    d: int
    examples: int

    metrics = (Metric("mse", "mean squared error", scale="log", bounds=True),)
    weighting = "samples"  # clients are weighted by their number of examples, as in `evaluate`

    def __post_init__(self):
        rng = self.world.rng("data")
        a, x = rng.standard_normal((self.examples, self.d)), rng.standard_normal(self.d)
        self.a, self.b = self.world.tensor(a), self.world.tensor(a @ x + 0.1 * rng.standard_normal(self.examples))
        self.splits = self.world.split(self.examples)  # which client has which examples

    def start(self):
        return (torch.zeros_like(self.a[0]),)

    def sample(self, client, rows):
        index, weight = rows["train"]  # indices of some of the client's examples, and their weights, which sum to 1
        return self.a[index], self.b[index], weight

    def f(self, x, sample):
        a, b, weight = sample
        return weight @ (a @ x - b) ** 2

    def evaluate(self, x, *more):
        return {"mse": float(torch.mean((self.a @ x - self.b) ** 2))}
