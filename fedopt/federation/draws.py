"""Which of its examples a client uses in its local steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedopt.data.ragged import Ragged
from fedopt.randomness import Purpose, keyed_rng


@dataclass(frozen=True)
class Minibatches:
    """The samples of `steps` local steps, or of as many steps as `epochs` passes take.

    size: examples a step from each split, without replacement, all a client has where it has fewer; None: always the full
        local data, and the steps then share one sample.
    steps: independent draws; epochs: shuffled passes instead, the last batch of a pass being what is left of it; each one
        number for all clients, or [M].
    extra: independent draws before those.
    split: the only split to draw from; None for all. passes: the split that is passed over; None for the first drawn.
    replace: with replacement, every example of every independent draw for itself: fast where steps are many.
    """

    size: int | None
    steps: int | np.ndarray = 1
    epochs: int | np.ndarray | None = None
    extra: int = 0
    split: str | None = None
    passes: str | None = None
    replace: bool = False

    def of(self, splits: Mapping[str, Ragged]) -> Mapping[str, Ragged]:
        """The splits that are drawn from."""
        return splits if self.split is None else {self.split: splits[self.split]}

    def sizes(self, splits: Mapping[str, Ragged]) -> np.ndarray:
        """The number of examples of each client that an epoch passes over, [M]."""
        return (splits[self.passes] if self.passes else next(iter(self.of(splits).values()))).sizes

    def steps_of(self, splits: Mapping[str, Ragged], clients: np.ndarray) -> np.ndarray:
        """The number of steps of each of `clients`."""
        sizes = self.sizes(splits)
        per_epoch = 1 if self.size is None else -(-sizes // self.size)
        steps = self.steps if self.epochs is None else self.epochs * per_epoch
        return (self.extra + steps * np.ones(len(sizes), dtype=np.int64))[clients]

    def positions(self, rng: np.random.Generator, n: int, steps: int) -> list[np.ndarray] | np.ndarray:
        """For each of `steps` steps, the positions among a client's n examples."""
        if self.replace and self.epochs is None:
            return rng.integers(n, size=(steps, self.size or n))
        independent = steps if self.epochs is None else self.extra
        drawn = [self._some(rng, n) for _ in range(independent)]
        while len(drawn) < steps:
            order = rng.permutation(n)
            drawn += [order[start : start + (self.size or n)] for start in range(0, n, self.size or n)]
        return drawn[:steps]

    def _some(self, rng: np.random.Generator, n: int) -> np.ndarray:
        if self.size is None or n <= self.size:
            return np.arange(n)
        return rng.choice(n, self.size, replace=False, shuffle=False)


class Drawn(NamedTuple):
    """The draws of a stack of clients.

    whole: for each split, all rows of a client and their weights, [clients, n], padded with weight zero.
    positions: for each split, which of these a step takes and with what weights, [clients, steps, B]; empty where every step
        takes all.
    steps: local steps of each client, [clients].
    """

    whole: dict[str, tuple[Tensor, Tensor]]
    positions: dict[str, tuple[Tensor, Tensor]]
    steps: np.ndarray


class Key(NamedTuple):
    """Where in a run a draw is made."""

    seed: int
    round: int
    exchange: int


def draw(minibatches: Minibatches, splits: Mapping[str, Ragged], clients: np.ndarray, key: Key, like: Tensor) -> Drawn:
    """Draw for each of `clients`, each from its own generator; tensors on the device and of the dtype of `like`."""
    drawn_from = minibatches.of(splits)
    steps = minibatches.steps_of(splits, clients)
    rngs = [keyed_rng(key.seed, Purpose.SAMPLES, key.round, key.exchange, int(i)) for i in clients]
    whole, positions = {}, {}
    for name, split in drawn_from.items():
        whole[name] = _padded([[split[int(i)]] for i in clients], like, 0)
        if minibatches.size is not None:
            of_clients = zip(rngs, split.sizes[clients], steps, strict=True)
            positions[name] = _padded([minibatches.positions(rng, int(n), int(k)) for rng, n, k in of_clients], like)
    return Drawn(whole, positions, steps)


def _padded(
    lists: Sequence[list[np.ndarray] | np.ndarray], like: Tensor, step: int | slice = slice(None)
) -> tuple[Tensor, Tensor]:
    """Numbers [clients, steps, B] from lists of unequal lengths, and their weights: equal in a step, zero for padding."""
    width = max((_width(of_client) for of_client in lists), default=1)
    shape = (len(lists), max(len(of_client) for of_client in lists), width)
    index, weight = np.zeros(shape, dtype=np.int64), np.zeros(shape)
    for c, of_client in enumerate(lists):
        if isinstance(of_client, np.ndarray):
            index[c, : len(of_client)], weight[c, : len(of_client)] = of_client, 1 / width
            continue
        for k, numbers in enumerate(of_client):
            index[c, k, : len(numbers)] = numbers
            weight[c, k, : len(numbers)] = 1 / len(numbers)
    return torch.from_numpy(index[:, step]).to(like.device), torch.from_numpy(weight[:, step]).to(like)


def _width(of_client: list[np.ndarray] | np.ndarray) -> int:
    """The most numbers of a step, 1 where there are none."""
    return of_client.shape[1] if isinstance(of_client, np.ndarray) else max(map(len, of_client), default=1)
