"""Classification that is as good for the worst class [FedNormSGDA eq. 8; Mohri et al. 2019].

min_x max_{y in simplex} sum_c y_c F_c(x) - lam/2 |y|^2,    F_c the mean loss of class c
"""

from dataclasses import dataclass

import numpy as np
import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, Metric
from fedopt.problems.network import NetworkMinimax
from fedopt.problems.projections import simplex
from fedopt.problems.supervised import Batch, client_mean, cross_entropy, losses, weighted_sums

WORST_ACCURACY = Metric("worst_accuracy", "test accuracy of the worst class", "%", better="higher")


@dataclass(eq=False)
class FairClassification(NetworkMinimax):
    """y: the weights of the classes, [C].

    In f_i an example of class c counts 1 / (the class's share of the data, a weighted mean over clients): then the f_i have the
    mean above, however few examples of a class a client has.

    lam: how strongly the weights are drawn to be equal.
    """

    lam: NonNegativeFloat

    def __post_init__(self) -> None:
        world = self.world
        super().__post_init__()
        C = len(self.start()[1])
        train, classes = self.splits["train"], self.labels
        assert classes is not None
        shares = np.bincount(classes[train.rows], train.example_weights(self.weights), minlength=C)
        self._test_shares = np.bincount(self.test.y.cpu().numpy(), minlength=C) / len(self.test)
        class_weights = (Metric(f"weight_{c}", f"weight of class {c}") for c in range(C))
        self.metrics = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, WORST_ACCURACY, *class_weights)
        self._per_share = world.tensor(1 / np.where(shares > 0, shares, 1))

    def start_y(self, x: Tensor, classes: int) -> Tensor:
        return x.new_full((classes,), 1 / classes)

    def f(self, x: Tensor, y: Tensor, sample: dict[str, Batch]) -> Tensor:
        batch = sample["train"]
        return cross_entropy(self.net(x, batch.x), batch, y * self._per_share) - 0.5 * self.lam * torch.sum(y**2)

    def project(self, y: Tensor) -> Tensor:
        return simplex(y)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """train_loss is sum_c y_c F_c(x); test_accuracy is of all test examples, worst_accuracy of the worst class of them."""
        x, y = point[:2]
        weight, C = y * self._per_share, len(y)

        def weighted_losses(batch: Batch) -> Tensor:
            return losses(self.net(x, batch.x), batch) * weight[batch.y]

        def loss_and_hits(batch: Batch) -> tuple[Tensor, ...]:
            logits = self.net(x, batch.x)
            hit = logits.argmax(1) == batch.y
            return losses(logits, batch), *(hit & (batch.y == c) for c in range(C))

        n = len(self.test)
        loss, *hits = weighted_sums(self.test, np.arange(n), np.full(n, 1 / n), loss_and_hits)
        present = self._test_shares > 0
        return {
            "train_loss": client_mean(self.train, self.splits["train"], self.weights, weighted_losses),
            "test_loss": loss,
            "test_accuracy": 100 * sum(hits),
            "worst_accuracy": 100 * float((np.array(hits)[present] / self._test_shares[present]).min()),
            **{f"weight_{c}": float(y[c]) for c in range(C)},
        }
