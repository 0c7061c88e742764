"""Learning a representation for all clients: the hidden layers outside, the output layer inside [FedNest Sec. 4.1]."""

from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, VAL_LOSS
from fedopt.problems.classes import Bilevel, Rows
from fedopt.problems.supervised import Batch, Batches, Fraction, Supervised, cross_entropy


class Features(Batch):
    """A batch behind the hidden layers: x is [B, features]."""


@dataclass(eq=False)
class HyperRepresentation(Supervised, Bilevel):
    """x: the parameters of all layers but the last; y: those of the last, which is linear.

    f is the cross-entropy on a client's validation examples, g that on its training examples.
    validation: the fraction of its examples that a client validates on.
    ridge: l2 penalty ridge/2 |y|^2 of the inner problem, 0 in the paper.
    """

    validation: Fraction
    ridge: NonNegativeFloat

    metrics = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, VAL_LOSS)

    def __post_init__(self) -> None:
        self.set_up(self.world.load(), held_out=self.validation)
        self.body, self.head = self.net.split_last()
        self._start = tuple(part.initial.to(self._start[0]) for part in (self.body, self.head))

    def hold(self, x: Tensor, sample: Batches) -> dict[str, Features]:
        return {split: Features(self.body(x, batch.x), batch.y, batch.weight) for split, batch in sample.items()}

    def pick(self, held: dict[str, Features], rows: Rows) -> dict[str, Features]:
        return {split: Features(held[split].x[at], held[split].y[at], weight) for split, (at, weight) in rows.items()}

    def _features(self, x: Tensor, batch: Batch) -> Tensor:
        return batch.x if isinstance(batch, Features) else self.body(x, batch.x)

    def _loss(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(self.head(y, self._features(x, batch)), batch)

    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        return self._loss(x, y, sample["val"])

    def g(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        loss = self._loss(x, y, sample["train"])
        return loss + 0.5 * self.ridge * torch.sum(y**2) if self.ridge else loss

    def inner_gradient(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor | None:
        gradient = self.head.gradient(y, self._features(x, sample["train"]), *sample["train"][1:])
        return gradient.add(y, alpha=self.ridge) if gradient is not None and self.ridge else gradient

    def inner_descend(self, x: Tensor, y: Tensor, sample: Batches, beta: float, plus: Tensor | None) -> Tensor | None:
        if self.ridge:
            plus = self.ridge * y if plus is None else plus.add(y, alpha=self.ridge)
        return self.head.descend(y, self._features(x, sample["train"]), *sample["train"][1:], beta, plus)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x, y = point[:2]

        def logits(images: Tensor) -> Tensor:
            return self.head(y, self.body(x, images))

        return {
            "train_loss": self.client_loss("train", logits),
            "val_loss": self.client_loss("val", logits),
            **self.test_metrics(logits),
        }
