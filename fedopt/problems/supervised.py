"""What classification problems share: examples on the device, minibatches, the weighted cross-entropy, evaluation."""

from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedopt.data.datasets import LabelledData
from fedopt.data.ragged import Ragged
from fedopt.data.rows import take_scaled_rows
from fedopt.data.world import World
from fedopt.errors import UserError


class Batch(NamedTuple):
    """x: [B, features], normalised; y: [B]; weight: [B], sums to one, padding weighs nothing."""

    x: Tensor
    y: Tensor
    weight: Tensor


class Images:
    """Labelled examples on the device: as uint8 until they are used, then normalised by the training pixels' statistics."""

    def __init__(self, x: np.ndarray, y: np.ndarray, data: LabelledData, world: World):
        mean, std = data.normalisation()
        self.shape = x.shape[1:]
        self.x = torch.from_numpy(x.reshape(len(x), int(np.prod(self.shape)))).to(world.device)
        self.y = torch.from_numpy(y).to(world.device)
        pixels = int(np.prod(self.shape[1:]))
        scale = 1 / np.maximum(std, 1e-12)
        per_channel = (-mean * scale, scale)
        self._shift, self._scale = (
            torch.from_numpy(np.repeat(v, 1 if len(v) == 1 else pixels)).to(world.device, world.dtype)
            for v in per_channel
        )

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, rows: Tensor, weight: Tensor) -> Batch:
        """The examples `rows` [B], normalised."""
        return Batch(take_scaled_rows(self.x, rows, self._scale, self._shift), self.y.gather(0, rows), weight)


def training_images(data: LabelledData, world: World, examples: int | None) -> tuple[Images, np.ndarray]:
    """The training examples and their labels: all of them, or at most `examples`, drawn at random."""
    kept = np.sort(world.rng().permutation(len(data.y_train))[:examples])
    return Images(data.x_train[kept], data.y_train[kept], data, world), data.y_train[kept]


class Divided(NamedTuple):
    """train: the clients' examples, with their labels, divided by `splits`; own: rows of it, those that each client keeps to
    test its own model, None for none; server: the server's examples."""

    train: Images
    labels: np.ndarray
    splits: dict[str, Ragged]
    own: Ragged | None
    server: Images
    test: Images
    classes: int


Fraction = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, lt=1)]


def divided(world: World, test: float | None, server: float, own_test: float | None) -> Divided:
    """Who has what. test: fraction of all examples, None for the data set's own test examples; server: fraction of the others;
    own_test: of each client's. Raises UserError for a fraction that is less than one example."""
    data = world.load()
    if test is not None:
        data = data.redivided(test, world.rng(1))
    n = len(data.y_train)
    for key, fraction, count in (("test", test, len(data.y_test)), ("server", server, round(server * n))):
        if fraction and not count:
            raise UserError(f"problem.{key}={fraction}: is less than one example")
    at_server, at_clients = (np.sort(rows) for rows in np.split(world.rng(2).permutation(n), [round(server * n)]))
    labels = data.y_train[at_clients]
    splits = world.split(len(labels), labels, own_test)
    own = splits.pop("val", None)
    train, of_server = (Images(data.x_train[rows], data.y_train[rows], data, world) for rows in (at_clients, at_server))
    return Divided(train, labels, splits, own, of_server, Images(data.x_test, data.y_test, data, world), data.classes)


def own_accuracies(images: Images, own: Ragged, logits: Callable[[int, Tensor], Tensor]) -> dict[str, float]:
    """personal_accuracy, the mean over clients of the accuracy of each one's model on its own test examples, and that of the
    worst. logits: of a client's model."""
    hits = []
    for i, rows in enumerate(own):

        def hit(batch: Batch, i: int = i) -> tuple[Tensor, ...]:
            return (logits(i, batch.x).argmax(1) == batch.y,)

        hits += weighted_sums(images, rows, np.full(len(rows), 1 / len(rows)), hit)
    return {"personal_accuracy": 100 * float(np.mean(hits)), "worst_personal_accuracy": 100 * min(hits)}


def split_batches(images: Images, rows: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Batch]:
    """A sample: one batch of each split."""
    return {split: images.batch(*of_split) for split, of_split in rows.items()}


def cross_entropy(logits: Tensor, batch: Batch, class_weight: Tensor | None = None) -> Tensor:
    """sum_j weight_j class_weight[y_j] CE_j."""
    weight = batch.weight if class_weight is None else batch.weight * class_weight[batch.y]
    return losses(logits, batch) @ weight


@torch.no_grad()
def weighted_sums(
    images: Images, rows: np.ndarray, weights: np.ndarray, values: Callable[[Batch], tuple[Tensor, ...]]
) -> list[float]:
    """sum_j weights_j value_j over the examples `rows`, for each of the values ([B] each), in pieces that bound memory."""
    totals: list[Tensor] = []
    for start in range(0, len(rows), 2048):
        piece = slice(start, start + 2048)
        index, weight = (torch.from_numpy(part[piece]).to(images.y.device) for part in (rows, weights))
        sums = [value.double() @ weight for value in values(images.batch(index, weight))]
        totals = [a + b for a, b in zip(totals, sums, strict=True)] if totals else sums
    return [float(total) for total in totals]


def losses(logits: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy of each example, [B]."""
    return F.cross_entropy(logits, batch.y, reduction="none")


def test_metrics(images: Images, logits: Callable[[Tensor], Tensor]) -> dict[str, float]:
    """test_loss, and test_accuracy in percent, over all of `images`."""

    def loss_and_hit(batch: Batch) -> tuple[Tensor, ...]:
        out = logits(batch.x)
        return losses(out, batch), out.argmax(1) == batch.y

    n = len(images)
    loss, accuracy = weighted_sums(images, np.arange(n), np.full(n, 1 / n), loss_and_hit)
    return {"test_loss": loss, "test_accuracy": 100 * accuracy}


def mean(images: Images, value: Callable[[Batch], Tensor]) -> float:
    """The mean of `value` over all examples."""
    n = len(images)
    return weighted_sums(images, np.arange(n), np.full(n, 1 / n), lambda batch: (value(batch),))[0]


def client_mean(images: Images, split: Ragged, weights: np.ndarray, value: Callable[[Batch], Tensor]) -> float:
    """sum_i p_i of the clients' own means of `value` over their examples of a split. weights: p_i, [M]."""
    return weighted_sums(images, split.rows, split.example_weights(weights), lambda batch: (value(batch),))[0]
