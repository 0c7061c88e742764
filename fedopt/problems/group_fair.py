"""Classification that is fair to groups of examples, with several objectives or with constraints.

The groups are the classes. With the mean loss F_c of the n_c examples of class c, over all clients::

    GroupFair      min_x (F_1(x), ..., F_C(x))
    GroupBounds    min_x F(x) + ridge/2 |x|^2    with    F_c(x) <= bound for each c

Client i's mean h_ic over its n_ic examples of class c has the weight n_ic, since a mean of the clients' means would not be F_c.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.data import Batch, Batches, cross_entropy, losses
from fedopt.metrics import TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, WORST_LOSS
from fedopt.problems.classes import Constrained, MultiObjective, Weighting
from fedopt.problems.function import oracle
from fedopt.problems.supervised import Supervised

WORST_GROUP = replace(WORST_LOSS, label="training loss of the worst group")


@dataclass(eq=False)
class GroupLosses(Supervised):
    """Base class of problems about the losses of groups. `Supervised` describes the arguments that are not listed here.

    Args:
        examples: Number of training examples to use, chosen at random. None: all.
        weighting: How clients count in the mean loss: by their numbers of examples (``samples``), or equally (``uniform``).
    """

    examples: PositiveInt | None
    weighting: Weighting

    bound = 0.0

    def __post_init__(self) -> None:
        data = self.world.load()
        self.set_up(data, self.subset(data, self.examples))
        labels, split = self.train.y.cpu().numpy(), self.splits["train"]
        counts = np.stack([np.bincount(labels[rows], minlength=self.classes) for rows in split])
        owners = np.repeat(np.arange(self.clients), split.sizes)
        factors = np.zeros(len(labels))
        factors[split.rows] = split.sizes[owners] / counts[owners, labels[split.rows]]
        self._factors, self._counts = self.world.tensor(factors), counts.sum(0)
        self.per_client = {"h_weights": self.world.tensor(counts)}
        self.metrics = (TEST_ACCURACY, TEST_LOSS, TRAIN_LOSS, WORST_GROUP)

    @oracle("classes")
    def h(self, x: Tensor, sample: Batches) -> Tensor:
        """Return the mean loss of the client's examples of each group, ``[C]``, minus ``bound``. It is unbiased in a minibatch.

        Args:
            x: Parameters of the network.
            sample: Batches by split.
        """
        batch = sample["train"]
        of_examples = losses(self.net(x, batch.x, *batch.keys), batch)
        weighted = batch.weight * self._factors.gather(0, batch.rows) * of_examples
        return weighted.new_zeros(self.classes).scatter_add(0, batch.y, weighted) - self.bound

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        """Return the value of each metric by name. ``worst_loss`` is the largest training loss of a group.

        Args:
            point: The parameters of the network, and further variables, which are not used.
        """
        net, rows = partial(self.net, point[0]), self.splits["train"].rows

        def of_groups(batch: Batch) -> tuple[Tensor, ...]:
            of_examples = losses(net(batch.x), batch)
            return tuple(of_examples * (batch.y == c) for c in range(self.classes))

        means = np.array(self.train.means(of_groups, rows, np.full(len(rows), 1.0)))
        worst = float(np.max(means / np.maximum(self._counts, 1)))
        return {"train_loss": self.client_loss("train", net), "worst_loss": worst, **self.test_metrics(net)}


@dataclass(eq=False)
class GroupFair(GroupLosses, MultiObjective):
    """Classification with the loss of each group as an objective."""


@dataclass(eq=False)
class GroupBounds(GroupLosses, Constrained):
    """Classification with an upper bound of the loss of each group.

    Args:
        ridge: Factor of the penalty ridge/2 |x|^2 in each f_i, without biases.
        bound: Upper bound of the loss of each group.
        largest_multiplier: Upper bound of the multipliers, for minimax methods.
    """

    ridge: PositiveFloat
    bound: PositiveFloat
    largest_multiplier: PositiveFloat

    def f(self, x: Tensor, sample: Batches) -> Tensor:
        batch = sample["train"]
        assert self.ridges is not None  # since ridge is positive
        return cross_entropy(self.net(x, batch.x, *batch.keys), batch) + 0.5 * self.ridges @ x**2
