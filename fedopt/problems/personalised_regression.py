"""Personalised linear regression: a model for each client, drawn to a common one [Rajeswaran et al. 2019, Dinh et al. 2020].

    min_x sum_i p_i mean_val 1/2 (z'y_i(x) - t)^2,    y_i(x) = argmin_y mean_train 1/2 (z'y - t)^2 + lam/2 |y - x|^2

z has the features of an example and a 1, t is its target. Both levels are quadratic, so that y_i(x), the outer objective and its
minimiser have closed forms. They are those of `quadratic_local_bilevel` with A_i = mean_train zz' + lam I, B_i = lam I,
c_i = mean_train tz, F_i = mean_val zz', e_i = mean_val tz, and D, d and G zero.

The strengths lam_i may be learnt too, with x = (w, s) and log lam_i = log lam + sqrt(M) s_i: hypergradients of w and s_i are of
one size then, and no longer linear. y_i keeps its closed form.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor

from fedopt.data import Batches, Logits
from fedopt.metrics import DISTANCE, OBJECTIVE, Metric
from fedopt.problems.classes import LocalBilevel, Rows
from fedopt.problems.function import Second, function
from fedopt.problems.linear_regression import RANK, TEST_RMSE, Table, gradient, squared
from fedopt.problems.quadratic_bilevel import Sample, reduced
from fedopt.problems.supervised import Fraction

EXCESS = Metric("excess", "excess of the outer objective over its minimum", scale="log", bounds=True)


@dataclass(eq=False)
class PersonalisedRegression(Table, LocalBilevel):
    """Linear regression with a model for each client, all drawn to a common one.

    x: the common model, [features + 1], with an intercept. y: a client's own model, of the same length.

    lam: the strength of the pull of y to x.
    validation: the fraction of its examples that a client validates on, unless the data say which.
    strengths: whether all pulls have the strength lam (fixed), one that x learns from lam on (common), or each client has its
        own, which x learns (client).
    """

    lam: PositiveFloat
    validation: Fraction
    strengths: Literal["fixed", "common", "client"] = field(default="fixed", kw_only=True, metadata={"before": "fixed"})

    direct = False

    def __post_init__(self) -> None:
        self.set_table("personalised_regression", self.validation)
        (self._A, self._c, _), (self._F, self._e, self._halves) = self.moments("train"), self.moments("val")
        self._p = torch.from_numpy(self.weights).to(self._halves)
        if self.strengths == "fixed":
            self._solve()
        else:
            self.metrics = (OBJECTIVE, TEST_RMSE)

    def _solve(self) -> None:
        """Set the metrics, the outer objective as a quadratic function, and its minimiser."""
        self.metrics = (EXCESS, TEST_RMSE, DISTANCE, OBJECTIVE)
        A, c, zero = self._A, self._c, 0 * self._A
        pull = self.lam * torch.eye(A.shape[1]).to(A).expand_as(A)
        outer = reduced(Sample(A + pull, pull, c, zero, 0 * c, self._F, self._e, zero)).mean(self.weights)
        self._outer = outer._replace(value=outer.value + self._p @ self._halves)
        inverse = torch.linalg.pinv(self._outer.hessian, rtol=RANK, hermitian=True)
        self._x = -inverse @ self._outer.constant  # of all minimisers, the one nearest to the start
        self._least = float(self._outer.value + 0.5 * self._x @ self._outer.constant)

    def pulls(self, x: Tensor, client: Tensor) -> tuple[Tensor, Any]:
        """Return w, [dy], and the strengths of the pulls of these clients, of the shape of their indices."""
        if self.strengths == "fixed":
            return x, self.lam
        w, s = x.split([self.train.x.shape[1], len(x) - self.train.x.shape[1]])
        s = s.expand(self.clients) if self.strengths == "common" else math.sqrt(self.clients) * s
        return w, self.lam * torch.exp(s.gather(0, client.reshape(-1)).reshape(client.shape))

    def inner_solutions(self, x: Tensor) -> Tensor:
        """Return y_i(x) of all clients, [M, dy]."""
        w, lam = self.pulls(x.to(self._A), torch.arange(self.clients, device=x.device))
        lam = torch.as_tensor(lam, dtype=w.dtype, device=w.device).expand(self.clients)[:, None]
        system = self._A + torch.diag_embed(lam.expand_as(self._c)), lam * w + self._c
        return torch.linalg.solve_ex(*system)[0]  # which raises nothing where strengths have diverged

    def own(self, variables: Mapping[str, Tensor]) -> Tensor:
        return self.inner_solutions(variables["x"]).to(variables["x"])

    def hypergradient(self, x: Tensor) -> Tensor:
        """Return the gradient of the outer objective, [dx], in closed form, for fixed strengths."""
        return self._outer.hessian @ x.to(self._outer.hessian) + self._outer.constant

    def start(self) -> tuple[Tensor, ...]:
        zero = self.train.x.new_zeros(self.train.x.shape[1])
        strengths = {"fixed": 0, "common": 1, "client": self.clients}[self.strengths]
        return torch.cat([zero, zero.new_zeros(strengths)]), zero

    def solution(self) -> tuple[Tensor, ...] | None:
        return (self._x.to(self.train.x),) if self.strengths == "fixed" else None

    def sample(self, client: int | Tensor, rows: Rows) -> Mapping[str, Any]:
        batches = super().sample(client, rows)
        return batches if self.strengths == "fixed" else {**batches, "client": torch.as_tensor(client)}

    @function
    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        return squared(y, sample["val"])

    @f.gradient
    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        return gradient(y, sample["val"])

    @function(where=lambda problem: problem.strengths == "fixed")
    def g(self, x: Tensor, y: Tensor, sample: Mapping[str, Any]) -> Tensor:
        w, lam = self.pulls(x, sample.get("client"))
        return squared(y, sample["train"]) + 0.5 * lam * torch.sum((y - w) ** 2)

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

    def deploys(self, own: bool, common: bool) -> None:
        super().deploys(True, True)  # y_i(x), whatever the method

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the metrics, all at the exact y_i(x). Alone is as in `linear_regression`."""
        common, y = self.models(*point)
        tested, y = self.test_metrics(common, y), y.to(self._A)
        if self.strengths != "fixed":
            values = 0.5 * torch.einsum("id,ide,ie->i", y, self._F, y) - torch.sum(self._e * y, 1) + self._halves
            return {"objective": float(self._p @ values), **tested}
        off = point[0].to(self._x) - self._x
        excess = float(0.5 * off @ (self._outer.hessian @ off))
        distance = float(torch.linalg.norm(off))
        return {"excess": excess, **tested, "distance": distance, "objective": self._least + excess}

    def models(self, *point: Tensor) -> tuple[Logits, Tensor]:
        """Return the model w, and the exact y_i(x), [M, dy]."""
        w = point[0][: self.train.x.shape[1]]
        return partial(self.predicted, w), self.inner_solutions(point[0]).to(w)
