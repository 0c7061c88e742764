"""Loss tuning on long-tailed data [FedNest Sec. 4.2, FedMSA Sec. 4].

The inner problem trains a network y on imbalanced data with a parametric loss; the outer problem tunes the loss, x, for the
class-balanced validation loss. It depends on x through y*(x) alone: the direct part of the hypergradient is zero.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, VAL_LOSS
from fedopt.problems.classes import Bilevel
from fedopt.problems.supervised import Batches, Fraction, Supervised, cross_entropy


def long_tail(labels: np.ndarray, largest: int, imbalance: float) -> np.ndarray:
    """The rows kept: of class c the first largest * imbalance^(c / (C-1)) examples, rounded, or all where it has fewer."""
    classes = np.unique(labels)
    keep = [
        np.flatnonzero(labels == c)[: round(largest * imbalance ** (j / max(len(classes) - 1, 1)))] for j, c in enumerate(classes)
    ]
    return np.sort(np.concatenate(keep))


@dataclass(eq=False)
class ImbalancedMnist(Supervised, Bilevel):
    """x = (Delta, l), [2 C]: the VS loss takes logits * sigmoid(Delta_c) + l_c; y: the network's parameters.

    largest, imbalance: class c of C keeps largest * imbalance^(c / (C-1)) examples.
    validation: the fraction of its examples that a client validates on.
    ridge: l2 penalty ridge/2 |y|^2 of the inner problem, 0 in the papers.
    """

    largest: PositiveInt
    imbalance: Annotated[float, Field(gt=0, le=1)]
    validation: Fraction
    ridge: NonNegativeFloat

    metrics = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, VAL_LOSS)
    direct = False

    def __post_init__(self) -> None:
        data = self.world.load()
        self.set_up(data, long_tail(data.y_train, self.largest, self.imbalance), self.validation)
        balance = 1 / (self.classes * self.class_shares("val"))  # the classes' mean losses weigh the same
        self.class_weight = self.world.tensor(balance)
        self._start = (self.class_weight.new_zeros(2 * self.classes), *self._start)

    def _scale_and_shift(self, x: Tensor) -> tuple[Tensor, Tensor]:
        delta, shift = x.chunk(2)
        return torch.sigmoid(delta), shift

    def _tuned(self, x: Tensor, logits: Tensor) -> Tensor:
        scale, shift = self._scale_and_shift(x)
        return logits * scale + shift

    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        batch = sample["val"]
        return cross_entropy(self.net(y, batch.x), batch, self.class_weight)

    def g(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        batch = sample["train"]
        loss = cross_entropy(self._tuned(x, self.net(y, batch.x)), batch)
        return loss + 0.5 * self.ridge * torch.sum(y**2) if self.ridge else loss

    def inner_gradient(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor | None:
        gradient = self.net.gradient(y, *sample["train"], self._scale_and_shift(x))
        return gradient.add(y, alpha=self.ridge) if gradient is not None and self.ridge else gradient

    def inner_descend(self, x: Tensor, y: Tensor, sample: Batches, beta: float, plus: Tensor | None) -> Tensor | None:
        if self.ridge:
            plus = self.ridge * y if plus is None else plus.add(y, alpha=self.ridge)
        return self.net.descend(y, *sample["train"], beta, plus, self._scale_and_shift(x))

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x, y = point[:2]
        return {
            "train_loss": self.client_loss("train", lambda images: self._tuned(x, self.net(y, images))),
            "val_loss": self.client_loss("val", partial(self.net, y), self.class_weight),
            **self.test_metrics(partial(self.net, y)),
        }
