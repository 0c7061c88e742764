"""Loss tuning on long-tailed data [FedNest Sec. 4.2, FedMSA Sec. 4].

The inner problem trains a network y on imbalanced data with a parametric loss; the outer problem tunes the loss, x, for the
class-balanced validation loss. It depends on x through y*(x) alone: the direct part of the hypergradient is zero.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt import models
from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, VAL_LOSS
from fedopt.problems.classes import Bilevel, Rows
from fedopt.problems.supervised import Batch, Images, client_mean, cross_entropy, losses, split_batches, test_metrics


def long_tail(labels: np.ndarray, largest: int, imbalance: float) -> np.ndarray:
    """The rows kept: of class c the first largest * imbalance^(c / (C-1)) examples, rounded, or all where it has fewer."""
    classes = np.unique(labels)
    keep = [
        np.flatnonzero(labels == c)[: round(largest * imbalance ** (j / max(len(classes) - 1, 1)))]
        for j, c in enumerate(classes)
    ]
    return np.sort(np.concatenate(keep))


@dataclass(eq=False)
class ImbalancedMnist(Bilevel):
    """x = (Delta, l), [2 C]: the VS loss takes logits * sigmoid(Delta_c) + l_c; y: the network's parameters.

    largest, imbalance: class c of C keeps largest * imbalance^(c / (C-1)) examples.
    validation: the fraction of its examples that a client validates on.
    ridge: l2 penalty ridge/2 |y|^2 of the inner problem, 0 in the papers.
    """

    model: str
    widths: list[PositiveInt]
    largest: PositiveInt
    imbalance: Annotated[float, Field(gt=0, le=1)]
    validation: Annotated[float, Field(gt=0, lt=1)]
    ridge: NonNegativeFloat

    metrics = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, VAL_LOSS)

    direct = False

    def __post_init__(self) -> None:
        world = self.world
        data = world.load()
        kept = long_tail(data.y_train, self.largest, self.imbalance)
        self.labels = data.y_train[kept]
        self.train = Images(data.x_train[kept], self.labels, data, world)
        self.test = Images(data.x_test, data.y_test, data, world)
        self.splits = world.split(len(kept), self.labels, self.validation)
        self.net = models.build(self.model, self.widths, self.train.shape, data.classes, world.seed, world.autocast)
        self.convolutional = self.net.convolutional
        val = self.splits["val"]  # an example weighs p_i / n_i: a class's share is not its count where sizes differ
        shares = np.bincount(self.labels[val.rows], val.example_weights(self.weights), minlength=data.classes)
        balance = 1 / (data.classes * np.where(shares > 0, shares, 1))  # the classes' mean losses weigh the same
        self.class_weight = world.tensor(balance)
        self._start = (self.class_weight.new_zeros(2 * data.classes), self.net.initial.to(world.device, world.dtype))

    def start(self) -> tuple[Tensor, ...]:
        return self._start

    def sample(self, client: int | Tensor, rows: Rows) -> dict[str, Batch]:
        return split_batches(self.train, rows)

    def _scale_and_shift(self, x: Tensor) -> tuple[Tensor, Tensor]:
        delta, shift = x.chunk(2)
        return torch.sigmoid(delta), shift

    def _tuned(self, x: Tensor, logits: Tensor) -> Tensor:
        scale, shift = self._scale_and_shift(x)
        return logits * scale + shift

    def f(self, x: Tensor, y: Tensor, sample: dict[str, Batch]) -> Tensor:
        batch = sample["val"]
        return cross_entropy(self.net(y, batch.x), batch, self.class_weight)

    def g(self, x: Tensor, y: Tensor, sample: dict[str, Batch]) -> Tensor:
        batch = sample["train"]
        loss = cross_entropy(self._tuned(x, self.net(y, batch.x)), batch)
        return loss + 0.5 * self.ridge * torch.sum(y**2) if self.ridge else loss

    def inner_gradient(self, x: Tensor, y: Tensor, sample: dict[str, Batch]) -> Tensor | None:
        gradient = self.net.gradient(y, *sample["train"], *self._scale_and_shift(x))
        return gradient.add(y, alpha=self.ridge) if gradient is not None and self.ridge else gradient

    def inner_descend(
        self, x: Tensor, y: Tensor, sample: dict[str, Batch], beta: float, plus: Tensor | None
    ) -> Tensor | None:
        if self.ridge:
            plus = self.ridge * y if plus is None else plus.add(y, alpha=self.ridge)
        return self.net.descend(y, *sample["train"], beta, plus, *self._scale_and_shift(x))

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x, y = point[:2]

        def tuned_losses(batch: Batch) -> Tensor:
            return losses(self._tuned(x, self.net(y, batch.x)), batch)

        def balanced_losses(batch: Batch) -> Tensor:
            return losses(self.net(y, batch.x), batch) * self.class_weight[batch.y]

        return {
            "train_loss": client_mean(self.train, self.splits["train"], self.weights, tuned_losses),
            "val_loss": client_mean(self.train, self.splits["val"], self.weights, balanced_losses),
            **test_metrics(self.test, lambda images: self.net(y, images)),
        }
