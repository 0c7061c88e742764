from dataclasses import dataclass

import torch
from fedopt import Metric, TwoLevel


@dataclass(eq=False)
class MyRisk(TwoLevel):
    """Mean loss plus lam times the variance of the losses u(x): F1(F0(x)), F0(x) = (x, E u), F1(x, m) = m + lam E (u - m)^2."""

    d: int
    examples: int
    lam: float

    metrics = (Metric("objective", "mean plus lam times variance", scale="log", bounds=True),)
    weighting = "samples"  # clients are weighted by their number of examples, as in `evaluate`

    def __post_init__(self):
        rng = self.world.rng("data")
        a, x = rng.standard_normal((self.examples, self.d)), rng.standard_normal(self.d)
        self.a, self.b = self.world.tensor(a), self.world.tensor(a @ x + 0.1 * rng.standard_normal(self.examples))
        self.splits = self.world.split(self.examples)
        self.dims = (self.d, self.d + 1)  # the dimensions of the inputs of the levels

    def start(self):
        return (torch.zeros_like(self.a[0]),)

    def sample(self, client, rows):
        index, weight = rows["train"]
        return self.a[index], self.b[index], weight

    def level(self, n, z, sample):
        a, b, weight = sample
        u = torch.log1p((a @ z[: self.d] - b) ** 2)
        if n == 0:
            return torch.cat([z, (weight @ u)[None]])
        m = z[self.d]
        return m + self.lam * weight @ (u - m) ** 2

    def evaluate(self, x, *more):
        u = torch.log1p((self.a @ x - self.b) ** 2)
        return {"objective": float(u.mean() + self.lam * u.var(correction=0))}
