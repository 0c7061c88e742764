"""Maximisation of the area under the ROC curve [Ying et al. 2016; CODA+ and CODASCA, Yuan et al. 2021].

The problem is a saddle point problem in two forms, minimised over (w, a, b) and maximised over alpha::

    square   (1-p) E[(s-a)²; +] + p E[(s-b)²; -] + 2 (1 + alpha) (p E[s; -] - (1-p) E[s; +]) - p(1-p) alpha²
    margin   (1-p) E[(s-a)²; +] + p E[(s-b)²; -] + 2 alpha (p(1-p) + p E[s; -] - (1-p) E[s; +]) - p(1-p) alpha²

Here s is the score of an example under the network w (entry 1 of the softmax), p is the share of positive examples, and
E[.; +] is the mean over all examples with negative ones counting 0. We read both forms in public code
(federated-minimax, ICML2021_FedDeepAUC_CODASCA).

Derived here: the optimal a and b are the mean scores of positive and of negative examples, and the optimal alpha is b - a
(square) or 1 + b - a (margin). The objective that remains for w is, for independent positive and negative examples::

    square   p(1-p) (E(1 - s+ + s-)² - 1)
    margin   p(1-p) (var+ + var- + (1 + b - a)²)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from pydantic import NonNegativeInt
from torch import Tensor

from fedopt.data import Batch, Batches, LabelledData
from fedopt.errors import UserError
from fedopt.metrics import CLIENT_AUC, OBJECTIVE, Metric
from fedopt.networks import number
from fedopt.problems.scores import Scores
from fedopt.problems.supervised import Supervised, SupervisedMinimax

TEST_AUC = Metric("test_auc", "test AUC", better="higher")


class Ranking(Supervised):
    """Base class of problems that maximise the area under the ROC curve of a network with two outputs."""

    scored = frozenset({"test_auc"})

    def scorer_of(self, data: LabelledData, wanted: Sequence[str] | None) -> Scores:
        scores: Any = super().scorer_of(data, ["auc", *(wanted or ())])
        return replace(scores, client_metrics=(CLIENT_AUC,))

    def scores(self, w: Tensor, inputs: Tensor, *keys: Tensor) -> Tensor:
        """Return the scores of examples, ``[B]``, from 0 to 1.

        Args:
            w: Parameters of the network, ``[dim]``.
            inputs: Inputs, ``[B, features]``.
            keys: The key of the dropout masks, if the network has dropout.
        """
        return torch.softmax(self.net(w, inputs, *keys), 1)[:, 1]


def one_class(data: LabelledData, positive: int) -> LabelledData:
    """Return the data with two classes: 1 for the examples of one class, and 0 for the examples of all others.

    Args:
        data: The data set.
        positive: Index of the class that becomes class 1.

    Raises:
        UserError: The training set or the test set has no positive or no negative examples.
    """
    y_train, y_test = ((y == positive).astype(np.int64) for y in (data.y_train, data.y_test))
    if min(len(np.unique(y)) for y in (y_train, y_test)) < 2:
        fault = "the training set or the test set lacks examples of this class or of others"
        raise UserError(f"problem.positive={positive}: {fault}; choose another class")
    validation = data.validation and data.validation._replace(y=(data.validation.y == positive).astype(np.int64))
    name = data.class_names[positive] if data.class_names else f"class {positive}"
    return replace(data, y_train=y_train, y_test=y_test, validation=validation, class_names=("others", name))


@dataclass(eq=False)
class Auc(Ranking, SupervisedMinimax):
    """Maximisation of the area under the ROC curve (AUC) as a saddle point problem [Ying et al. 2016].

    The variable x = (w, a, b) consists of the parameters of a network with two outputs and two numbers, which tend to the mean
    scores of positive and of negative examples; y = (alpha) is one number. The docstring of the module has the formulas.

    Args:
        positive: Index of the positive class. All other classes are negative.
        form: The loss that replaces the AUC, up to constants, for scores s+ of positive and s- of negative examples. ``square``:
            E(1 - s+ + s-)². ``margin``: var(s+) + var(s-) + (1 - E s+ + E s-)².
    """

    positive: NonNegativeInt
    form: Literal["square", "margin"]

    metrics = (TEST_AUC, replace(OBJECTIVE, label="largest objective over alpha", scale="linear"))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.p = float(self.class_shares("train")[1])
        (w,) = self._start
        self._start = (torch.cat([w, w.new_zeros(2)]), w.new_zeros(1))

    def load(self) -> LabelledData:
        return one_class(super().load(), self.positive)

    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        batch = sample["train"]
        squares, gap = (values @ batch.weight for values in self._of_examples(x, batch))
        return self._value(squares, gap, y[0])

    def _of_examples(self, x: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return two terms for each example, ``[B]`` each, from whose means the objective is computed.

        With the notation of the module's docstring, the means of the terms are::

            (1-p) E[(s-a)²; +] + p E[(s-b)²; -]
            p E[s; -] - (1-p) E[s; +]

        Args:
            x: The variable (w, a, b).
            batch: The examples.
        """
        a, b, p = x[-2], x[-1], self.p
        s, positive = self.scores(x[:-2], batch.x, *batch.keys), batch.y == 1
        squares = torch.where(positive, (1 - p) * (s - a) ** 2, p * (s - b) ** 2)
        return squares, torch.where(positive, -(1 - p) * s, p * s)

    def _value(self, squares: Any, gap: Any, alpha: Any) -> Any:
        """Return the objective f, a scalar.

        Args:
            squares: Mean of the first term of `_of_examples`.
            gap: Mean of the second term of `_of_examples`.
            alpha: The variable alpha.
        """
        spread = self.p * (1 - self.p)
        linear = (1 + alpha) * gap if self.form == "square" else alpha * (spread + gap)
        return squares + 2 * linear - spread * alpha**2

    def parameters(self, *point: Tensor) -> Tensor:
        return point[0][:-2]

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name. The objective is the maximum over alpha, on all training examples.

        Args:
            point: The variables (x, y).
        """
        x, of = point[0], self.splits["train"]
        squares, gap = self.train.means(partial(self._of_examples, x), of.rows, of.example_weights(self.weights))
        best = gap / (self.p * (1 - self.p)) + (self.form == "margin")
        return {**self.test_metrics(*self.models(*point)), "objective": number(self._value(squares, gap, best))}
