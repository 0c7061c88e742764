"""Personalised linear regression: a model for each client, drawn to a common one [Rajeswaran et al. 2019, Dinh et al. 2020].

    min_x sum_i p_i mean_val 1/2 (z'y_i(x) - t)^2,    y_i(x) = argmin_y mean_train 1/2 (z'y - t)^2 + lam/2 |y - x|^2

z has the features of an example and a 1, t is its target. Both levels are quadratic, so that y_i(x), the outer objective and its
minimiser have closed forms. They are those of `quadratic_local_bilevel` with A_i = mean_train zz' + lam I, B_i = lam I,
c_i = mean_train tz, F_i = mean_val zz', e_i = mean_val tz, and D, d and G zero.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.data import Batch, Batches, LabelledData
from fedopt.errors import UserError
from fedopt.metrics import DISTANCE, OBJECTIVE, Metric
from fedopt.problems.classes import LocalBilevel, Weighting
from fedopt.problems.function import Second, function
from fedopt.problems.quadratic_bilevel import Sample
from fedopt.problems.quadratic_local_bilevel import mean_reduced
from fedopt.problems.supervised import Fraction, Labelled
from fedopt.randomness import Part

RANK = 1e-10  # eigenvalues of the outer Hessian below this share of the largest are zero, as of columns that sum to one
EXCESS = Metric("excess", "excess of the outer objective over its minimum", scale="log", bounds=True)
TEST_RMSE = Metric("test_rmse", "root mean squared error on test examples")


def residual(y: Tensor, batch: Batch) -> Tensor:
    """Return z'y - t of each example, [B]."""
    return batch.x @ y - batch.y


def squared(y: Tensor, batch: Batch) -> Tensor:
    """Return the weighted mean of 1/2 (z'y - t)^2, a scalar."""
    return 0.5 * residual(y, batch) ** 2 @ batch.weight


def gradient(y: Tensor, batch: Batch) -> Tensor:
    """Return the gradient of `squared`, [dy]."""
    return (batch.weight * residual(y, batch)) @ batch.x


