"""Personalised linear regression with closed forms: each client's model is pulled towards a common model.

With the features z of an example (and a 1 for the intercept) and its target t [Rajeswaran et al. 2019, Dinh et al. 2020]::

    min_x  sum_i p_i mean_val 1/2 (z'y_i(x) - t)^2
    y_i(x) = argmin_y mean_train 1/2 (z'y - t)^2 + lam/2 |y - x|^2

Both levels are quadratic: this is `quadratic_local_bilevel` with the terms::

    A_i = mean_train zz' + lam I,    B_i = lam I,    c_i = mean_train tz
    F_i = mean_val zz',    e_i = mean_val tz,    D = d = G = 0
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import PositiveFloat
from torch import Tensor

from fedopt.data import Batches, Logits
from fedopt.metrics import DISTANCE, OBJECTIVE, Metric
from fedopt.problems.classes import LocalBilevel
from fedopt.problems.function import Second, function
from fedopt.problems.linear_regression import RANK, TEST_RMSE, Table, gradient, squared
from fedopt.problems.quadratic_bilevel import Sample, reduced
from fedopt.problems.supervised import Fraction

EXCESS = Metric("excess", "excess of the outer objective over its minimum", scale="log", bounds=True)


@dataclass(eq=False)
class PersonalisedRegression(Table, LocalBilevel):
    """Linear regression with a model for each client that is pulled towards a common model.

    The variable x is the common model with an intercept, ``[features + 1]``, and y is a client's own model of the same
    length. `Table` describes the arguments that are not listed here.

    Args:
        lam: Factor of |y - x|^2 / 2 in the lower level.
        validation: Fraction of each client's examples used for validation, unless the data mark validation examples.
    """

    lam: PositiveFloat
    validation: Fraction

    direct = False
    metrics = (EXCESS, TEST_RMSE, DISTANCE, OBJECTIVE)

    def __post_init__(self) -> None:
        self.set_table("personalised_regression", self.validation)
        (self._A, self._c, _), (self._F, self._e, self._halves) = self.moments("train"), self.moments("val")
        self.weigh()

    def weigh(self) -> None:
        self._p = torch.from_numpy(self.weights).to(self._halves)
        A, c, zero = self._A, self._c, 0 * self._A
        pull = self.lam * torch.eye(A.shape[1]).to(A).expand_as(A)
        outer = reduced(Sample(A + pull, pull, c, zero, 0 * c, self._F, self._e, zero)).mean(self.weights)
        self._outer = outer._replace(value=outer.value + self._p @ self._halves)
        inverse = torch.linalg.pinv(self._outer.hessian, rtol=RANK, hermitian=True)
        self._x = -inverse @ self._outer.constant  # the minimiser nearest to the start
        self._least = float(self._outer.value + 0.5 * self._x @ self._outer.constant)

    def inner_solutions(self, x: Tensor) -> Tensor:
        """Return the solutions y_i(x) of the lower level of all clients, ``[M, dy]``.

        Args:
            x: The common model, ``[dx]``.
        """
        pull = self.lam * torch.eye(self._A.shape[1]).to(self._A)
        return torch.linalg.solve(self._A + pull, self.lam * x.to(self._A) + self._c)

    def own(self, variables: Mapping[str, Tensor]) -> Tensor:
        return self.inner_solutions(variables["x"]).to(variables["x"])

    def hypergradient(self, x: Tensor) -> Tensor:
        """Return the exact gradient of the outer objective at x, ``[dx]``.

        Args:
            x: The common model, ``[dx]``.
        """
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

    def deploys(self, own: bool, common: bool) -> None:
        super().deploys(True, True)  # every method has the own models y_i(x) and the common model x

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name, at x and the exact y_i(x).

        Args:
            point: The common model x. Further entries are ignored.
        """
        tested = self.test_metrics(*self.models(*point))
        off = point[0].to(self._x) - self._x
        excess = float(0.5 * off @ (self._outer.hessian @ off))
        distance = float(torch.linalg.norm(off))
        return {"excess": excess, **tested, "distance": distance, "objective": self._least + excess}

    def models(self, *point: Tensor) -> tuple[Logits, Tensor]:
        """Return the common model x as a function from inputs to outputs, and the exact y_i(x), ``[M, dy]``.

        Args:
            point: The common model x. Further entries are ignored.
        """
        return partial(self.predicted, point[0]), self.inner_solutions(point[0]).to(point[0])
