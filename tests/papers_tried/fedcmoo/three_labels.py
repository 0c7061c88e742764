# A linear model for three labels that disagree: h_k is the logistic loss of label k
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from fedopt import Metric, MultiObjective, oracle, simplex


@dataclass(eq=False)
class ThreeLabels(MultiObjective):
    d: int
    examples: int

    metrics = (
        Metric("stationarity", "norm of the shortest convex combination of the gradients", scale="log"),
        Metric("worst_loss", "largest loss of a label", bounds=True),
        Metric("mean_loss", "mean loss of the labels"),
    )

    def __post_init__(self):
        rng = self.world.rng("data")
        a = rng.standard_normal((self.examples, self.d))
        signs = np.sign(a @ rng.standard_normal((self.d, 3)) + rng.standard_normal((self.examples, 3)))
        self.a, self.signs = self.world.tensor(a), self.world.tensor(signs)
        self.splits = self.world.split(self.examples, labels=(signs[:, 0] > 0).astype(int))  # clients differ in label 0

    def start(self):
        return (torch.zeros_like(self.a[0]),)

    def sample(self, client, rows):
        index, weight = rows["train"]
        return self.a[index], self.signs[index], weight

    @oracle(3)
    def h(self, x, sample):
        a, signs, weight = sample
        return weight @ F.softplus(-signs * (a @ x)[:, None])

    def evaluate(self, x, *more):
        splits = [
            (self.a[rows], self.signs[rows], x.new_full((len(rows),), 1 / len(rows))) for rows in self.splits["train"]
        ]

        def losses(x):
            return torch.stack([self.h(x, split) for split in splits]).mean(0)

        values, J = losses(x), torch.func.jacrev(losses)(x)
        G, w = J @ J.mT, x.new_full((3,), 1 / 3)
        for _ in range(500):
            w = simplex(w - G @ w / G.trace())
        return {
            "stationarity": float((w @ J).norm()),
            "worst_loss": float(values.max()),
            "mean_loss": float(values.mean()),
        }