@dataclass(eq=False)
class PersonalisedRegression(Labelled, LocalBilevel):
    """Linear regression with a model for each client, all drawn to a common one.

    x: the common model, [features + 1], with an intercept. y: a client's own model, of the same length.

    lam: the strength of the pull of y to x.
    validation: the fraction of its examples that a client validates on, unless the data say which.
    weighting: clients weigh by their numbers of training examples (samples), or equally (uniform).
    examples, features: the size of the artificial table that is used if no data set is chosen. A fifth more is for testing.
    spread: the deviation of the clients' true coefficients in it, around common ones of deviation 1.
    """

    lam: PositiveFloat
    validation: Fraction
    weighting: Weighting
    examples: PositiveInt
    features: PositiveInt
    spread: NonNegativeFloat

    direct = False
    metrics = (EXCESS, TEST_RMSE, DISTANCE, OBJECTIVE)

    def __post_init__(self) -> None:
        data = self._made() if self.world.dataset is None else self.world.load(validation=True, real=True)
        if data.tokens or data.x_train.ndim != 2 or data.class_names:
            raise UserError(
                "problem=personalised_regression needs a table of numbers [n, features], and y of numbers; choose "
                "dataset=npz with such a file, or dataset=none"
            )
        self.divide(data, held_out=self.validation)
        for part in (self.train, self._test):
            part.x, part.y = F.pad(part.x, (0, 1), value=1.0), part.y.to(part.x)
        self._owner = self._owners_of_tests(data)
        self._terms, halves = self._of_clients()
        outer = mean_reduced(self._terms, self.weights)
        self._outer = outer._replace(value=outer.value + torch.from_numpy(self.weights).to(halves) @ halves)
        inverse = torch.linalg.pinv(self._outer.hessian, rtol=RANK, hermitian=True)
        self._x = -inverse @ self._outer.constant  # of all minimisers, the one nearest to the start
        self._least = float(self._outer.value + 0.5 * self._x @ self._outer.constant)

    def _made(self) -> LabelledData:
        """Return a table whose targets are linear in the features, with coefficients of each client."""
        rng, M, n = self.world.rng(Part.EXAMPLES), self.world.clients, self.examples
        owner = np.empty(n, dtype=np.int64)
        for split in self.world.split(n, None, self.validation).values():
            owner[split.rows] = np.repeat(np.arange(M), split.sizes)
        owner = np.concatenate([owner, np.arange(max(n // 5, 1)) % M])
        z = rng.standard_normal((len(owner), self.features))
        model = rng.standard_normal(self.features) + self.spread * rng.standard_normal((M, self.features))
        t = (z * model[owner]).sum(1) + rng.standard_normal(len(owner))
        return LabelledData(z[:n], t[:n], z[n:], t[n:], pixels="raw")

    def _owners_of_tests(self, data: LabelledData) -> np.ndarray:
        """Return the client whose model each test example is predicted by, [n]; -1 for the common model.

        Where the partition does not follow the data's own clients, they are dealt out in turn.
        """
        if (names := self.splits["train"].names) and data.owners_test is not None:
            client = {name: i for i, name in enumerate(names)}
            return np.array([client.get(str(owner), -1) for owner in data.owners_test])
        return np.arange(len(data.y_test)) % self.clients

    def _of_clients(self) -> tuple[Sample, Tensor]:
        """Return the terms of all clients, [M, ...], and mean_val 1/2 t^2 of each, [M], in double precision."""

        def moments(split: str) -> list[Tensor]:
            of_clients = []
            for rows in self.splits[split]:
                z, t = self.train.x[rows].double(), self.train.y[rows].double()
                of_clients.append([term / len(rows) for term in (z.T @ z, t @ z, 0.5 * t @ t)])
            return [torch.stack(terms) for terms in zip(*of_clients, strict=True)]

        (A, c, _), (F, e, halves) = moments("train"), moments("val")
        pull = self.lam * torch.eye(A.shape[1]).to(A).expand_as(A)
        return Sample(A + pull, pull, c, 0 * A, 0 * c, F, e, 0 * A), halves

    def inner_solutions(self, x: Tensor) -> Tensor:
        """Return y_i(x) of all clients, [M, dy]."""
        return torch.linalg.solve(self._terms.A, self.lam * x.to(self._terms.A) + self._terms.c)

    def hypergradient(self, x: Tensor) -> Tensor:
        """Return the gradient of the outer objective, [dx], in closed form."""
        return self._outer.hessian @ x.to(self._outer.hessian) + self._outer.constant

    def start(self) -> tuple[Tensor, ...]:
        zero = self.train.x.new_zeros(self.train.x.shape[1])
        return zero, zero.clone()

    def solution(self) -> tuple[Tensor, ...]:
        return (self._x.to(self.train.x),)

    @function
    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        return squared(y, sample["val"])

    @f.gradient
    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        return gradient(y, sample["val"])

    @f.both
    def f(self, x: Tensor, y: Tensor, sample: Batches) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(x), gradient(y, sample["val"])

    @function
    def g(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        return squared(y, sample["train"]) + 0.5 * self.lam * torch.sum((y - x) ** 2)

    @g.gradient
    def g(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        return gradient(y, sample["train"]) + self.lam * (y - x)

    @g.both
    def g(self, x: Tensor, y: Tensor, sample: Batches) -> tuple[Tensor, Tensor]:
        return self.lam * (x - y), self.g.gradient(x, y, sample)

    @g.second
    def g(self, x: Tensor, y: Tensor, sample: Batches) -> Second:
        batch = sample["train"]
        product = lambda v: (batch.weight * (batch.x @ v)) @ batch.x + self.lam * v  # noqa: E731
        return Second(self.g.gradient(x, y, sample), product, lambda v: -self.lam * v)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x = point[0].to(self._x)
        off = x - self._x
        excess = float(0.5 * off @ (self._outer.hessian @ off))
        models = torch.cat([self.inner_solutions(x), x[None]])[torch.from_numpy(self._owner).to(x.device)]
        errors = torch.sum(self._test.x * models, 1) - self._test.y
        return {
            "excess": excess,
            "test_rmse": float(torch.sqrt(torch.mean(errors**2))),
            "distance": float(torch.linalg.norm(off)),
            "objective": self._least + excess,
        }
