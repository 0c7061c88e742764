"""Which of its examples a client uses. An exchange names its draws, as in `fed.exchange(f, x, S, local=Steps(5, B=32))`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedopt.data.ragged import Ragged
from fedopt.errors import UserError

Weighted = tuple[Tensor, Tensor]  # numbers of examples, or positions among a client's own, and their weights
Splits = Mapping[str, Ragged]
# One number for all clients, [M], or as a function of some of them
Amount = float | np.ndarray | Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Steps:
    """Samples for a number of local steps, each drawn independently of the others.

    steps: one number for all clients, [M], or a function that gives those of some clients. B: examples of a sample from each
        split, without replacement, all that a client has where it has fewer; None: always the full local data, and all steps
        share one sample.
    samples: how many samples a step takes, as a list; None: one sample by itself.
    split: the only split to draw from; None for all of them.
    replace: with replacement, every example for itself: fast where steps are many.
    """

    steps: Amount = 1
    B: int | None = None
    samples: int | None = None
    split: str | None = None
    replace: bool = False

    def __post_init__(self) -> None:
        if self.B is not None and self.B < 1:
            raise UserError(f"B={self.B}: a sample has 1 example or more, or all that a client has where B is null")

    def steps_of(self, splits: Splits, clients: np.ndarray) -> np.ndarray:
        """The number of local steps of each of these clients."""
        return _of(self.steps, clients)

    def positions(self, rng: np.random.Generator, n: int, count: int) -> list[np.ndarray] | np.ndarray:
        """`count` samples, as positions among a client's n examples."""
        if self.replace:
            return rng.integers(n, size=(count, self.B or n))
        if self.B is None or n <= self.B:
            return [np.arange(n)] * count
        return [rng.choice(n, self.B, replace=False, shuffle=False) for _ in range(count)]


@dataclass(frozen=True)
class Epochs:
    """Samples from shuffled passes over a client's examples; the last sample of a pass has what is left of it.

    epochs: passes, as `Steps.steps`, or parts of one, rounded up to a sample. B, samples, split: as of `Steps`.
    over: the split that decides how many steps a pass has; None for the first that is drawn from.
    """

    epochs: Amount
    B: int | None = None
    samples: int | None = None
    split: str | None = None
    over: str | None = None

    def steps_of(self, splits: Splits, clients: np.ndarray) -> np.ndarray:
        """The number of local steps of each of these clients."""
        sizes = splits[self.over or self.split or next(iter(splits))].sizes[clients]
        steps = _of(self.epochs, clients) * (np.ones_like(sizes) if self.B is None else -(-sizes // self.B))
        return np.ceil(steps).astype(np.int64)

    def positions(self, rng: np.random.Generator, n: int, count: int) -> list[np.ndarray]:
        """`count` samples, as positions among a client's n examples."""
        drawn: list[np.ndarray] = []
        while len(drawn) < count:
            order = rng.permutation(n)
            drawn += [order[start : start + (self.B or n)] for start in range(0, n, self.B or n)]
        return drawn[:count]


def Full(split: str | None = None) -> Steps:
    """One sample that is all of a client's data, or all of one split."""
    return Steps(split=split)


Draws = Mapping[str, Steps | Epochs]  # of an exchange, by name; they are made in this order


class Drawn(NamedTuple):
    """What was drawn under one name for a stack of clients.

    splits: those that are drawn from. positions: for each of them, which of a client's rows each sample takes and with what
        weights, [clients, samples, B]; empty where every sample takes all.
    steps: the number of local steps of each client, [clients]; samples: as of `Steps`.
    """

    splits: tuple[str, ...]
    positions: dict[str, Weighted]
    steps: np.ndarray
    samples: int | None

    def active(self) -> np.ndarray:
        """Whether a client takes a step, [clients, the most steps of any]."""
        return np.arange(self.steps.max()) < self.steps[:, None]


def draw(
    draws: Draws, splits: Splits, clients: np.ndarray, rng_of: Callable[[int], np.random.Generator], like: Tensor
) -> tuple[dict[str, Weighted], dict[str, Drawn]]:
    """For each of `clients`, each from a generator of its own: for each split all rows of a client and their weights,
    [clients, n], padded with weight zero; and what was drawn, by name. Tensors have the device and dtype of `like`."""
    drawn = {}
    for name, wanted in draws.items():
        drawn_from = tuple(split for split in splits if wanted.split in (None, split))
        drawn[name] = Drawn(drawn_from, {}, wanted.steps_of(splits, clients), wanted.samples)
    rngs = [rng_of(int(i)) for i in clients]
    whole = {}
    for split, ragged in splits.items():
        if not any(split in of_name.splits for of_name in drawn.values()):
            continue
        whole[split] = _padded([[ragged[int(i)]] for i in clients], like, 0)
        for name, wanted in draws.items():
            if split in drawn[name].splits and wanted.B is not None:
                counts = drawn[name].steps * (wanted.samples or 1)
                of_clients = zip(rngs, ragged.sizes[clients], counts, strict=True)
                positions = [wanted.positions(rng, int(n), int(count)) for rng, n, count in of_clients]
                drawn[name].positions[split] = _padded(positions, like)
    return whole, drawn


def _padded(lists: Sequence[list[np.ndarray] | np.ndarray], like: Tensor, step: int | slice = slice(None)) -> Weighted:
    """Numbers [clients, samples, B] from lists of unequal lengths, and their weights: equal in a sample, zero for padding."""
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


def _of(amount: Amount, clients: np.ndarray) -> np.ndarray:
    """What each of these clients has of it."""
    if callable(amount):
        return amount(clients)
    return np.full(len(clients), amount) if np.ndim(amount) == 0 else np.asarray(amount)[clients]


def _width(of_client: list[np.ndarray] | np.ndarray) -> int:
    """The most numbers of a sample, 1 where there are none."""
    return of_client.shape[1] if isinstance(of_client, np.ndarray) else max(map(len, of_client), default=1)
