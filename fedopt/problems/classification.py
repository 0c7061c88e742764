"""Plain classification: minimise the clients' mean cross-entropy, any data set and model [McMahan et al. 2017]."""

from collections.abc import Mapping

from pydantic import ConfigDict, PositiveInt
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedopt import models
from fedopt.data.world import World
from fedopt.problems.classes import Minimisation
from fedopt.problems.supervised import Batch, Images, client_mean, cross_entropy, losses, split_batches, test_metrics


@dataclass(config=ConfigDict(extra="forbid"))
class Classification(Minimisation):
    """f_i is the mean cross-entropy over the client's examples; x are the parameters of the model."""

    model: str
    widths: list[PositiveInt]

    def build(self, world: World) -> "Classification":
        data = world.load()
        self.train = Images(data.x_train, data.y_train, data, world)
        self.test = Images(data.x_test, data.y_test, data, world)
        self.labels = data.y_train
        self.splits = world.split(len(self.train), data.y_train)
        self.net = models.build(self.model, self.widths, self.train.shape, data.classes, world.seed, world.autocast)
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

    def gradient(self, x: Tensor, sample: dict[str, Batch], out: Tensor | None = None) -> Tensor | None:
        return self.net.cross_entropy_gradient(x, *sample["train"], out) if self.net.dense else None

    def metrics(self, *point: Tensor) -> dict[str, float]:
        (x,) = point
        train_loss = client_mean(self.train, self.splits["train"], lambda batch: losses(self.net(x, batch.x), batch))
        return {"train_loss": train_loss, **test_metrics(self.test, lambda images: self.net(x, images))}
