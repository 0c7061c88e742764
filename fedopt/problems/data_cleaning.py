"""Learning which training labels to trust [data cleaning in benchmark_bilevel, after Franceschi et al. 2017].

With the trust x_j in training example j of N, and the norm |y| without biases::

    f(x, y) = loss of a network with parameters y on clean validation examples
    g(x, y) = (1/N) sum_j sigma(x_j) loss(y; a_j, b_j) + ridge/2 |y|²

Read in the public code: one machine, a linear softmax, x = -2 and y = 0 at the start, and 0.2 |y|². Derived here: client
i uses the x_j of its own examples and has the weight n_i / N, so that the mean over clients is the pooled problem.
Coordinate j of the hypergradient is::

    -sigma'(x_j) <grad loss_j(y*), v*> / N
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from fedopt.data import Batch, Batches, cross_entropy, of_finite
from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, VAL_LOSS, Metric
from fedopt.networks import Tuning
from fedopt.problems.classes import Weighting
from fedopt.problems.supervised import Share, SupervisedBilevel
from fedopt.randomness import Part

DETECTION = Metric("detection_f1", "F1 of 'the label is wrong where sigma(x_j) < 1/2'", better="higher")


@dataclass(eq=False)
class DataCleaning(SupervisedBilevel):
    """Learning how much to trust training examples whose labels may be wrong.

    The variable x contains the trust in each example, class or client, before the sigmoid, and y the parameters of the
    network, 0 at the start if it has one layer. `SupervisedBilevel` describes the arguments that are not listed here.

    Args:
        examples: Number of training and validation examples to use, chosen at random. None: all.
        weighting: How clients count in the objective: by their numbers of training examples (``samples``), or equally
            (``uniform``).
        corruption: Probability that a training label is replaced with a uniformly random class.
        per: Whether x has one entry per ``example``, ``class`` or ``client``.
        x0: Initial value of every coordinate of x.
    """

    examples: PositiveInt | None
    weighting: Weighting
    corruption: Share
    per: Literal["example", "class", "client"]
    x0: float

    direct = False
    metrics = (TEST_ACCURACY, TEST_LOSS, VAL_LOSS, DETECTION)

    def __post_init__(self) -> None:
        data = self.world.load(validation=True)
        self.set_up(data, self.subset(data, self.examples), self.validation)
        split, clean, rng = self.splits["train"], self.train.y.cpu().numpy(), self.world.rng(Part.LABELS)
        corrupt, random = rng.random(len(clean)) < self.corruption, rng.integers(self.classes, size=len(clean))
        labels, place = clean.copy(), np.zeros_like(clean)
        labels[split.rows] = np.where(corrupt, random, clean)[split.rows]
        place[np.sort(split.rows)] = np.arange(len(split.rows))
        owner = np.repeat(np.arange(len(split)), split.sizes)[np.argsort(split.rows)]
        place = {"example": place, "class": labels, "client": owner[place]}[self.per]
        self.wrong = labels != clean
        self.train.y, self._place = (torch.from_numpy(v).to(self.train.y.device) for v in (labels, place))
        share = f"{self.wrong.sum():,} of {len(split.rows):,} training labels"
        self.notes = [*self.notes, f"problem.corruption makes {share} wrong"]
        (y,), size = self._start, {"example": len(split.rows), "class": self.classes, "client": len(split)}[self.per]
        self._start = (y.new_full((size,), self.x0), torch.zeros_like(y) if self.model in ("linear", "softmax") else y)

    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        batch = sample["val"]
        return cross_entropy(self.net(y, batch.x, *batch.keys), batch)

    def inner(self, x: Tensor, batch: Batch) -> tuple[Batch, Tuning]:
        trust = torch.sigmoid(x.gather(0, self._place.gather(0, batch.rows)))
        return batch._replace(weight=batch.weight * trust), None

    def parameters(self, *point: Tensor) -> Tensor:
        return point[1]

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name.

        A training label is distrusted if its x is below 0. ``detection_f1`` measures how well the distrusted labels agree with
        the wrong labels. It is 0 if no label is wrong and no label is distrusted, and otherwise::

            2 (wrong labels that are distrusted) / (distrusted labels + wrong labels)

        Args:
            point: The variables (x, y).
        """
        x, y = point[:2]
        rows = self.splits["train"].rows
        distrusted, wrong = of_finite(x < 0, x).cpu().numpy()[self._place.cpu().numpy()[rows]], self.wrong[rows]
        return {
            "val_loss": self.client_loss("val", partial(self.net, y)),
            "detection_f1": 2 * float(np.sum(distrusted * wrong)) / max(float(distrusted.sum() + wrong.sum()), 1.0),
            **self.test_metrics(partial(self.net, y)),
        }
