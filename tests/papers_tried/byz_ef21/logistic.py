"""Binary logistic regression on an artificial table."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import softplus

from fedopt import Metric, Minimisation


@dataclass(eq=False)
class Logistic(Minimisation):
    d: int
    examples: int
    l2: float

    metrics = (Metric("loss", "training loss of the honest clients", bounds=True),)

    def __post_init__(self):
        rng = self.world.rng("data")
        a, x = rng.standard_normal((self.examples, self.d)), rng.standard_normal(self.d)
        b = np.sign(a @ x + rng.standard_normal(self.examples))
        self.a, self.b = self.world.tensor(a), self.world.tensor(b)
        self.splits = self.world.split(self.examples)

    def start(self):
        return (torch.ones_like(self.a[0]),)

    def sample(self, client, rows):
        index, weight = rows["train"]
        return self.a[index], self.b[index], weight

    def f(self, x, sample):
        a, b, weight = sample
        return weight @ softplus(-b * (a @ x)) + self.l2 / 2 * x @ x

    def evaluate(self, x, *more):
        losses = softplus(-self.b * (self.a @ x))
        of_clients = zip(self.weights, self.splits["train"], strict=True)
        return {"loss": float(sum(p * losses[rows].mean() for p, rows in of_clients) + self.l2 / 2 * x @ x)}
