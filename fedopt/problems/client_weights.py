"""Learning the mixture of clients to train on [arXiv 2207.10751; of sources of text in DoReMi, Xie et al. 2023].

    y*(x) = argmin_y sum_i w_i l_i(y) + ridge/2 |y|²,    w = softmax(x),    l_i the mean training loss of client i of M
    min_x v(y*(x)) + rho KL(w | uniform),                v the validation loss of one target client, or the mean of all

Derived here: clients count equally, so that client i's part is g_i = M w_i l_i + ridge/2 |y|². Coordinate i of the hypergradient is
-w_i <grad l_i(y*) - sum_k w_k grad l_k(y*), v*> + rho w_i (log w_i - sum_k w_k log w_k), with v* = [grad²_yy g]^-1 grad v(y*).
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from fedopt.data import Batch, Batches, cross_entropy, losses
from fedopt.errors import UserError
from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, VAL_LOSS, Metric
from fedopt.networks import Tuning
from fedopt.problems.function import function
from fedopt.problems.personalised_regression import TEST_RMSE
from fedopt.problems.supervised import Share, SupervisedBilevel
from fedopt.randomness import Part

WRONG_WEIGHT = Metric("wrong_weight", "weight of the clients with wrong labels")


@dataclass(eq=False)
class ClientWeights(SupervisedBilevel):
    """Learning how much each client's training loss counts, for the validation loss of one client or of all.

    x: the logits of the clients' weights, 0 at the start. y: the parameters of the network. Targets that are real numbers have
        half the squared error as loss, and the network one output.

    examples: the largest number of training examples, validation included, drawn at random; None for all.
    target: the index of the client that validates; None for all, each with the same weight.
    rho: the factor of the divergence from uniform weights in f.
    wrong: the share of clients, drawn at random, whose training labels are replaced by draws from those of all clients.
    """

    examples: PositiveInt | None
    target: NonNegativeInt | None
    rho: NonNegativeFloat
    wrong: Share

    metrics = (TEST_ACCURACY, TEST_LOSS, VAL_LOSS, WRONG_WEIGHT)

    def __post_init__(self) -> None:
        data = self.world.load(validation=True, real=True)
        self.set_up(data, self.subset(data, self.examples), self.validation, self.dropout)
        M, split, rng = self.clients, self.splits["train"], self.world.rng(Part.LABELS)
        if self.target is not None and self.target >= M:
            raise UserError(f"problem.target={self.target}: the clients are 0 to {M - 1}; choose one of them, or null")
        owner, labels = np.zeros(len(self.train), dtype=np.int64), self.train.y.cpu().numpy().copy()
        for of in self.splits.values():
            owner[of.rows] = np.repeat(np.arange(M), of.sizes)
        self.wrong_clients = np.sort(rng.permutation(M)[: round(self.wrong * M)])
        rows = split.rows[np.isin(owner[split.rows], self.wrong_clients)]
        labels[rows] = self.train.y.cpu().numpy()[rng.choice(split.rows, len(rows))]
        self.train.y, self._owner = (torch.from_numpy(v).to(self.train.y.device) for v in (labels, owner))
        self.notes = [
            *self.notes,
            f"problem.wrong redraws the training labels of {len(self.wrong_clients)} of {M} clients",
        ]
        (y,), judges = self._start, np.ones(M) if self.target is None else M * np.eye(M)[self.target]
        self._judges, self._start, self.direct = self.world.tensor(judges), (y.new_zeros(M), y), self.rho > 0
        if data.real:
            self.metrics = (TEST_RMSE, VAL_LOSS, WRONG_WEIGHT)  # type: ignore[assignment]

    def divergence(self, x: Tensor) -> Tensor:
        """Return KL(softmax(x) | uniform), a scalar."""
        log = torch.log_softmax(x, 0)
        return log.exp() @ log + math.log(len(x))

    def judged(self, batch: Batch) -> Batch:
        """Return a batch of validation examples, with M times the weight of its client in v, over all clients."""
        return batch._replace(weight=batch.weight * self._judges.gather(0, self._owner.gather(0, batch.rows)))

    @function(where=lambda problem: problem.net.dense)
    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        batch = self.judged(sample["val"])
        loss = cross_entropy(self.net(y, batch.x, *batch.keys), batch)
        return loss + self.rho * self.divergence(x) if self.rho else loss

    @f.gradient
    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        batch = self.judged(sample["val"])
        return self.net.gradient(y, *batch[:3], None, *batch.keys)

    @f.both
    def f(self, x: Tensor, y: Tensor, sample: Batches) -> tuple[Tensor, Tensor]:
        log = torch.log_softmax(x, 0)
        return self.rho * log.exp() * (log - log.exp() @ log), self.f.gradient(x, y, sample)

    def inner(self, x: Tensor, batch: Batch) -> tuple[Batch, Tuning]:
        weights = len(x) * torch.softmax(x, 0)
        return batch._replace(weight=batch.weight * weights.gather(0, self._owner.gather(0, batch.rows))), None

    def parameters(self, *point: Tensor) -> Tensor:
        return point[1]

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the metrics. val_loss: v(y). wrong_weight: the sum of w_i over clients with wrong labels."""
        net = partial(self.net, point[1])

        def judged_losses(batch: Batch) -> tuple[Tensor]:
            batch = self.judged(batch._replace(weight=torch.ones_like(batch.weight)))
            return (losses(net(batch.x), batch) * batch.weight,)

        of, loss_and_accuracy = self.splits["val"], self.test_metrics(net)
        real = {"test_rmse": math.sqrt(2 * loss_and_accuracy["test_loss"])}
        return {
            "val_loss": self.train.means(judged_losses, of.rows, of.example_weights(self.weights))[0],
            "wrong_weight": float(torch.softmax(point[0], 0)[torch.from_numpy(self.wrong_clients)].sum()),
            **(loss_and_accuracy if self.classes else real),
        }
