"""Learning how strongly to regularise a linear classifier [benchmark_bilevel's ijcnn1 and covtype, after Pedregosa 2016].

    f(x, y) = the validation loss of the linear classifier y,    g(x, y) = its training loss + 1/2 sum_k e^{x_k} |y_k|²

y_k is what belongs to feature k, or to class k. Two classes have one vector y, and the logistic loss; more have a vector each, and
the cross-entropy. Read in the public code: ijcnn1 is binary with a strength for each feature, covtype has one for each class;
x = log U(0, 1) and y ~ N(0, 1) at the start. Coordinate k of the hypergradient is -e^{x_k} <y*_k, v*_k>, as derived here.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor

from fedopt.data import Batches, LabelledData, cross_entropy
from fedopt.errors import UserError
from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, VAL_LOSS, Metric
from fedopt.problems.classes import Bilevel, Weighting
from fedopt.problems.supervised import Fraction, Labelled
from fedopt.randomness import Part

FITTED_LOSS = Metric("fitted_loss", "validation loss at y*(x)", bounds=True)


@dataclass(eq=False)
class Regularisation(Labelled, Bilevel):
    """Learning the strengths of ridge penalties of a linear model.

    x: the logarithms of the strengths. y: the model, [outputs, features], flat; two classes have one output.

    per: whether each feature or each class has its own strength.
    weighting: clients weigh by their numbers of training examples (samples), or equally (uniform).
    validation: the fraction of its examples that a client validates on, unless the data say which.
    examples, features, classes: the size of the artificial data that are used if no data set is chosen. A fifth of them is
        for testing. Their labels follow a linear model in which half of the features matter.
    """

    per: Literal["feature", "class"]
    validation: Fraction
    weighting: Weighting
    examples: PositiveInt
    features: PositiveInt
    classes: Annotated[int, Field(ge=2)]

    metrics = (TEST_ACCURACY, TEST_LOSS, VAL_LOSS, FITTED_LOSS)

    def __post_init__(self) -> None:
        data = self._made() if self.world.dataset is None else self.world.load(validation=True)
        if data.tokens:
            raise UserError(
                "problem=regularisation weighs features, and token ids are not features; use "
                "dataset.tokens=false, or another problem"
            )
        self.divide(data, held_out=self.validation)
        self.outputs = 1 if self.classes == 2 else self.classes
        features, rng = self.train.x.shape[1], self.world.rng(Part.DATA)
        x = np.log(rng.random(features if self.per == "feature" else self.outputs))
        self._start = self.world.tensor(x), self.world.tensor(rng.standard_normal(self.outputs * features))

    def _made(self) -> LabelledData:
        rng = self.world.rng(Part.EXAMPLES)
        x, model = (
            rng.standard_normal(shape) for shape in ((self.examples, self.features), (self.features, self.classes))
        )
        model[(self.features + 1) // 2 :] = 0
        y = (2 * x @ model + rng.gumbel(size=(self.examples, self.classes))).argmax(1)  # drawn from the softmax
        test = max(self.examples // 5, 1)
        return LabelledData(x[test:], y[test:], x[:test], y[:test], pixels="raw")

    def logits(self, y: Tensor, inputs: Tensor) -> Tensor:
        """Return the logits [B, classes] of examples [B, features]."""
        z = F.linear(inputs, y.view(self.outputs, -1))
        return z if self.outputs > 1 else F.pad(z, (1, 0))  # the logistic loss is the cross-entropy of (0, z)

    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        return cross_entropy(self.logits(y, sample["val"].x), sample["val"])

    def g(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        squares = (y.view(self.outputs, -1) ** 2).sum(0 if self.per == "feature" else 1)
        return cross_entropy(self.logits(y, sample["train"].x), sample["train"]) + 0.5 * torch.exp(x) @ squares

    def inner_solution(self, x: Tensor, y: Tensor) -> Tensor:
        """Return y*(x), [dy], by L-BFGS from y; nan if a strength overflows."""
        if not torch.exp(x).isfinite().all():
            return torch.full_like(y, math.nan)
        sample = self.sample(0, {"train": self.pooled()})
        y = y.detach().where(y.abs() < 1e3, 0.0).requires_grad_()  # L-BFGS fails from where a run diverges
        solver = torch.optim.LBFGS([y], max_iter=200, line_search_fn="strong_wolfe")

        def value() -> Tensor:
            loss = self.g(x, y, sample)
            (y.grad,) = torch.autograd.grad(loss, y)
            return loss.detach()

        with torch.enable_grad():
            solver.step(value)
        return y.detach()

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x, y = point[:2]
        return {
            **self.test_metrics(partial(self.logits, y)),
            "val_loss": self.client_loss("val", partial(self.logits, y)),
            "fitted_loss": self.client_loss("val", partial(self.logits, self.inner_solution(x, y))),
        }
