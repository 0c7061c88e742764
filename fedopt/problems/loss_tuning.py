"""Loss tuning for classes of unequal sizes [FedNest, Sec. 4.2; FedMSA, Sec. 4].

The inner problem trains a network y on imbalanced data with a parametric loss. The outer problem tunes the parameters x
of the loss for the class-balanced validation loss. It depends on x only through y*(x), so that the direct part of the
hypergradient is zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedopt.data import Batch, Batches, cross_entropy, load_model, tuned
from fedopt.decimals import exact
from fedopt.errors import MOST_NAMED, UserError, joined
from fedopt.networks import Tuning
from fedopt.problems.personal import OF_PROBABILITIES
from fedopt.problems.scores import Scores
from fedopt.problems.supervised import SupervisedBilevel


def long_tail(labels: np.ndarray, largest: int, imbalance: float) -> np.ndarray:
    """Choose a long-tailed subset of the examples.

    It contains the first n_c examples of class c = 0, ..., C - 1, or all examples if there are fewer::

        n_c = round(largest * imbalance^(c / (C - 1)))

    Args:
        labels: Class of each example, ``[n]``.
        largest: Number of examples of class 0.
        imbalance: Ratio of the numbers of examples of the last and the first class.

    Returns:
        The sorted indices of the subset.
    """
    classes = np.unique(labels)
    sizes = [round(exact(largest * imbalance ** (j / max(len(classes) - 1, 1)))) for j in range(len(classes))]
    return np.sort(np.concatenate([np.flatnonzero(labels == c)[:n] for c, n in zip(classes, sizes, strict=True)]))


def tuning(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale sigmoid(Delta) and the shift l of the logits, ``[C]`` each.

    Args:
        x: The outer variable (Delta, l), ``[2 C]``.
    """
    delta, shift = x.chunk(2)
    return torch.sigmoid(delta), shift


def loss_of(path: str, classes: Sequence[str], like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale and the shift of the logits, ``[classes]`` each, of a model trained by loss tuning.

    Args:
        path: File of the model.
        classes: Names of the classes.
        like: A tensor whose type and device the results get.

    Raises:
        UserError: The file does not exist, or its model has other classes or was not trained by loss tuning.
    """
    model = load_model(path)
    if model.scale is None or model.shift is None:
        raise UserError(f"problem.loss={path}: is not a model of problem=loss_tuning; make one with fedopt export RUN")
    if [*map(str, model.classes_)] != [*classes]:
        known = f"its classes are {joined(model.classes_, MOST_NAMED)}, but the data have {joined(classes, MOST_NAMED)}"
        raise UserError(f"problem.loss={path}: {known}; use a model of a run on the same data")
    return model.scale.to(like), model.shift.to(like)


@dataclass(eq=False)
class LossTuning(SupervisedBilevel):
    """Tuning of the VS loss for classes of unequal sizes.

    The variable x = (Delta, l), ``[2 C]``, scales and shifts the logits in the training loss, and y contains the parameters
    of the network::

        tuned logits = sigmoid(Delta_c) * logits_c + l_c

    `SupervisedBilevel` describes the arguments that are not listed here.

    Args:
        largest: Number of training examples of class 0. Class c of C keeps largest * imbalance^(c / (C-1)) examples;
            validation examples are all kept. None: the size of the most frequent class, so that ``imbalance=1`` keeps all
            examples.
        imbalance: Ratio of the sizes of the last and the first class.
    """

    largest: PositiveInt | None
    imbalance: Annotated[float, Field(gt=0, le=1)]

    direct = False

    def __post_init__(self) -> None:
        data = self.world.load(validation=True)
        given = np.zeros(len(data.y_train), dtype=bool) if data.validates is None else data.validates
        train = np.flatnonzero(~given)
        largest = self.largest or int(np.bincount(data.y_train[train]).max())
        kept = train[long_tail(data.y_train[train], largest, self.imbalance)]
        self.set_up(data, np.sort(np.append(kept, np.flatnonzero(given))), self.validation)
        if len(kept) < len(train):
            share = f"{len(kept):,} of {len(train):,} training examples"
            self.notes = [*self.notes, f"problem.largest and problem.imbalance keep {share}"]
        balance = 1 / (self.classes * self.class_shares("val"))  # equal weights of the classes' mean losses
        self.class_weight = self.world.tensor(balance)
        train_y, test_y = (y.cpu().numpy() for y in (self.train.y[self.splits["train"].rows], self.test_set.y))
        self._calibrated = Scores.of(train_y, self.names_of_classes, OF_PROBABILITIES, [test_y])
        self.metrics = (*self.metrics, *self._calibrated.metrics("calibrated", "calibrated"))  # type: ignore[assignment]
        self._start = (self.class_weight.new_zeros(2 * self.classes), *self._start)

    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        batch = sample["val"]
        return cross_entropy(self.net(y, batch.x, *batch.keys), batch, self.class_weight)

    def inner(self, x: Tensor, batch: Batch) -> tuple[Batch, Tuning]:
        return batch, tuning(x)

    def parameters(self, *point: Tensor) -> Tensor:
        return point[1]

    def calibration(self, *point: Tensor) -> Tuning:
        return tuning(point[0])

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name.

        There are metrics of two outputs: of the logits of the network y, whose largest entry is the predicted class, and of the
        tuned logits, which enter the training loss. The probabilities of the tuned logits are calibrated for the training
        distribution.

        * ``calibrated_loss``, ``calibrated_brier``: loss and Brier score of the tuned logits on the test examples.
        * ``calibrated_calibration``: mean predicted probability of the rarest training class, divided by its share of the test
          examples.

        Args:
            point: The variables (x, y).
        """
        x, y = point[:2]
        logits, test = partial(self.net, y), self.test_set
        calibrated = tuned(self.predictions(test, logits), tuning(x))
        return {
            "train_loss": self.client_loss("train", lambda inputs: tuned(logits(inputs), tuning(x))),
            "val_loss": self.client_loss("val", logits, self.class_weight),
            **self.test_metrics(logits, None, tuning(x)),
            **{f"calibrated_{name}": value for name, value in self._calibrated.scores(calibrated, test.y).items()},
        }
