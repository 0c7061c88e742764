"""Learning how strongly to regularise a linear classifier [benchmark_bilevel's ijcnn1 and covtype, after Pedregosa 2016].

    f(x, y) = validation loss of the linear classifier y,    g(x, y) = its training loss + 1/2 sum_k e^{x_k} |y_k|^2

y_k is what belongs to feature k, or to class k. Two classes have one vector y, and the logistic loss; more have a vector each, and the
cross-entropy. The benchmark's public code was read: ijcnn1 is binary with an x_k a feature, covtype has an x_k a class; x = log U(0, 1)
and y ~ N(0, 1) at the start. The hypergradient in x_k is -e^{x_k} <y*_k, v*_k>.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor

from fedopt.data.datasets import LabelledData
from fedopt.data.examples import Batch, Batches, Examples, losses
from fedopt.errors import UserError
from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, VAL_LOSS, Metric
from fedopt.problems.classes import Bilevel, Rows, Weighting
from fedopt.problems.supervised import Fraction
from fedopt.randomness import Part

FITTED_LOSS = Metric("fitted_loss", "validation loss at y*(x)", bounds=True)


@dataclass(eq=False)
class Regularisation(Bilevel):
    """x: the logarithms of the strengths, one for each feature or one for each class; y: [outputs, features], flat.

    per: what has a strength of its own. validation: the fraction of its examples that a client validates on.
    examples, features, classes: of the data that are made where no data set is chosen; a fifth of them is for testing. Labels follow a
    linear model in which half of the features count.
    weighting: clients count by their numbers of examples, or uniformly.
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
            raise UserError("problem=regularisation is about features, and dataset.tokens=true has none")
        self.train, self._test = (
            Examples(x, y, data, self.world) for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test))
        )
        held_out = self.validation if data.validates is None else data.validates
        self.splits = self.world.split(len(data.y_train), data.y_train, held_out, data.owners)
        self.labels, self.class_names, self.feature_names = data.y_train, data.class_names, data.feature_names
        features, outputs, rng = self.train.x.shape[1], data.classes, self.world.rng(Part.DATA)
        self.binary, self._features = outputs == 2, features
        strengths = features if self.per == "feature" else 1 if self.binary else outputs
        x, y = np.log(rng.random(strengths)), rng.standard_normal(features * (1 if self.binary else outputs))
        self._start = self.world.tensor(x), self.world.tensor(y)

    def _made(self) -> LabelledData:
        """A fifth of the examples is for testing."""
        rng, outputs = self.world.rng(Part.EXAMPLES), 1 if self.classes == 2 else self.classes
        x = rng.standard_normal((self.examples, self.features))
        count = np.arange(self.features) < (self.features + 1) // 2
        logits = 2 * x @ (count[:, None] * rng.standard_normal((self.features, outputs)))
        if outputs == 1:
            logits = np.hstack([0 * logits, logits])
        y = (logits + rng.gumbel(size=logits.shape)).argmax(1)  # drawn from the softmax
        test = max(self.examples // 5, 1)
        return LabelledData(x[test:], y[test:], x[:test], y[:test], pixels="raw")

    def start(self) -> tuple[Tensor, ...]:
        return self._start

    def sample(self, client: int | Tensor, rows: Rows) -> Batches:
        return {split: self.train.batch(*of_split) for split, of_split in rows.items()}

    def logits(self, y: Tensor, x: Tensor) -> Tensor:
        """[B, classes], of examples x [B, features]."""
        z = F.linear(x, y.view(-1, self._features))
        return F.pad(z, (1, 0)) if self.binary else z  # the logistic loss is the cross-entropy of (0, z)

    def losses(self, y: Tensor, batch: Batch) -> Tensor:
        """Of each example, [B]."""
        return losses(self.logits(y, batch.x), batch)

    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        return self.losses(y, sample["val"]) @ sample["val"].weight

    def g(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        squares = (y.view(-1, self._features) ** 2).sum(0 if self.per == "feature" else 1)
        return self.losses(y, sample["train"]) @ sample["train"].weight + 0.5 * torch.exp(x) @ squares

    def inner_solution(self, x: Tensor, y: Tensor) -> Tensor:
        """y*(x), [dy], by L-BFGS from y."""
        of = self.splits["train"]
        weight = self.world.tensor(of.example_weights(self.weights))
        sample = {"train": self.train.batch(torch.from_numpy(of.rows).to(weight.device), weight)}
        y = y.detach().clone().requires_grad_()
        solver = torch.optim.LBFGS(
            [y], max_iter=200, tolerance_grad=1e-9, tolerance_change=0.0, line_search_fn="strong_wolfe"
        )

        def value() -> Tensor:
            (y.grad,) = torch.autograd.grad(loss := self.g(x, y, sample), y)
            return loss.detach()

        with torch.enable_grad():
            solver.step(value)  # type: ignore[arg-type]
        return y.detach()

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x, y = point[:2]
        loss, accuracy = self._test.loss_and_accuracy(partial(self.logits, y))
        return {
            "test_accuracy": 100 * accuracy,
            "test_loss": loss,
            "val_loss": self._validated(y),
            "fitted_loss": self._validated(self.inner_solution(x, y)),
        }

    def _validated(self, y: Tensor) -> float:
        of = self.splits["val"]
        return self.train.means(lambda b: (self.losses(y, b),), of.rows, of.example_weights(self.weights))[0]
