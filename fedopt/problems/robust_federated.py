"""Distributional robustness over clients with a Kullback-Leibler penalty.

With the mean loss g_k of client k of K, the objective is::

    max_{q in simplex} sum_k q_k g_k(x) - lam KL(q | 1/K)  =  lam log (1/K) sum_k exp(g_k(x) / lam)

For lam -> infinity it is the mean over clients, for lam -> 0 the worst client. Two compositions have the same minimiser:
a local one, with each client's own exp(g_k / lam) [as in Huang et al. 2022], and a global one, the logarithm of a mean
over all clients [as in Khanduri et al. 2026].

The constant c is the loss of guessing, the logarithm of the number of classes. With it, exp((g_k - c) / lam) is about 1
at the start for every lam.
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
    """Base class of the two robust problems.

    Args:
        examples: Number of training examples to use, chosen at random. None: all.
        lam: Factor of the divergence from equal weights. With a small value, the objective is close to the worst client's
            loss.
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
        """Return g_k(x) - c, ``[1]``: the client's loss minus the loss of a uniform guess.

        Args:
            x: Parameters of the network.
            sample: One client's sample.
        """
        batch = sample["train"]
        return cross_entropy(self.net(x, batch.x, *batch.keys), batch)[None] - self.c

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name.

        * ``objective``: the robust objective lam log mean_k exp(g_k(x) / lam) of the clients' training losses g_k.
        * ``train_loss``, ``worst_loss``: mean and maximum of the clients' training losses.

        Args:
            point: The variable x. Further entries are ignored.
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
    """Distributional robustness over clients as a sum of local compositions, with the same minimiser as the robust objective.

    With the loss g_k of client k and the loss c of a uniform guess, the levels are::

        f_k^0 = g_k - c,    f_k^1(u) = lam exp(u / lam)
    """

    def level(self, n: int, z: Tensor, sample: Batches) -> Tensor:
        return self.excess(z, sample) if n == 0 else self.lam * torch.exp(z[0] / self.lam)


@dataclass(eq=False)
class RobustFederatedGlobal(_Robust, KnownOuter):
    """Distributional robustness over clients as one composition with a mean over clients inside.

    With the loss g_k of client k and the loss c of a uniform guess, the levels are::

        f_k^0 = exp((g_k - c) / lam) - 1,    f^1(u) = c + lam log(1 + u)

    The true u is never below exp(-c / lam) - 1; a smaller estimate is raised to this value. At the start g_k is about c, so
    u = 0 is nearly the correct value, and all clients have nearly equal weights.
    """

    def level(self, n: int, z: Tensor, sample: Batches) -> Tensor:
        if n == 0:
            return torch.expm1(self.excess(z, sample) / self.lam)
        return self.c + self.lam * torch.log1p(z[0].clamp(min=float(np.expm1(-self.c / self.lam))))
