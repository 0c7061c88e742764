"""Minimax problems whose x are the parameters of a network."""

from abc import abstractmethod
from dataclasses import dataclass

from pydantic import PositiveInt
from torch import Tensor

from fedopt import models
from fedopt.problems.classes import Minimax, Rows, Weighting
from fedopt.problems.supervised import Batch, Images, split_batches, training_images


@dataclass(eq=False)
class NetworkMinimax(Minimax):
    """model, widths: see `models.build`; examples: of the training set, drawn at random, at most; None for all.

    weighting: clients count by their numbers of examples, so that f is a mean over all examples, or uniformly.
    """

    model: str
    widths: list[PositiveInt]
    examples: PositiveInt | None
    weighting: Weighting

    def __post_init__(self) -> None:
        world = self.world
        data = world.load()
        self.train, self.labels = training_images(data, world, self.examples)
        self.test = Images(data.x_test, data.y_test, data, world)
        self.splits = world.split(len(self.train), self.labels)
        self.net = models.build(self.model, self.widths, self.train.shape, data.classes, world.seed, world.autocast)
        self.convolutional = self.net.convolutional
        x = self.net.initial.to(world.device, world.dtype)
        self._start = (x, self.start_y(x, data.classes))

    @abstractmethod
    def start_y(self, x: Tensor, classes: int) -> Tensor:
        """Where y starts, on the device and of the dtype of x."""

    def start(self) -> tuple[Tensor, ...]:
        return self._start

    def sample(self, client: int | Tensor, rows: Rows) -> dict[str, Batch]:
        return split_batches(self.train, rows)
