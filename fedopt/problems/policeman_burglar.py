"""The matrix game of a policeman and a burglar [Nemirovski 2013; ProxSkip-VIP, Zhang et al. 2024].

The problem is::

    min over p in the simplex, max over y in the simplex of   p'A y
    A_kj = w_j (1 - e^{-theta |j - k|})

The burglar is at house j, of wealth w_j = |N(0, 1)|, with probability y_j. The policeman is at house k with probability
p_k, and then catches the burglar with probability e^{-theta |j - k|}. An example is a report of the wealth of all
houses.

We read the matrix in the public code (ProxSkipVIP), which projects both players onto simplices. That w_j belongs to the
burglar's house is unverified (reconstructed without the text of Nemirovski's notes). Chosen here: p = softmax(x) with
unconstrained x, because problems can have a constraint set for y but not for x. The game and its duality gap remain the
same. The gap is 0 at solutions and nowhere else::

    (largest entry of A'p) - (smallest entry of A y)
"""

from dataclasses import dataclass

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from fedopt.metrics import Metric
from fedopt.networks import number
from fedopt.problems.classes import Minimax, Rows
from fedopt.problems.projections import simplex
from fedopt.randomness import Part

DUALITY_GAP = Metric("duality_gap", "duality gap", scale="log", bounds=True)


@dataclass(eq=False)
class PolicemanBurglar(Minimax):
    """A matrix game between a policeman and a burglar.

    The variable x contains the logits of the policeman's probabilities, and y the burglar's probabilities, ``[houses]``
    each. At the start, all houses are equally likely for the policeman, and the burglar is at the first house.

    Args:
        houses: Number of houses.
        examples: Number of reports of the wealth of all houses, over all clients.
        theta: The policeman catches the burglar with probability e^(-theta distance); with a larger theta, he must be
            nearer.
    """

    houses: PositiveInt
    examples: PositiveInt
    theta: PositiveFloat

    metrics = (DUALITY_GAP,)

    def __post_init__(self) -> None:
        world, house = self.world, np.arange(self.houses)
        self.splits = world.split(self.examples)
        wealth = np.abs(world.rng(Part.DATA).standard_normal((self.examples, self.houses)))
        self._wealth = world.tensor(wealth)
        self._escapes = world.tensor(1 - np.exp(-self.theta * np.abs(house[:, None] - house)))  # [houses, houses]

    def start(self) -> tuple[Tensor, ...]:
        x = torch.zeros_like(self._wealth[0])
        return x, (torch.arange(self.houses, device=x.device) == 0).to(x)

    def sample(self, client: int | Tensor, rows: Rows) -> Tensor:
        """Return the weighted mean of the reported wealth of each house, ``[houses]``.

        Args:
            client: Index of the client, which is not used.
            rows: For the split ``train``, the indices of the reports, ``[B]``, and their weights, ``[B]``.
        """
        index, weight = rows["train"]
        return weight @ self._wealth[index]

    def f(self, x: Tensor, y: Tensor, sample: Tensor) -> Tensor:
        return torch.softmax(x, 0) @ (self._escapes @ (sample * y))

    def project(self, y: Tensor) -> Tensor:
        return simplex(y)

    def evaluate(self, *point: Tensor) -> dict[str, float]:
        x, y = point[:2]
        wealth = self.sample(0, {"train": self.pooled()})
        most = (wealth * (self._escapes @ torch.softmax(x, 0))).max()
        return {"duality_gap": number(most - (self._escapes @ (wealth * y)).min())}
