"""Classification: minimise the mean cross-entropy of the clients, with any data set and model [McMahan et al. 2017]."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from fedopt.data import Batch, Batches, cross_entropy, losses, tuned
from fedopt.errors import UserError
from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS
from fedopt.networks import Tuning, number
from fedopt.problems.classes import Minimisation
from fedopt.problems.function import function
from fedopt.problems.loss_tuning import loss_of
from fedopt.problems.partition import ScoredRows
from fedopt.problems.server import WithServer


@dataclass(eq=False)
class Classification(WithServer, Minimisation):
    """Training a classifier: f_i(x) is the mean cross-entropy over client i's examples, plus an optional penalty.

    `WithServer` and `Supervised` describe the arguments that are not listed here; they mean the same in `hierarchical`, with
    the same partition and the same initial parameters.

    Args:
        own_test_seed: Seed of the choice of ``own_test`` examples, which is stratified by class. None: the choice follows the
            run's seed and is not stratified.
        loss: File of a model trained by loss tuning, whose scale and shift of the logits are used in the training loss.
            None: the plain cross-entropy.
        alone: Whether to compare clients with a logistic regression fitted to their own examples. None: if clients have test
            examples and the table is small.
        ridge: Factor of the penalty ridge/2 |x|^2 in each f_i, without biases.
        class_weights: Weights of the classes in f_i: a mapping from class names (other classes have weight 1), or
            ``balanced``: n / (C n_c), with the numbers of training examples of all clients. None: all weights are 1.
    """

    own_test_seed: NonNegativeInt | None = field(default=0, kw_only=True, metadata={"before": None})
    alone: bool | None = field(default=None, kw_only=True, metadata={"before": None})
    ridge: NonNegativeFloat = field(default=0.0, kw_only=True, metadata={"before": 0.0})
    class_weights: Literal["balanced"] | dict[str | int, PositiveFloat] | None = field(
        default=None, kw_only=True, metadata={"before": None}
    )
    loss: str | None = field(default=None, kw_only=True, metadata={"before": None})

    own_models = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.metrics = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS)
        self._tuning: Tuning = None
        if self.loss is not None:
            self._tuning = loss_of(self.loss, self.names_of_classes, self._start[0])
        self._class_weight = None if self.class_weights is None else self.world.tensor(self._weights_of_classes())
        if self.alone and not self.local_set:
            raise UserError("problem.alone=true: clients have no test examples; set problem.own_test to a fraction")

    def _weights_of_classes(self) -> np.ndarray:
        """Return the weight of each class, ``[C]``."""
        names, given = self.names_of_classes, self.class_weights
        if given == "balanced":
            counts = np.bincount(self.train.y.cpu().numpy()[self.splits["train"].rows], minlength=self.classes)
            return np.where(counts, counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1)), 1)
        weights = {str(name): weight for name, weight in (given or {}).items()}
        if unknown := set(weights) - set(names):
            raise UserError(f"problem.class_weights: there is no class {min(unknown)}; choose from {', '.join(names)}")
        return np.array([weights.get(name, 1.0) for name in names])

    def _weighted(self, sample: Batches) -> Batch:
        """Return the training examples of a sample, with their weights multiplied by the weights of their classes.

        Args:
            sample: Batches by split.
        """
        batch = sample["train"]
        if self._class_weight is None:
            return batch
        return batch._replace(weight=batch.weight * self._class_weight[batch.y])

    def last_layer(self) -> int:
        return len(self.net.split_last()[1].initial)

    def calibration(self, *point: Tensor) -> Tuning:
        return self._tuning

    @function(where=lambda problem: problem.net.dense)
    def f(self, x: Tensor, sample: Batches) -> Tensor:
        batch = self._weighted(sample)
        loss = cross_entropy(tuned(self.net(x, batch.x, *batch.keys), self._tuning), batch)
        return loss if self.ridges is None else loss + 0.5 * self.ridges @ x**2

    @f.gradient
    def f(self, x: Tensor, sample: Batches) -> Tensor:
        return self.penalised(x, self.net.gradient(x, self._weighted(sample), self._tuning))

    @f.step
    def f(self, x: Tensor, sample: Batches, eta: float, plus: Tensor | None, anchor: Tensor | None) -> Tensor:
        plus = self.pulls(x, plus, anchor)
        return self.net.descend(x, self._weighted(sample), eta, plus, self._tuning, anchor)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name.

        * ``train_loss``: sum_i p_i f_i with class weights and penalty, at the common model, or at the clients' own models if the
          method has no common model.
        * ``personal_accuracy``, ``worst_personal_accuracy``: mean and minimum over clients of the accuracy on their own test
          examples, if they have any, with the clients' own models if the method trains them, and otherwise with x.
        * ``better_than_alone``, ``as_good_as_alone``: percentages of clients whose accuracy is higher than, or equal to, the
          accuracy of a logistic regression fitted to their own examples.

        Args:
            point: The common model x, followed by the clients' own models, ``[M, d]``, if the method trains them.
        """
        common, own = self.models(*point)
        split = self.splits["train"]
        of, weight = ScoredRows.of(self.train, split), self.world.tensor(split.example_weights(self.weights))
        outputs = tuned(self.predictions(of, common, None if common else own), self._tuning)
        batch = self._weighted({"train": Batch(outputs, of.y, weight, of.at(slice(None)))})
        loss = number(losses(outputs, batch).double() @ batch.weight.double())
        if self.ridges is not None:
            squares = point[0] ** 2 if common or own is None else self.world.tensor(self.weights) @ own**2
            loss += 0.5 * number(self.ridges @ squares)
        return {"train_loss": loss, **self.test_metrics(common, own, self._tuning)}
