"""Learning how strongly to regularise a linear classifier [ijcnn1 and covtype in benchmark_bilevel, after Pedregosa 2016].

With the coefficients y_k that belong to feature k or to class k::

    f(x, y) = validation loss of the linear classifier y
    g(x, y) = training loss of y + 1/2 sum_k e^{x_k} |y_k|²

Two classes have one coefficient vector and the logistic loss; more classes have one vector each and the cross-entropy.
Read in the public code: ijcnn1 is binary with one strength per feature, covtype has one strength per class; x = log U(0, 1)
and y ~ N(0, 1) at the start. Derived here: coordinate k of the hypergradient is::

    -e^{x_k} <y*_k, v*_k>
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

from fedopt.data import Batch, Batches, LabelledData, cross_entropy
from fedopt.errors import UserError
from fedopt.machine import one_blas_thread
from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, VAL_LOSS, Metric
from fedopt.networks import Dense
from fedopt.problems.classes import Bilevel, Weighting
from fedopt.problems.function import Second, function
from fedopt.problems.supervised import Fraction, Labelled
from fedopt.randomness import Part

MOST_SCALES = 2**23  # largest size of L, enough for ten outputs of 900 features
FITTED_LOSS = Metric("fitted_loss", "validation loss at y*(x)", bounds=True)


@dataclass(eq=False)
class Regularisation(Labelled, Bilevel):
    """Learning the strengths of the ridge penalties of a linear model, such that its validation loss is small.

    The variable x contains the logarithms of the strengths, and y the coefficients, ``[outputs, features]``, as a flat vector.
    Two classes have one output.

    Args:
        per: Whether there is one strength per ``feature`` or per ``class``.
        validation: Fraction of each client's examples used for validation, unless the data mark validation examples.
        weighting: How clients count in the objective: by their numbers of training examples (``samples``), or equally
            (``uniform``).
        examples: Number of examples of the artificial data, which are used if no data set is chosen. A fifth of them is for
            testing. Their labels follow a linear model that uses half of the features.
        features: Number of features of the artificial data.
        classes: Number of classes of the artificial data.
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
            raise UserError("problem=regularisation: needs features, not token ids; set dataset.tokens=false")
        self.partition(data, held_out=self.validation)
        self.outputs = 1 if self.classes == 2 else self.classes
        features, rng = self.train.x.shape[1], self.world.rng(Part.DATA)
        x = np.log(rng.random(features if self.per == "feature" else self.outputs))
        self._start = self.world.tensor(x), self.world.tensor(rng.standard_normal(self.outputs * features))
        self._net = Dense([torch.Size((self.classes, features))], 0.0)
        self._curvature: Tensor | None = None

    def _made(self) -> LabelledData:
        """Generate artificial data whose labels follow a linear model that uses half of the features."""
        rng = self.world.rng(Part.EXAMPLES)
        x = rng.standard_normal((self.examples, self.features))
        model = rng.standard_normal((self.features, self.classes))
        model[(self.features + 1) // 2 :] = 0
        y = (2 * x @ model + rng.gumbel(size=(self.examples, self.classes))).argmax(1)  # a sample from the softmax
        test = max(self.examples // 5, 1)
        return LabelledData(x[test:], y[test:], x[:test], y[:test], pixels="raw")

    def parameters(self, *point: Tensor) -> Tensor:
        return point[1]

    def predicted(self, model: Tensor, x: Tensor) -> Tensor:
        z = F.linear(x, model.view(self.outputs, -1))
        return z if self.outputs > 1 else F.pad(z, (1, 0))  # the logistic loss is the cross-entropy of (0, z)

    @function
    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        return cross_entropy(self.predicted(y, sample["val"].x), sample["val"])

    @f.gradient
    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        return self._of_y(self._net.gradient(self._of_classes(y), sample["val"]))

    @f.both
    def f(self, x: Tensor, y: Tensor, sample: Batches) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(x), self.f.gradient(x, y, sample)

    @function
    def g(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        loss = cross_entropy(self.predicted(y, sample["train"].x), sample["train"])
        return loss + 0.5 * torch.exp(x) @ self._summed(y**2)

    @g.gradient
    def g(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        return self._of_y(self._net.gradient(self._of_classes(y), sample["train"])) + self._penalised(x, y)

    @g.both
    def g(self, x: Tensor, y: Tensor, sample: Batches) -> tuple[Tensor, Tensor]:
        return 0.5 * torch.exp(x) * self._summed(y**2), self.g.gradient(x, y, sample)

    @g.second
    def g(self, x: Tensor, y: Tensor, sample: Batches) -> Second:
        batch = sample["train"]
        p = torch.softmax(self.predicted(y, batch.x), 1)

        def hessian(v: Tensor) -> Tensor:
            along = p * self.predicted(v, batch.x)
            of_logits = batch.weight[:, None] * (along - p * along.sum(1, keepdim=True))
            return (of_logits[:, -self.outputs :].mT @ batch.x).flatten() + self._penalised(x, v)

        return Second(self.g.gradient(x, y, sample), hessian, lambda v: torch.exp(x) * self._summed(y * v))

    def _of_classes(self, y: Tensor) -> Tensor:
        """Return the coefficients of all classes as a flat vector, in which the first of two classes has the coefficients 0.

        Args:
            y: The variable, ``[dy]``, which has no coefficients for the first of two classes.
        """
        return y if self.outputs > 1 else F.pad(y, (len(y), 0))

    def _of_y(self, gradient: Tensor) -> Tensor:
        """Return the entries of a gradient that belong to y, ``[dy]``.

        Args:
            gradient: The gradient in the coefficients of all classes, as a flat vector.
        """
        return gradient if self.outputs > 1 else gradient[len(gradient) // 2 :]

    def _penalised(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of the penalty in y, ``[dy]``, which is linear in y.

        Args:
            x: Logarithms of the strengths.
            y: Coefficients, ``[dy]``.
        """
        strengths = torch.exp(x) if self.per == "feature" else torch.exp(x)[:, None]
        return (strengths * y.view(self.outputs, -1)).flatten()

    def _summed(self, of_weights: Tensor) -> Tensor:
        """Return the sums of numbers over the coefficients that share a strength, ``[dx]``.

        Args:
            of_weights: One number for each coefficient, ``[dy]``.
        """
        return of_weights.view(self.outputs, -1).sum(0 if self.per == "feature" else 1)

    def inner_solution(self, x: Tensor) -> Tensor:
        """Return the solution y*(x) of the lower level, ``[dy]``, in double precision; nan if a strength overflows.

        L-BFGS minimises g from 0 in the variables u with y = L^-T u, where L L' is the Hessian of g at 0. Few iterations are then
        sufficient. If there are too many features for the matrix L, it minimises in y.

        Args:
            x: Logarithms of the strengths, ``[dx]``.
        """
        if not torch.exp(x).isfinite().all():
            return torch.full_like(self._start[1], math.nan, dtype=torch.float64)
        from scipy.optimize import minimize  # slow to import

        x, batch = x.double(), self.train.batch(*self.pooled())
        batch = batch._replace(x=batch.x.double(), weight=batch.weight.double())
        L = self._scale(x, batch)

        def model(u: np.ndarray) -> Tensor:
            columns = torch.from_numpy(u).to(x.device).view(self.outputs, -1, 1)
            return (columns if L is None else torch.linalg.solve_triangular(L.mT, columns, upper=True)).flatten()

        def value_and_gradient(u: np.ndarray) -> tuple[float, np.ndarray]:
            y = model(u)
            penalised = self._penalised(x, y)
            value = cross_entropy(self.predicted(y, batch.x), batch) + 0.5 * penalised @ y
            gradient = self._of_y(self._net.gradient(self._of_classes(y), batch)) + penalised
            columns = gradient.view(self.outputs, -1, 1)
            columns = columns if L is None else torch.linalg.solve_triangular(L, columns, upper=False)
            return float(value), columns.flatten().cpu().numpy()

        start, most = np.zeros(len(self._start[1])), {"maxiter": 200, "ftol": 0, "gtol": 1e-7}
        with one_blas_thread():
            return model(minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=most).x)

    def _scale(self, x: Tensor, batch: Batch) -> Tensor | None:
        """Return the Cholesky factors L of the Hessian of g at y = 0, ``[outputs, features, features]``.

        Args:
            x: Logarithms of the strengths.
            batch: All training examples.

        Returns:
            The factor of each output; None if the factors would have more than `MOST_SCALES` entries.
        """
        if self._start[1].numel() * batch.x.shape[1] > MOST_SCALES:
            return None
        if self._curvature is None:  # Hessian of the loss, the same for all outputs
            p = 1 / self.classes
            self._curvature = (p * (1 - p) * batch.weight * batch.x.mT) @ batch.x
        strengths = torch.exp(x).expand(self.outputs, -1) if self.per == "feature" else torch.exp(x)[:, None]
        strengths = strengths.clamp(min=1e-9 * self._curvature.diagonal().max()).expand(-1, batch.x.shape[1])
        return torch.linalg.cholesky(self._curvature + torch.diag_embed(strengths))

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x, y = point[:2]
        return {
            **self.test_metrics(partial(self.predicted, y)),
            "val_loss": self.client_loss("val", partial(self.predicted, y)),
            "fitted_loss": self.client_loss("val", partial(self.predicted, self.inner_solution(x).to(y.dtype))),
        }
