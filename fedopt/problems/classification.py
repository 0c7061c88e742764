"""Plain classification: minimise the clients' mean cross-entropy, any data set and model [McMahan et al. 2017]."""

from dataclasses import dataclass

from pydantic import PositiveInt
from torch import Tensor

from fedopt import models
from fedopt.metrics import PERSONAL_ACCURACY, TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, WORST_PERSONAL_ACCURACY
from fedopt.problems.classes import Minimisation, Rows, Weighting
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


@dataclass(eq=False)
class Classification(Minimisation):
    """f_i is the mean cross-entropy over the client's examples; x are the parameters of the model.

    weighting: clients count by their numbers of examples, so that f is the mean over all examples, or uniformly.
    test: fraction of all examples to test on, null for the data set's own; server: fraction of the others that no client has;
    own_test: fraction of a client's examples that it keeps to test on, null for none. `hierarchical` has the same three, and
    divides the same.
    """

    model: str
    widths: list[PositiveInt]
    test: Fraction | None
    server: Share
    own_test: Fraction | None
    weighting: Weighting

    def __post_init__(self) -> None:
        world = self.world
        self.train, self.labels, self.splits, self._own, _, self._test, classes = divided(
            world, self.test, self.server, self.own_test
        )
        self.net = models.build(self.model, self.widths, self.train.shape, classes, world.seed, world.autocast)
        self.convolutional = self.net.convolutional
        self._start = self.net.initial.to(world.device, world.dtype)
        personal = () if self._own is None else (PERSONAL_ACCURACY, WORST_PERSONAL_ACCURACY)
        self.metrics = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, *personal)

    def start(self) -> tuple[Tensor, ...]:
        return (self._start,)

    def sample(self, client: int | Tensor, rows: Rows) -> dict[str, Batch]:
        return split_batches(self.train, rows)

    def f(self, x: Tensor, sample: dict[str, Batch]) -> Tensor:
        batch = sample["train"]
        return cross_entropy(self.net(x, batch.x), batch)

    def gradient(self, x: Tensor, sample: dict[str, Batch]) -> Tensor | None:
        return self.net.gradient(x, *sample["train"])

    def descend(self, x: Tensor, sample: dict[str, Batch], eta: float, plus: Tensor | None) -> Tensor | None:
        return self.net.descend(x, *sample["train"], eta, plus)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """personal_accuracy, worst_personal_accuracy: of x on the clients' own test examples, where they have some."""
        (x,) = point
        split, weights = self.splits["train"], self.weights
        train_loss = client_mean(self.train, split, weights, lambda batch: losses(self.net(x, batch.x), batch))
        personal = (
            {} if self._own is None else own_accuracies(self.train, self._own, lambda i, images: self.net(x, images))
        )
        return {"train_loss": train_loss, **test_metrics(self._test, lambda images: self.net(x, images)), **personal}
