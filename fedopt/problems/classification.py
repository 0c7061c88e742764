"""Plain classification: minimise the clients' mean cross-entropy, any data set and model [McMahan et al. 2017]."""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from fedopt.data import Batch, Batches, cross_entropy
from fedopt.errors import UserError
from fedopt.metrics import (
    ALONE_ACCURACY,
    AS_GOOD_AS_ALONE,
    BETTER_THAN_ALONE,
    CLIENT_ACCURACY,
    PERSONAL_ACCURACY,
    TEST_ACCURACY,
    TEST_LOSS,
    TRAIN_LOSS,
    WORST_PERSONAL_ACCURACY,
)
from fedopt.problems import alone
from fedopt.problems.classes import Minimisation, Weighting
from fedopt.problems.function import function
from fedopt.problems.supervised import Fraction, Pretraining, Share, Supervised


@dataclass(eq=False)
class Classification(Supervised, Minimisation):
    """Training a classifier: f_i is the mean cross-entropy over client i's examples, x are the parameters of the model.

    weighting: samples weighs clients by their numbers of examples, so that f is the mean over all examples; uniform weighs
        them equally.
    test: the fraction of all examples for testing; None takes the data set's own test examples.
    server: the fraction of the other examples that the server has, and no client.
    own_test: the fraction of its examples that each client keeps for tests; None for none.
    pretrain, pretrain_step: the number and the step size of SGD steps on the server's examples that make the start.
    alone: whether each client's logistic regression alone (`alone.logistic`) is fitted, which better_than_alone compares with;
        None: if clients keep tests and the table is small enough for it.
    ridge: the factor of the penalty ridge/2 |x|^2 in each f_i, in which biases do not count.
    class_weights: the weights of the classes in f_i: a list, a mapping from names of classes, others weighing 1, or balanced:
        n / (C n_c), by the training examples of all clients. None: all weigh 1.

    `hierarchical` has the keys from test to pretrain_step too, with the same partition and start.
    """

    test: Fraction | None
    server: Share
    own_test: Fraction | None
    pretrain: Pretraining
    pretrain_step: PositiveFloat
    weighting: Weighting
    alone: bool | None = field(default=None, kw_only=True, metadata={"before": None})
    ridge: NonNegativeFloat = field(default=0.0, kw_only=True, metadata={"before": 0.0})
    class_weights: Literal["balanced"] | list[PositiveFloat] | dict[str | int, PositiveFloat] | None = field(
        default=None, kw_only=True, metadata={"before": None}
    )

    def __post_init__(self) -> None:
        self.set_up_shared(self.test, self.server, self.own_test, self.pretrain, self.pretrain_step)
        self.own_models = self.own_examples is not None
        of_clients = (PERSONAL_ACCURACY, WORST_PERSONAL_ACCURACY) if self.own_models else ()
        self.client_metric = CLIENT_ACCURACY if self.own_models else None
        self.metrics = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, *of_clients)
        self._class_weight = None if self.class_weights is None else self.world.tensor(self._weights_of_classes())
        if self.alone and not self.own_models:
            raise UserError("problem.alone=true: clients keep no test examples; set problem.own_test to a fraction")
        self._alone: dict[str, np.ndarray] = {}
        if self.alone or (self.alone is None and self.own_models and self._is_small_table()):
            self._alone = self._accuracies_alone()
            self.metrics = (*self.metrics, BETTER_THAN_ALONE, AS_GOOD_AS_ALONE, ALONE_ACCURACY)

    def _is_small_table(self) -> bool:
        numbers = self.splits["train"].sizes.sum() * math.prod(self.train.shape)
        return len(self.train.shape) == 1 and numbers <= alone.MOST_NUMBERS and self.clients <= alone.MOST_CLIENTS

    def _accuracies_alone(self) -> dict[str, np.ndarray]:
        """Return the accuracy of each client's model alone on its own test examples, [M], by the name of its column."""
        x, y = self.train.x.double().cpu().numpy(), self.train.y.cpu().numpy()
        weights = np.ones(self.classes) if self._class_weight is None else self._class_weight.double().cpu().numpy()
        of_clients = [
            np.mean(alone.logistic(x[rows], y[rows], x[own], weights).argmax(2) == y[own], 1)
            for rows, own in zip(self.splits["train"], self.own_examples or (), strict=True)
        ]
        return dict(zip(("alone", "alone_unpenalised"), np.transpose(of_clients), strict=True))

    def _weights_of_classes(self) -> np.ndarray:
        """Return the weight of each class, [C]."""
        names, given = [str(name) for name in self.class_names or range(self.classes)], self.class_weights
        if given == "balanced":
            counts = np.bincount(self.train.y.cpu().numpy()[self.splits["train"].rows], minlength=self.classes)
            return np.where(counts, counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1)), 1)
        if isinstance(given, dict):
            given = {str(name): weight for name, weight in given.items()}
            if unknown := set(given) - set(names):
                raise UserError(
                    f"problem.class_weights: there is no class {min(unknown)}; the classes are {', '.join(names)}"
                )
            given = [given.get(name, 1) for name in names]
        if len(given or ()) != self.classes:
            raise UserError(f"problem.class_weights={given}: must have a weight for each of {self.classes} classes")
        return np.array(given, dtype=float)

    def _weighted(self, sample: Batches) -> Batch:
        """Return the training examples of a sample, with their weights times those of their classes."""
        batch = sample["train"]
        if self._class_weight is None:
            return batch
        return batch._replace(weight=batch.weight * self._class_weight[batch.y])

    def last_layer(self) -> int:
        return len(self.net.split_last()[1].initial)

    @function(where=lambda problem: problem.net.dense)
    def f(self, x: Tensor, sample: Batches) -> Tensor:
        batch = self._weighted(sample)
        loss = cross_entropy(self.net(x, batch.x, *batch.keys), batch)
        return loss if self.ridges is None else loss + 0.5 * self.ridges @ x**2

    @f.gradient
    def f(self, x: Tensor, sample: Batches) -> Tensor:
        return self.penalised(x, self.net.gradient(x, *self._weighted(sample)[:3]))

    @f.step
    def f(self, x: Tensor, sample: Batches, eta: float, plus: Tensor | None, anchor: Tensor | None) -> Tensor:
        return self.net.descend(x, *self._weighted(sample)[:3], eta, self.pulls(x, plus, anchor), anchor=anchor)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the metrics.

        personal_accuracy, worst_personal_accuracy: the mean and the least accuracy of the clients' own models on their test
            examples, if they have some; of x, if the method has no models of clients.
        better_than_alone, as_good_as_alone, alone_accuracy: the shares of clients whose accuracy there is above that of their
            logistic regression alone, or the same, and the mean of the latter.
        train_loss: sum_i p_i f_i(x), which is minimised, with its class weights and penalty.
        """
        x, *models = point
        logits, w = partial(self.net, x), models[0] if models else x.expand(self.clients, -1)
        return {
            "train_loss": self.client_loss("train", logits, self._class_weight) + self._penalty(x),
            **self.test_metrics(logits),
            **self.own_metrics(w, self._alone.get("alone")),
        }

    def _penalty(self, x: Tensor) -> float:
        return 0.0 if self.ridges is None else 0.5 * float(self.ridges @ x**2)

    def of_clients(self, *point: Tensor) -> dict[str, list[float]]:
        """Return the accuracies on the clients' own test examples, in percent."""
        x, *models = point
        of: dict[str, Any] = {"own": self.own_accuracies(models[0])} if models else {}
        of["common"] = self.own_accuracies(x.expand(self.clients, -1))
        return {kind: [100 * float(accuracy) for accuracy in of_kind] for kind, of_kind in (of | self._alone).items()}
