"""Plain classification: minimise the clients' mean cross-entropy, any data set and model [McMahan et al. 2017]."""

from collections.abc import Mapping

from pydantic import ConfigDict, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedopt import models
from fedopt.data.world import World
from fedopt.problems.classes import Minimisation
from fedopt.problems.supervised import (
    Batch,
    Fraction,
    Share,
    client_mean,
    cross_entropy,
    divided,
    losses,
    own_accuracies,
    split_batches,
    test_metrics,
)


@dataclass(config=ConfigDict(extra="forbid"))
class Classification(Minimisation):
    """f_i is the mean cross-entropy over the client's examples; x are the parameters of the model.

    test: fraction of all examples to test on, null for the data set's own; server: fraction of the others that no client has;
    own_test: fraction of a client's examples that it keeps to test on, null for none. `hierarchical` has the same three, and
    divides the same.
    """

    model: str
    widths: list[PositiveInt]
    test: Fraction | None
    server: Share
    own_test: Fraction | None

    def build(self, world: World) -> "Classification":
        self.train, self.labels, self.splits, self._own, _, self._test, classes = divided(
            world, self.test, self.server, self.own_test
        )
        self.net = models.build(self.model, self.widths, self.train.shape, classes, world.seed, world.autocast)
        self.convolutional = self.net.convolutional
        self._start = self.net.initial.to(world.device, world.dtype)
        return self

    def start(self) -> tuple[Tensor, ...]:
        return (self._start,)

    def sample(self, client: int | Tensor, rows: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Batch]:
        return split_batches(self.train, rows)

    def f(self, x: Tensor, sample: dict[str, Batch]) -> Tensor:
        batch = sample["train"]
        return cross_entropy(self.net(x, batch.x), batch)

    def gradient(self, x: Tensor, sample: dict[str, Batch]) -> Tensor | None:
        return self.net.gradient(x, *sample["train"])

    def descend(self, x: Tensor, sample: dict[str, Batch], eta: float, plus: Tensor | None) -> Tensor | None:
        return self.net.descend(x, *sample["train"], eta, plus)

    def metrics(self, *point: Tensor) -> dict[str, float]:
        """personal_accuracy, worst_personal_accuracy: of x on the clients' own test examples, where they have some."""
        (x,) = point
        train_loss = client_mean(self.train, self.splits["train"], lambda batch: losses(self.net(x, batch.x), batch))
        personal = (
            {} if self._own is None else own_accuracies(self.train, self._own, lambda i, images: self.net(x, images))
        )
        return {"train_loss": train_loss, **test_metrics(self._test, lambda images: self.net(x, images)), **personal}
