"""Which of its examples a client uses in its local steps."""

from collections.abc import Mapping
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
    steps: independent draws; epochs: shuffled passes over the training split instead, the last batch of a pass being what
        is left of it.
    """

    size: int | None
    steps: int = 1
    epochs: int | None = None

    @property
    def full(self) -> bool:
        return self.size is None

    def steps_of(self, sizes: np.ndarray) -> np.ndarray:
        """The number of steps of each client, from its number of training examples."""
        if self.epochs is None:
            return np.full(len(sizes), self.steps)
        per_epoch = 1 if self.size is None else -(-sizes // self.size)
        return self.epochs * per_epoch * np.ones(len(sizes), dtype=np.int64)

    def positions(self, rng: np.random.Generator, n: int) -> list[np.ndarray]:
        """For each step, the positions among a client's n examples."""
        if self.size is None:
            return [np.arange(n)]
        if self.epochs is None:
            if n <= self.size:
                return [np.arange(n)] * self.steps
            return [rng.choice(n, self.size, replace=False, shuffle=False) for _ in range(self.steps)]
        passes = [rng.permutation(n) for _ in range(self.epochs)]
        return [order[start : start + self.size] for order in passes for start in range(0, n, self.size)]


class Drawn(NamedTuple):
    """The draws of a stack of clients. rows, weights: for each split, [clients, steps, B]; one step where all are equal.

    steps: local steps of each client, [clients].
    """

    rows: dict[str, tuple[Tensor, Tensor]]
    steps: np.ndarray


class Key(NamedTuple):
    """Where in a run a draw is made."""

    seed: int
    round: int
    exchange: int


def draw(minibatches: Minibatches, splits: Mapping[str, Ragged], clients: np.ndarray, key: Key, like: Tensor) -> Drawn:
    """Draw for each of `clients`, each from its own generator; tensors on the device and of the dtype of `like`."""
    steps = minibatches.steps_of(splits["train"].sizes[clients])
    rngs = [keyed_rng(key.seed, Purpose.SAMPLES, key.round, key.exchange, int(i)) for i in clients]
    rows = {}
    for name, split in splits.items():
        drawn = [minibatches.positions(rng, int(split.sizes[i])) for rng, i in zip(rngs, clients, strict=True)]
        width = max(len(positions) for of_client in drawn for positions in of_client)
        shape = (len(clients), max(len(of_client) for of_client in drawn), width)
        index, weight = np.zeros(shape, dtype=np.int64), np.zeros(shape)
        for c, (i, of_client) in enumerate(zip(clients, drawn, strict=True)):
            mine = split[int(i)]
            for k, positions in enumerate(of_client):
                index[c, k, : len(positions)] = mine[positions]
                weight[c, k, : len(positions)] = 1 / len(positions)
        rows[name] = (torch.from_numpy(index).to(like.device), torch.from_numpy(weight).to(like))
    return Drawn(rows, steps)
