"""Which of its examples a client uses in its local steps.

An exchange names its draws, as in `fed.exchange(f, x, S, local=Steps(5, B=32))`; a client asks for them by that name.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedopt.data import Ragged
from fedopt.decimals import exact
from fedopt.errors import UserError

Weighted = tuple[Tensor, Tensor]  # row indices of examples, or positions among a client's own, and their weights
Stretch = tuple[
    Weighted, np.ndarray
]  # some samples of a stack of clients, [clients, samples, B], and the examples of each
Splits = Mapping[str, Ragged]
# One number for all clients, [M], or as a function of some of them
Amount = float | np.ndarray | Callable[[np.ndarray], np.ndarray]
Pieces = list[np.ndarray]  # samples, as positions among a client's examples
Rngs = list[np.random.Generator]  # of some clients
# `choice` is faster for batches wider than WIDE or fewer than FEW a client, and draws otherwise among more than MANY
WIDE, MANY, FEW = 64, 10_000, 3
STRETCH = 2**20  # positions of a stack that are made in one go: bounds memory


@dataclass(frozen=True)
class Steps:
    """Samples for a number of local steps, each drawn independently of the others.

    Args:
        steps: The number of steps: one number for all clients, ``[M]``, or a function of an array of client indices.
            Fractions are rounded up.
        B: The number of examples of a sample from each split, drawn without replacement; a client that has fewer takes all.
            None: always the full local data, and all steps share one sample.
        samples: The number of samples that a step takes, as a list. None: one sample by itself.
        split: The only split to draw from. None: all of them.
        replace: Whether the B examples of a sample are drawn with replacement, which is fast if steps are many. Then all
            samples have B.
        fixed: Whether each sample is one of the batches into which a client's examples are cut once, B by B in their order.
            It is the batch of a uniformly random example, so the smaller last one comes less often. `Client.batch` says which
            one it is.

    Raises:
        UserError: B is less than 1.
    """

    steps: Amount = 1
    B: int | None = None
    samples: int | None = None
    split: str | None = None
    replace: bool = False
    fixed: bool = False

    def __post_init__(self) -> None:
        if self.B is not None and self.B < 1:
            raise UserError(f"B={self.B}: must be at least 1, or null for all of a client's examples")

    def steps_of(self, splits: Splits, clients: np.ndarray) -> np.ndarray:
        """Return the number of local steps of each of these clients, as whole numbers."""
        return np.ceil(exact(_of(self.steps, clients))).astype(np.int64)

    def full(self, sizes: np.ndarray) -> bool:
        """Tell whether every sample is all examples of its client. sizes: the clients' numbers of examples."""
        return self.B is None or (not self.replace and bool((sizes <= self.B).all()))

    def positions(self, rng: np.random.Generator, n: int, count: int, left: Pieces) -> Pieces | np.ndarray:
        """Return the next ``count`` samples, as positions among a client's n examples.

        rng: the client's generator. left: not used; see `Epochs.positions`.
        """
        if self.replace:
            return rng.integers(n, size=(count, self.B or n))
        if self.B is None or n <= self.B:
            return [np.arange(n)] * count
        if self.fixed:
            starts = rng.integers(n, size=count) // self.B * self.B
            return [np.arange(start, min(start + self.B, n)) for start in starts]
        return without_replacement([rng], [n], [count], self.B)[0]

    def of_clients(
        self, rngs: Rngs, sizes: list[int], counts: list[int], left: list[Pieces]
    ) -> Sequence[Pieces | np.ndarray]:
        """Return the next samples of several clients, as `positions` does for each."""
        if self.replace or self.fixed or self.B is None or min(sizes) <= self.B:
            return [*map(self.positions, rngs, sizes, counts, left)]
        return without_replacement(rngs, sizes, counts, self.B)


