"""Learning a representation, where the outer variable contains the hidden layers and the inner variable the output layer.

The problem is from [FedNest, Sec. 4.1].
"""

from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import torch
from torch import Tensor

from fedopt.data import Batch, Batches, cross_entropy
from fedopt.networks import Tuning
from fedopt.problems.classes import Rows
from fedopt.problems.function import written_for
from fedopt.problems.supervised import SupervisedBilevel


class Features(Batch):
    """A batch whose inputs are the outputs of the hidden layers, ``[B, features]``."""


@dataclass(eq=False)
class HyperRepresentation(SupervisedBilevel):
    """Learning a representation that all clients share, such that the output layer fitted to it has a small validation loss.

    The variable x contains the parameters of all layers but the last, and y the parameters of the last layer, which is
    linear. `SupervisedBilevel` describes the arguments.
    """

    inner_net = property(attrgetter("head"))

    def __post_init__(self) -> None:
        self.set_up(self.world.load(validation=True), held_out=self.validation)
        self.body, self.head = self.net.split_last()
        self.ridges = None if self.ridges is None else self.ridges[self.body.dim :]  # ridges of y, the last layer
        self._start = tuple(net.initial.to(self._start[0]) for net in (self.body, self.head))

    def _behind(self, x: Tensor, batch: Batch) -> Features:
        """Return a batch whose inputs are replaced with the outputs of the hidden layers at x, unless they are already.

        Args:
            x: Parameters of the hidden layers.
            batch: The batch.
        """
        if isinstance(batch, Features):
            return batch
        return Features(self.body(x, batch.x, *batch.keys), *batch[1:4])

    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        batch = self._behind(x, sample["val"])
        return cross_entropy(self.head(y, batch.x), batch)

    def inner(self, x: Tensor, batch: Batch) -> tuple[Batch, Tuning]:
        return self._behind(x, batch), None

    @written_for(f, SupervisedBilevel.g)
    def hold(self, x: Tensor, sample: Batches) -> dict[str, Features]:
        """Return a sample with its features computed at x, for several steps in y at the same x.

        The functions f and g accept the result in place of the sample, but then they have no derivatives in x.

        Args:
            x: Parameters of the hidden layers.
            sample: Batches by split.
        """
        return {split: self._behind(x, batch) for split, batch in sample.items()}

    def pick(self, held: dict[str, Features], rows: Rows) -> dict[str, Features]:
        """Select examples from a sample returned by `hold`.

        Args:
            held: The sample.
            rows: For each split, the positions of examples in ``held``, ``[B]``, and their weights, ``[B]``.
        """

        def picked(batch: Features, at: Tensor, weight: Tensor) -> Features:
            return Features(batch.x[at], batch.y[at], weight, batch.rows[at])

        return {split: picked(held[split], *of_split) for split, of_split in rows.items()}

    def parameters(self, *point: Tensor) -> Tensor:
        return torch.cat(point[:2])

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        logits = partial(self.predicted, self.parameters(*point))
        return {
            "train_loss": self.client_loss("train", logits),
            "val_loss": self.client_loss("val", logits),
            **self.test_metrics(logits),
        }
