"""Classification that performs well on the worst class [Fed-Norm-SGDA, eq. 8; Mohri et al. 2019].

With the mean loss F_c of class c::

    min_x max_{y in simplex}  sum_c y_c F_c(x) - lam/2 |y|^2
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from fedopt.data import Batch, Batches, cross_entropy, of_finite
from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, Metric
from fedopt.problems.function import function
from fedopt.problems.projections import simplex
from fedopt.problems.supervised import SupervisedMinimax

WORST_ACCURACY = Metric("worst_accuracy", "test accuracy of the worst class", "%", better="higher")


@dataclass(eq=False)
class FairClassification(SupervisedMinimax):
    """Classification for the worst class: a minimum over models, and a maximum over weights y of the classes, ``[C]``.

    In f_i, an example of class c has the weight 1 / s_c, where s_c is the share of class c (a weighted mean over clients). The mean
    of the f_i is then the objective in the docstring of the module, even if a client has few examples of a class.
    `SupervisedMinimax` describes the arguments that are not listed here.

    Args:
        lam: Factor of the penalty that pulls the weights towards equal weights.
    """

    lam: NonNegativeFloat

    def __post_init__(self) -> None:
        super().__post_init__()
        (x,), C = self._start, self.classes
        self._start = (x, x.new_full((C,), 1 / C))
        self._per_share = self.world.tensor(1 / self.class_shares("train"))
        self._test_shares = np.bincount(self.test_examples.y.cpu().numpy(), minlength=C) / len(self.test_examples)
        class_weights = (Metric(f"weight_{c}", f"weight of class {c}", better="neither") for c in range(C))
        self.metrics = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, WORST_ACCURACY, *class_weights)

    @function(where=lambda problem: problem.net.dense)
    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        batch = sample["train"]
        loss = cross_entropy(self.net(x, batch.x, *batch.keys), batch, y * self._per_share)
        return loss - 0.5 * self.lam * torch.sum(y**2)

    @f.both
    def f(self, x: Tensor, y: Tensor, sample: Batches) -> tuple[Tensor, Tensor]:
        batch = sample["train"]
        weighted = batch._replace(weight=batch.weight * (y * self._per_share)[batch.y])
        grad_x, losses = self.net.gradient_and_losses(x, weighted)
        of_classes = torch.zeros_like(y).scatter_add(0, batch.y, batch.weight * losses)
        return grad_x, self._per_share * of_classes - self.lam * y

    def project(self, y: Tensor) -> Tensor:
        return simplex(y)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric at (x, y) by name.

        * ``train_loss``: sum_c y_c F_c(x), the training loss with the weights y of the classes.
        * ``test_loss``, ``test_accuracy``: loss on all test examples, and accuracy in percent.
        * ``worst_accuracy``: test accuracy of the worst class, in percent.
        * ``weight_c``: y_c, for each class c.

        Args:
            point: The variables (x, y).
        """
        x, y = point[:2]

        def hits(batch: Batch) -> tuple[Tensor, ...]:
            logits = self.net(x, batch.x)
            hit = of_finite(logits.argmax(1) == batch.y, logits)
            return tuple(hit * (batch.y == c) for c in range(self.classes))

        shares, present = self.test_examples.means(hits), self._test_shares > 0
        return {
            "train_loss": self.client_loss("train", partial(self.net, x), y * self._per_share),
            **self.test_metrics(partial(self.net, x)),
            "worst_accuracy": 100 * float((np.array(shares)[present] / self._test_shares[present]).min()),
            **{f"weight_{c}": float(y[c]) for c in range(self.classes)},
        }
