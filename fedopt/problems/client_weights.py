"""Learning the weights of clients in the training loss [arXiv 2207.10751; for sources of text DoReMi, Xie et al. 2023].

With the mean training loss l_i of client i of M, a mean v of validation losses of clients, and the norm |y| without
biases::

    y*(x) = argmin_y sum_i w_i l_i(y) + ridge/2 |y|²,    w = softmax(x)
    min_x v(y*(x)) + rho KL(w | uniform)

Omitted clients have exactly w_i = 0: the softmax, the divergence and v only involve the others.

Derived here: clients count equally in the objective, so that client i's part of the lower level is
g_i = M w_i l_i + ridge/2 |y|². Coordinate i of the hypergradient is::

    -w_i <grad l_i(y*) - sum_k w_k grad l_k(y*), v*> + rho w_i (log w_i - sum_k w_k log w_k)

where v* solves grad²_yy g v* = grad v(y*). The solution is unique up to a common shift of the biases of all classes,
which changes neither g nor v.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from fedopt.data import Batch, Batches, cross_entropy
from fedopt.decimals import exact
from fedopt.errors import UserError
from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, VAL_LOSS, Metric
from fedopt.networks import Tuning, number
from fedopt.problems.personalised_regression import TEST_RMSE
from fedopt.problems.supervised import Share, SupervisedBilevel
from fedopt.randomness import Part

WRONG_WEIGHT = Metric("wrong_weight", "weight of the clients with wrong labels")


@dataclass(eq=False)
class ClientWeights(SupervisedBilevel):
    """Learning the weight of each client's training loss that minimises the validation loss of some clients.

    The variable x contains the logits of the clients' weights, 0 at the start, and y the parameters of the network.
    Regression targets have half the squared error as loss. `SupervisedBilevel` describes the arguments that are not listed
    here.

    Args:
        examples: Number of training and validation examples to use, chosen at random. None: all.
        target: Client, or list of clients, whose validation loss counts, with equal weights. None: all clients that are not
            omitted.
        rho: Factor of the divergence from uniform weights in f.
        wrong: Fraction of clients, chosen at random, whose training labels are replaced with random labels of all clients.
        omit: Clients that are excluded: their weight is 0.
    """

    examples: PositiveInt | None
    target: NonNegativeInt | list[NonNegativeInt] | None
    rho: NonNegativeFloat
    wrong: Share
    omit: list[NonNegativeInt]

    metrics = (TEST_ACCURACY, TEST_LOSS, VAL_LOSS, WRONG_WEIGHT)

    def __post_init__(self) -> None:
        data = self.world.load(validation=True, real=True)
        self.set_up(data, self.subset(data, self.examples), self.validation)
        M, split, rng = self.clients, self.splits["train"], self.world.rng(Part.LABELS)
        everyone = np.arange(M)
        kept = np.setdiff1d(everyone, self.omit)
        targets = kept if self.target is None else np.unique(self.target)
        for key, named in (("target", targets), ("omit", self.omit)):
            if np.max(named, initial=0) >= M:
                raise UserError(f"problem.{key}: {np.max(named)} is not a client; choose from 0 to {M - 1}")
        if not len(targets) or not len(kept):
            raise UserError("problem.omit, problem.target: no client is left to train or validate; omit fewer clients")
        owner, labels = np.zeros(len(self.train), dtype=np.int64), self.train.y.cpu().numpy().copy()
        for of in self.splits.values():
            owner[of.rows] = np.repeat(everyone, of.sizes)
        self.wrong_clients = np.sort(rng.permutation(M)[: round(exact(self.wrong * M))])
        rows = split.rows[np.isin(owner[split.rows], self.wrong_clients)]
        labels[rows] = self.train.y.cpu().numpy()[rng.choice(split.rows, len(rows))]
        self.train.y, self._owner = (torch.from_numpy(v).to(self.train.y.device) for v in (labels, owner))
        wrong = f"{len(self.wrong_clients)} of {M} clients"
        self.notes = [*self.notes, f"problem.wrong randomises the training labels of {wrong}"]
        (y,) = self._start
        self._shares = np.isin(everyone, targets) / len(targets)
        self._judges = self.world.tensor(M * self._shares)
        place = np.where(np.isin(everyone, kept), np.searchsorted(kept, everyone), len(kept))
        self._kept, self._place = (torch.from_numpy(v).to(y.device) for v in (kept, place))
        self._start = y.new_zeros(M), y
        self.direct = self.rho > 0
        if data.real:
            self.metrics = (TEST_RMSE, VAL_LOSS, WRONG_WEIGHT)  # type: ignore[assignment]

    def mixture(self, x: Tensor) -> Tensor:
        """Return the weight of each client, ``[M]``; 0 for omitted clients.

        Args:
            x: The logits of the clients' weights, ``[M]``.
        """
        return F.pad(torch.softmax(x.index_select(0, self._kept), 0), (0, 1)).gather(0, self._place)

    def divergence(self, x: Tensor) -> Tensor:
        """Return KL(w | uniform) over the clients that are not omitted, a scalar.

        Args:
            x: The logits of the clients' weights, ``[M]``.
        """
        log = torch.log_softmax(x.index_select(0, self._kept), 0)
        return log.exp() @ log + math.log(len(log))

    def f(self, x: Tensor, y: Tensor, sample: Batches) -> Tensor:
        batch = sample["val"]
        judged = batch._replace(weight=batch.weight * self._judges.gather(0, self._owner.gather(0, batch.rows)))
        loss = cross_entropy(self.net(y, batch.x, *batch.keys), judged)
        return loss + self.rho * self.divergence(x) if self.rho else loss

    def inner(self, x: Tensor, batch: Batch) -> tuple[Batch, Tuning]:
        mixture = self.mixture(x)
        weights = len(mixture) * mixture
        return batch._replace(weight=batch.weight * weights.gather(0, self._owner.gather(0, batch.rows))), None

    def parameters(self, *point: Tensor) -> Tensor:
        return point[1]

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name.

        ``val_loss`` is the validation loss of the target clients, and ``wrong_weight`` the total weight of the clients with wrong
        labels.

        Args:
            point: The variables (x, y).
        """
        net = partial(self.net, point[1])
        return {
            "val_loss": self.client_loss("val", net, weights=self._shares),
            "wrong_weight": number(self.mixture(point[0])[torch.from_numpy(self.wrong_clients)].sum()),
            **self.test_metrics(net),
        }
