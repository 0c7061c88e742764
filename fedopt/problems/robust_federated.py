"""Federated learning that is robust to how the clients are mixed: KL-regularised distributional robustness over clients.

    max_{q in simplex} sum_k q_k g_k(x) - lam KL(q | 1/K) = lam log (1/K) sum_k exp(g_k(x) / lam),   g_k the mean loss of client k

lam -> infinity is the mean over clients, lam -> 0 the worst client. Its minimiser is that of two compositions, which methods meet
differently: a local one, each client's own exp(g_k / lam) [as in Huang et al. 2022], and a global one, the logarithm of a mean over
all clients [as in Khanduri et al. 2026].

c is the loss of guessing, the logarithm of the number of classes: exp((g_k - c) / lam) is about 1 at the start, whatever lam is.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.data import Batches, cross_entropy
from fedopt.metrics import OBJECTIVE, TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, WORST_LOSS
from fedopt.networks import number
from fedopt.problems.classes import KnownOuter, LocalCompositional
from fedopt.problems.supervised import Supervised


@dataclass(eq=False)
class _Robust(Supervised):
    """What both robust problems share.

    examples: the largest number of training examples, drawn at random; None for all.
    lam: the price of unequal weights of the clients. A small lam comes near the worst client's loss.
    """

    examples: PositiveInt | None
    lam: PositiveFloat

    metrics = (TEST_ACCURACY, TEST_LOSS, OBJECTIVE, TRAIN_LOSS, WORST_LOSS)

    def __post_init__(self) -> None:
        data = self.world.load()
        self.set_up(data, self.subset(data, self.examples))
        self.dims: tuple[int, ...] = (self._start[0].numel(), 1)
        self.c = float(np.log(self.classes))

    def excess(self, x: Tensor, sample: Batches) -> Tensor:
        """Return g_k(x) - c, [1]: the client's loss minus the loss of a uniform guess."""
        batch = sample["train"]
        return cross_entropy(self.net(x, batch.x, *batch.keys), batch)[None] - self.c

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the metrics.

        objective: the one in the module's docstring, in the unit of a loss. train_loss, worst_loss: the mean and the largest
            of the clients' losses.
        """
        logits = partial(self.net, point[0])
        of_clients = [self.train.loss_and_accuracy(logits, rows)[0] for rows in self.splits["train"]]
        losses = torch.tensor(of_clients, dtype=torch.float64)
        return {
            **self.test_metrics(logits),
            "objective": self.lam * number(torch.logsumexp(losses / self.lam, 0) - np.log(self.clients)),
            "train_loss": number(losses.mean()),
            "worst_loss": number(losses.max()),
        }


@dataclass(eq=False)
class RobustFederated(_Robust, LocalCompositional):
    """The robust objective as a sum of local compositions: f_k^0 = g_k - c, f_k^1(u) = lam exp(u / lam).

    This is the paper's objective times lam exp(-c / lam).
    """

    def level(self, n: int, z: Tensor, sample: Batches) -> Tensor:
        return self.excess(z, sample) if n == 0 else self.lam * torch.exp(z[0] / self.lam)


@dataclass(eq=False)
class RobustFederatedGlobal(_Robust, KnownOuter):
    """The robust objective as one composition of means: f_k^0 = exp((g_k - c) / lam) - 1, f^1(u) = c + lam log(1 + u).

    An estimate u below exp(-c / lam) - 1, where the true value never is, is raised to it. Methods that begin with u = 0 begin
    with nearly equal weights.
    """

    def level(self, n: int, z: Tensor, sample: Batches) -> Tensor:
        if n == 0:
            return torch.expm1(self.excess(z, sample) / self.lam)
        return self.c + self.lam * torch.log1p(z[0].clamp(min=float(np.expm1(-self.c / self.lam))))
