"""Learning a representation for all clients: the hidden layers outside, the output layer inside [FedNest Sec. 4.1]."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor

from fedopt import models
from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, VAL_LOSS
from fedopt.problems.classes import Bilevel, Rows
from fedopt.problems.supervised import Batch, Images, client_mean, cross_entropy, losses, split_batches, test_metrics


class Features(Batch):
    """A batch behind the hidden layers: x is [B, features]."""


@dataclass(eq=False)
class HyperRepresentation(Bilevel):
    """x: the parameters of all layers but the last; y: those of the last, which is linear.

    f is the cross-entropy on a client's validation examples, g that on its training examples.
    validation: the fraction of its examples that a client validates on.
    ridge: l2 penalty ridge/2 |y|^2 of the inner problem, 0 in the paper.
    """

    model: str
    widths: list[PositiveInt]
    validation: Annotated[float, Field(gt=0, lt=1)]
    ridge: NonNegativeFloat

    metrics = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, VAL_LOSS)

    def __post_init__(self) -> None:
        world = self.world
        data = world.load()
        self.train = Images(data.x_train, data.y_train, data, world)
        self.test = Images(data.x_test, data.y_test, data, world)
        self.labels = data.y_train
        self.splits = world.split(len(self.train), data.y_train, self.validation)
        net = models.build(self.model, self.widths, self.train.shape, data.classes, world.seed, world.autocast)
        self.convolutional = net.convolutional
        self.body, self.head = net.split_last()
        self._start = tuple(part.initial.to(world.device, world.dtype) for part in (self.body, self.head))

    def start(self) -> tuple[Tensor, ...]:
        return self._start

    def sample(self, client: int | Tensor, rows: Rows) -> dict[str, Batch]:
        return split_batches(self.train, rows)

    def hold(self, x: Tensor, sample: Mapping[str, Batch]) -> dict[str, Features]:
        return {split: Features(self.body(x, batch.x), batch.y, batch.weight) for split, batch in sample.items()}

    def pick(self, held: Mapping[str, Features], rows: Rows) -> dict[str, Features]:
        return {split: Features(held[split].x[at], held[split].y[at], weight) for split, (at, weight) in rows.items()}

    def _features(self, x: Tensor, batch: Batch) -> Tensor:
        return batch.x if isinstance(batch, Features) else self.body(x, batch.x)

    def _loss(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(self.head(y, self._features(x, batch)), batch)

    def f(self, x: Tensor, y: Tensor, sample: Mapping[str, Batch]) -> Tensor:
        return self._loss(x, y, sample["val"])

    def g(self, x: Tensor, y: Tensor, sample: Mapping[str, Batch]) -> Tensor:
        loss = self._loss(x, y, sample["train"])
        return loss + 0.5 * self.ridge * torch.sum(y**2) if self.ridge else loss

    def inner_gradient(self, x: Tensor, y: Tensor, sample: Mapping[str, Batch]) -> Tensor | None:
        gradient = self.head.gradient(y, self._features(x, sample["train"]), *sample["train"][1:])
        return gradient.add(y, alpha=self.ridge) if gradient is not None and self.ridge else gradient

    def inner_descend(
        self, x: Tensor, y: Tensor, sample: Mapping[str, Batch], beta: float, plus: Tensor | None
    ) -> Tensor | None:
        if self.ridge:
            plus = self.ridge * y if plus is None else plus.add(y, alpha=self.ridge)
        return self.head.descend(y, self._features(x, sample["train"]), *sample["train"][1:], beta, plus)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x, y = point[:2]

        def logits(images: Tensor) -> Tensor:
            return self.head(y, self.body(x, images))

        def of_examples(batch: Batch) -> Tensor:
            return losses(logits(batch.x), batch)

        def mean_loss(split: str) -> float:
            return client_mean(self.train, self.splits[split], self.weights, of_examples)

        return {"train_loss": mean_loss("train"), "val_loss": mean_loss("val"), **test_metrics(self.test, logits)}