@dataclass(frozen=True)
class Epochs:
    """Samples from shuffled passes over a client's examples. The last sample of a pass has the examples that are left.

    Args:
        epochs: The number of passes: one number for all clients, ``[M]``, or a function of an array of client indices. A
            fraction of a pass is rounded up to whole samples.
        B: The number of examples of a sample from each split; a client that has fewer takes all. None: each pass is one
            sample of all examples.
        samples: As in `Steps`.
        split: As in `Steps`.
        over: The split whose size decides how many steps a pass has. None: ``split``, or the first split if that is None too.
    """

    epochs: Amount
    B: int | None = None
    samples: int | None = None
    split: str | None = None
    over: str | None = None

    def steps_of(self, splits: Splits, clients: np.ndarray) -> np.ndarray:
        """Return the number of local steps of each of these clients, as whole numbers.

        splits: the splits by name; the size of one of them gives the steps of a pass.
        """
        sizes = splits[self.over or self.split or next(iter(splits))].sizes[clients]
        steps = _of(self.epochs, clients) * (np.ones_like(sizes) if self.B is None else -(-sizes // self.B))
        return np.ceil(exact(steps)).astype(np.int64)

    def full(self, sizes: np.ndarray) -> bool:
        """Tell whether every sample is all examples of its client, and none is drawn. sizes: the numbers of examples."""
        return self.B is None

    def positions(self, rng: np.random.Generator, n: int, count: int, left: Pieces) -> Pieces:
        """Return the next ``count`` samples, as positions among a client's n examples.

        rng: the client's generator. left: the samples of a pass that are not used yet; changed in place.
        """
        while len(left) < count:
            order = rng.permutation(n)
            left += [order[start : start + (self.B or n)] for start in range(0, n, self.B or n)]
        drawn, left[:] = left[:count], left[count:]
        return drawn

    def of_clients(self, rngs: Rngs, sizes: list[int], counts: list[int], left: list[Pieces]) -> list[Pieces]:
        """Return the next samples of several clients, as `positions` does for each."""
        return list(map(self.positions, rngs, sizes, counts, left))


def without_replacement(rngs: Rngs, sizes: list[int], counts: list[int], B: int) -> list[np.ndarray]:
    """Draw B of the numbers below n, ``count`` times for each client, [count, B]. Each generator moves on as by its ``choice``.

    sizes, counts: n and count of each client; B < n.
    """
    if B > WIDE or max(sizes) > MANY or sum(counts) < FEW * len(counts):
        drawn = [
            [rng.choice(n, B, replace=False, shuffle=False) for _ in range(count)]
            for rng, n, count in zip(rngs, sizes, counts, strict=True)
        ]
        return [np.array(of_client, np.int64).reshape(-1, B) for of_client in drawn]
    # Floyd's algorithm, which `choice` uses too, for all at once: who is drawn again is replaced by the largest that could be
    largest = np.array(sizes)[:, None] - B + np.arange(B)
    each = zip(rngs, largest, counts, strict=True)
    together = np.concatenate([rng.integers(own + 1, size=(count, B)) for rng, own, count in each])
    largest = largest.repeat(counts, axis=0)
    for i in range(1, B):
        again = (together[:, :i] == together[:, i : i + 1]).any(axis=1)
        together[again, i] = largest[again, i]
    return np.split(together, np.cumsum(counts)[:-1])


def Full(split: str | None = None) -> Steps:
    """Return draws of one sample that is the full local data, or all of one split."""
    return Steps(split=split)


Draws = Mapping[str, Steps | Epochs]  # of an exchange, by name; they are made in this order


@dataclass(eq=False)
class Drawn:
    """The draws of one name for a stack of clients. They are made a stretch of samples at a time, which bounds memory.

    splits: the splits that are drawn from.
    sizes: for each of these the number of examples of each client, [clients].
    steps: the number of local steps of each client, [clients].
    samples: the number of samples a step, as in `Steps`.
    length: the number of samples in a stretch.
    positions: for each split the positions of each sample in the first stretch and their weights, [clients, length, B]. Empty
        if every sample takes all rows.
    lengths: for each split the number of examples of each sample in the stretch at hand, [clients, length].
    later: if there are more stretches, for each split the function that makes the positions of all of them, and its
        generators at the start.
    """

    splits: tuple[str, ...]
    sizes: list[np.ndarray]
    steps: np.ndarray
    samples: int | None
    length: int
    positions: dict[str, Weighted] = field(default_factory=dict)
    lengths: dict[str, np.ndarray] = field(default_factory=dict)
    later: dict[str, tuple[Callable[[Rngs], Iterator[Stretch]], Rngs]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._number, self._at_hand, self._due = 0, self.positions, dict[str, Iterator[Stretch]]()

    def examples(self, k: int) -> np.ndarray:
        """Return the number of examples in the k-th sample of each client, [clients]: the mean over the splits drawn from.

        The sample must be in the stretch that was asked for last.
        """
        of_splits = [lengths[:, k % self.length] for lengths in self.lengths.values()] or self.sizes
        # Whole numbers of each client, so that the engine makes no difference
        return np.rint(np.mean(of_splits or [0 * self.steps], axis=0)).astype(np.int64)

    def stretch(self, k: int) -> tuple[int, dict[str, Weighted]]:
        """Return the index of the first sample in the stretch that holds sample k, and the positions of that stretch."""
        number = k // self.length
        if not self._due or number < self._number:
            self._due = {split: stretches(deepcopy(rngs)) for split, (stretches, rngs) in self.later.items()}
            self._number = -1
        while self._number < number:
            at_hand = {split: next(stretches) for split, stretches in self._due.items()}
            self._at_hand = {split: positions for split, (positions, _) in at_hand.items()}
            self.lengths = {split: lengths for split, (_, lengths) in at_hand.items()}
            self._number += 1
        return number * self.length, self._at_hand


def draw(
    draws: Draws, splits: Splits, clients: np.ndarray, rng_of: Callable[[int], np.random.Generator], like: Tensor
) -> tuple[dict[str, Weighted], dict[str, Drawn]]:
    """Draw the samples of an exchange for each client. Every client has its own generator.

    Returns (whole, drawn). whole: for each split that is drawn from, all rows of each client and their weights, [clients, n],
    padded with weight 0. drawn: the draws by name.

    draws: the wanted draws by name. splits: who has which examples. clients: the indices of the clients.
    rng_of: client index -> generator. like: a tensor with the device and dtype that the results get.
    """
    drawn, random = {}, set()
    for name, wanted in draws.items():
        drawn_from = tuple(split for split in splits if wanted.split in (None, split))
        sizes = [splits[split].sizes[clients] for split in drawn_from]
        widest = max((_width(wanted, of_split.max()) for of_split in sizes), default=1)
        length = max(STRETCH // (len(clients) * widest), 1)
        drawn[name] = Drawn(drawn_from, sizes, wanted.steps_of(splits, clients), wanted.samples, length)
        if not all(map(wanted.full, sizes)):
            random.add(name)
    rngs, whole = [rng_of(i) for i in clients.tolist() if random], {}
    before: Iterator[Stretch] = iter(())
    for split, ragged in splits.items():
        if not any(split in of_name.splits for of_name in drawn.values()):
            continue
        sizes = ragged.sizes[clients]
        whole[split] = _padded(np.concatenate([ragged[i] for i in clients.tolist()]), sizes, sizes.max(), like)
        for name, wanted in draws.items():
            of_name = drawn[name]
            if split in of_name.splits and name in random:
                deque(before, maxlen=0)  # draws of a name begin where those of the last one end
                counts = of_name.steps * (wanted.samples or 1)
                stretches = partial(_stretches, wanted, sizes, counts, of_name.length, like)
                if counts.max() > of_name.length:
                    of_name.later[split] = stretches, deepcopy(rngs)
                before = stretches(rngs)
                of_name.positions[split], of_name.lengths[split] = next(before)
    return whole, drawn


def _stretches(
    wanted: Steps | Epochs, sizes: np.ndarray, counts: np.ndarray, length: int, like: Tensor, rngs: Rngs
) -> Iterator[Stretch]:
    """Yield the positions of the clients' samples and their weights, `length` samples at a time.

    sizes, counts, rngs: each client's number of examples, number of samples, and generator.
    """
    width, left = _width(wanted, sizes[counts > 0].max(initial=1)), [Pieces() for _ in rngs]
    for first in range(0, max(counts.max(), 1), length):
        due = np.clip(counts - first, 0, length).tolist()
        yield _stacked(wanted.of_clients(rngs, sizes.tolist(), due, left), width, like)


def _stacked(lists: Sequence[Pieces | np.ndarray], width: int, like: Tensor) -> Stretch:
    """Return the samples of clients as one array [clients, samples, width], and their weights, padded as `_padded` says.

    Also return the number of examples of each sample, [clients, samples].
    """
    sizes, numbers = np.zeros((len(lists), max(map(len, lists))), dtype=np.int64), [np.zeros(0, dtype=np.int64)]
    for c, of_client in enumerate(lists):
        if isinstance(of_client, np.ndarray):
            sizes[c, : len(of_client)] = width
            numbers.append(of_client.ravel())
        else:
            sizes[c, : len(of_client)] = [*map(len, of_client)]
            numbers += of_client
    return _padded(np.concatenate(numbers), sizes, width, like), sizes


def _padded(numbers: np.ndarray, sizes: np.ndarray, width: int, like: Tensor) -> Weighted:
    """Return index lists of unequal lengths as one array [..., width], and their weights.

    Weights are equal within a list and 0 for padding. numbers: all lists, one after another. sizes: [...], their lengths.
    """
    sizes = sizes[..., None]
    used = np.arange(width) < sizes
    index = np.zeros(used.shape, dtype=np.int64)
    index[used] = numbers
    return torch.from_numpy(index).to(like.device), torch.from_numpy(used / np.maximum(sizes, 1)).to(like)


def _width(wanted: Steps | Epochs, n: int) -> int:
    """Return the largest number of examples that a sample of a client with n examples has."""
    B = wanted.B or n
    return B if isinstance(wanted, Steps) and wanted.replace else min(B, n)


def _of(amount: Amount, clients: np.ndarray) -> np.ndarray:
    """Return an amount for each of these clients: one number stands for all, an array is indexed, a function is called."""
    if callable(amount):
        return amount(clients)
    return np.full(len(clients), amount) if np.ndim(amount) == 0 else np.asarray(amount)[clients]
