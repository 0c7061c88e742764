"""Loss tuning on long-tailed data [FedNest Sec. 4.2, FedMSA Sec. 4].

The inner problem trains a network y on imbalanced data with a parametric loss; the outer problem tunes the loss, x, for the
class-balanced validation loss. It depends on x through y*(x) alone: the direct part of the hypergradient is zero.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedopt.data import Batch, Batches, cross_entropy, tuned
from fedopt.decimals import exact
from fedopt.networks import Tuning
from fedopt.problems.function import function
from fedopt.problems.supervised import SupervisedBilevel


def long_tail(labels: np.ndarray, largest: int, imbalance: float) -> np.ndarray:
    """Return the sorted indices of the examples to keep. labels: the class of each example.

    They are the first n_c of class c, n_c = largest * imbalance^(c / (C-1)), rounded, or all if the class has fewer.
    """
    classes = np.unique(labels)
    sizes = [round(exact(largest * imbalance ** (j / max(len(classes) - 1, 1)))) for j in range(len(classes))]
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:n] for c, n in zip(classes, sizes, strict=True)]))


@dataclass(eq=False)
class ImbalancedMnist(SupervisedBilevel):
    """Tuning of the VS loss for training data with a long tail.

    x = (Delta, l), [2 C]: the loss takes logits * sigmoid(Delta_c) + l_c. y: the parameters of the network.

    largest, imbalance: class c of C keeps largest * imbalance^(c / (C-1)) training examples, and all validation examples.
    """

    largest: PositiveInt
    imbalance: Annotated[float, Field(gt=0, le=1)]

    direct = False

    def __post_init__(self) -> None:
        data = self.world.load(validation=True)
        given = np.zeros(len(data.y_train), dtype=bool) if data.validates is None else data.validates
        train = np.flatnonzero(~given)
        kept = train[long_tail(data.y_train[train], self.largest, self.imbalance)]
        self.set_up(data, np.sort(np.append(kept, np.flatnonzero(given))), self.validation, self.dropout)
        share = f"{len(kept):,} of {len(train):,} training examples"
        self.notes = [*self.notes, f"problem.largest and problem.imbalance keep {share}"]
        balance = 1 / (self.classes * self.class_shares("val"))  # the classes' mean losses weigh the same
        self.class_weight = self.world.tensor(balance)
        self._start = (self.class_weight.new_zeros(2 * self.classes), *self._start)

    def _tuning(self, x: Tensor) -> tuple[Tensor, Tensor]:
        delta, shift = x.chunk(2)
        return torch.sigmoid(delta), shift

    @function(where=lambda problem: problem.net.dense)
    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        batch = sample["val"]
        return cross_entropy(self.net(y, batch.x, *batch.keys), batch, self.class_weight)

    @f.gradient
    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        classes, weight, keys = (batch := sample["val"]).y, batch.weight, batch.keys
        return self.net.gradient(y, batch.x, classes, weight * self.class_weight[classes], None, *keys)

    def inner(self, x: Tensor, batch: Batch) -> tuple[Batch, Tuning]:
        return batch, self._tuning(x)

    def parameters(self, *point: Tensor) -> Tensor:
        return point[1]

    def calibration(self, *point: Tensor) -> Tuning:
        return self._tuning(point[0])

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x, y = point[:2]
        return {
            "train_loss": self.client_loss("train", lambda images: tuned(self.net(y, images), self._tuning(x))),
            "val_loss": self.client_loss("val", partial(self.net, y), self.class_weight),
            **self.test_metrics(partial(self.net, y)),
        }
