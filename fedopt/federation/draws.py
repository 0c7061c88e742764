"""The examples that a client uses in each local step.

An exchange names its draws, as in `fed.exchange(f, x, S, local=Steps(5, B=32))`; a client asks for draws by their name.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedopt.data import Ragged
from fedopt.decimals import exact
from fedopt.errors import UserError

Weighted = tuple[Tensor, Tensor]  # row indices of examples, or positions among a client's own, and their weights
Stretch = tuple[Weighted, np.ndarray]  # samples of a stack, [clients, samples, B], and the number of examples of each
Splits = Mapping[str, Ragged]
# For all clients, [M], or as a function of some clients
Amount = float | np.ndarray | Callable[[np.ndarray], np.ndarray]
Samples = np.ndarray | list[np.ndarray]  # of a client, as positions among its examples
Rngs = list[np.random.Generator]  # of some clients
# `_by_choice` draws if B > WIDE, or if clients take fewer than FEW samples on average, since it is faster then; and if a client
# has n > MANY examples, from which `Generator.choice` may draw by another algorithm than Floyd's
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
        samples: The number of samples that a step takes, as a list. None: one sample, not in a list.
        split: The only split to draw from. None: all splits.
        replace: Whether the B examples of a sample are drawn with replacement, which is fast if steps are many. Then all
            samples have B.
        fixed: Whether each sample is one of the batches into which a client's examples are cut once, B by B in their order.
            It is the batch of a uniformly random example, so the smaller last batch comes less often. `Client.batch` says which
            batch it is.

    Raises:
        UserError: B is less than 1, or ``replace`` and ``fixed`` are both set.
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
        if self.replace and self.fixed:
            raise UserError("Steps(replace=True, fixed=True): a sample cannot be both; set one of them")

    def steps_of(self, splits: Splits, clients: np.ndarray) -> np.ndarray:
        """Return the number of local steps of each of ``clients``, as whole numbers."""
        return np.ceil(exact(_of(self.steps, clients))).astype(np.int64)

    def sampler(self, sizes: np.ndarray) -> "Sampler":
        """Return a sampler for clients with ``sizes`` examples, `full` if every sample is all examples of its client."""
        if self.B is None or (not self.replace and (sizes <= self.B).all()):
            return full
        if self.replace:
            return partial(with_replacement, self.B)
        return partial(fixed_batches if self.fixed else uniform, self.B)


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
        """Return the number of local steps of each of ``clients``, as whole numbers.

        splits: the splits by name; the size of one split gives the steps of a pass.
        """
        sizes = splits[self.over or self.split or next(iter(splits))].sizes[clients]
        steps = _of(self.epochs, clients) * (np.ones_like(sizes) if self.B is None else -(-sizes // self.B))
        return np.ceil(exact(steps)).astype(np.int64)

    def sampler(self, sizes: np.ndarray) -> "Sampler":
        """Return a new sampler for clients with ``sizes`` examples."""
        return full if self.B is None else Shuffled(self.B)


class Sampler(Protocol):
    """Draws the next samples of clients."""

    def __call__(self, rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[Samples]:
        """Return the samples of each client, as positions among its examples.

        Args:
            rngs: The generator of each client.
            sizes: The number of examples of each client.
            counts: The number of samples of each client.
        """


class Shuffled:
    """A `Sampler` of shuffled passes, in samples of B. It keeps the samples of each client's pass that are not used yet."""

    def __init__(self, B: int):
        self.B, self._left = B, list[list[np.ndarray]]()

    def __call__(self, rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[Samples]:
        """Return the next samples, as a `Sampler` does."""
        self._left, drawn = self._left or [[] for _ in rngs], list[Samples]()
        for left, rng, n, count in zip(self._left, rngs, sizes, counts, strict=True):
            while len(left) < count:
                order = rng.permutation(n)
                left += [order[start : start + self.B] for start in range(0, n, self.B)]
            drawn.append(left[:count])
            del left[:count]
        return drawn


def full(rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[Samples]:
    """Take all examples for each sample."""
    return [[np.arange(n)] * count for n, count in zip(sizes, counts, strict=True)]


def with_replacement(B: int, rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[Samples]:
    """Draw the examples of a sample independently of each other. B: the number of examples of a sample."""
    return [rng.integers(n, size=(count, B)) for rng, n, count in zip(rngs, sizes, counts, strict=True)]


def fixed_batches(B: int, rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[Samples]:
    """Draw from the batches into which each client's examples are cut: the batch of a uniformly random example."""
    drawn = list[Samples]()
    for rng, n, count in zip(rngs, sizes, counts, strict=True):
        starts = rng.integers(n, size=count) // B * B if n > B else [0] * count
        drawn.append([np.arange(start, min(start + B, n)) for start in starts])
    return drawn


def uniform(B: int, rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[Samples]:
    """Draw B different examples for each sample, or all of a client that has no more."""
    if min(sizes) > B:
        return _different(B, rngs, sizes, counts)
    drawn = list[Samples]()
    for rng, n, count in zip(rngs, sizes, counts, strict=True):
        drawn += (full if n <= B else partial(_different, B))([rng], [n], [count])
    return drawn


def _different(B: int, rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[np.ndarray]:
    """Draw as `uniform` does, where all clients have more than B examples.

    `_by_choice` and `_by_floyd` consume the same random numbers and return the same samples, so the result does not depend on
    which of the two draws (test_batches_are_those_of_choice).
    """
    by_choice = B > WIDE or max(sizes) > MANY or sum(counts) < FEW * len(counts)
    return (_by_choice if by_choice else _by_floyd)(B, rngs, sizes, counts)


def _by_choice(B: int, rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[np.ndarray]:
    each = zip(rngs, sizes, counts, strict=True)
    drawn = [[rng.choice(n, B, replace=False, shuffle=False) for _ in range(count)] for rng, n, count in each]
    return [np.array(of_client, np.int64).reshape(-1, B) for of_client in drawn]


def _by_floyd(B: int, rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[np.ndarray]:
    """Draw the samples of all clients together by Floyd's algorithm, which `Generator.choice` uses too.

    The i-th example of a sample, i = 0, 1, ..., is drawn among the first n - B + i + 1 examples. If it is in the sample already,
    the last of these examples, n - B + i, takes its place.
    """
    last = np.array(sizes)[:, None] - B + np.arange(B)  # [clients, B]
    of_clients = zip(rngs, last, counts, strict=True)
    together = np.concatenate([rng.integers(ends + 1, size=(count, B)) for rng, ends, count in of_clients])
    last = last.repeat(counts, axis=0)
    for i in range(1, B):
        again = (together[:, :i] == together[:, i : i + 1]).any(axis=1)
        together[again, i] = last[again, i]
    return np.split(together, np.cumsum(counts)[:-1])


def Full(split: str | None = None) -> Steps:
    """Return draws of one sample that is the full local data, or all of one split.

    Args:
        split: The name of the split. None: all local data.

    Example:
        >>> fedopt.Full("val") == fedopt.Steps(split="val")
        True
    """
    return Steps(split=split)


Draws = Mapping[str, Steps | Epochs]  # of an exchange, by name; `draw` makes them split by split, then name by name


@dataclass(eq=False)
class Drawn:
    """The draws of one name for one stack of clients; with `OneByOne` a stack has one client.

    Samples are made a stretch at a time, which bounds memory. The object keeps the last stretch that was asked for.

    Args:
        sizes: For each split that is drawn from the number of examples of each client, [clients].
        steps: The number of local steps of each client, [clients].
        samples: The number of samples a step, as in `Steps`.
        length: The number of samples in a stretch.
        positions: For each split the positions of each sample in the first stretch and their weights, [clients, length, B].
            Empty if every sample takes all rows.
        lengths: For each split the number of examples of each sample in the first stretch, [clients, length].
        later: If there are more stretches, for each split the function that makes the positions of all of them, and its
            generators as they were at the start.
    """

    sizes: dict[str, np.ndarray]
    steps: np.ndarray
    samples: int | None
    length: int
    positions: dict[str, Weighted] = field(default_factory=dict)
    lengths: dict[str, np.ndarray] = field(default_factory=dict)
    later: dict[str, tuple[Callable[[Rngs], Iterator[Stretch]], Rngs]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._number, self._at_hand = 0, (self.positions, self.lengths)  # the stretch that was asked for last
        # For each split the iterator over all stretches, which makes the one after `_number` next; empty until it is needed
        self._due = dict[str, Iterator[Stretch]]()

    @cached_property
    def rising_steps(self) -> list[int]:
        """The number of local steps of each client, in rising order."""
        return sorted(self.steps.tolist())

    def examples(self, k: int) -> np.ndarray:
        """Return the number of examples in the k-th sample of each client, [clients]: the mean over the splits drawn from."""
        first, _, lengths = self.stretch(k)
        of_splits = [of_split[:, k - first] for of_split in lengths.values()] or [*self.sizes.values()]
        # Whole numbers of each client, so that it makes no difference whether clients are vectorised or run one by one
        return np.rint(np.mean(of_splits or [0 * self.steps], axis=0)).astype(np.int64)

    def stretch(self, k: int) -> tuple[int, dict[str, Weighted], dict[str, np.ndarray]]:
        """Return the stretch that holds sample k: the index of its first sample, its positions and its lengths."""
        if not self.later:
            return 0, self.positions, self.lengths
        number = k // self.length
        if number < self._number or (number and not self._due):  # iterators only go forward: begin again
            self._due = {split: stretches(deepcopy(rngs)) for split, (stretches, rngs) in self.later.items()}
            self._number = -1
        while self._number < number:
            at_hand = {split: next(stretches) for split, stretches in self._due.items()}
            positions = {split: positions for split, (positions, _) in at_hand.items()}
            self._at_hand = positions, {split: lengths for split, (_, lengths) in at_hand.items()}
            self._number += 1
        return number * self.length, *self._at_hand


def draw(
    draws: Draws, splits: Splits, clients: np.ndarray, rng_of: Callable[[int], np.random.Generator], like: Tensor
) -> tuple[dict[str, Weighted], dict[str, Drawn]]:
    """Draw the samples of an exchange for each client of a stack. Every client has its own generator.

    Returns (whole, drawn). whole: for each split that is drawn from, all rows of each client and their weights, [clients, n],
    padded with weight 0. drawn: the draws by name.

    Args:
        draws: The wanted draws by name.
        splits: The examples of each client, by split.
        clients: The indices of the clients.
        rng_of: Client index -> generator.
        like: A tensor with the device and dtype that the results get.
    """
    drawn, random_draws = dict[str, Drawn](), list[tuple[Steps | Epochs, Drawn]]()
    for name, wanted in draws.items():
        sizes = {split: ragged.sizes[clients] for split, ragged in splits.items() if wanted.split in (None, split)}
        widest = max((_width(wanted, of_split.max()) for of_split in sizes.values()), default=1)
        length = max(STRETCH // (len(clients) * widest), 1)
        drawn[name] = Drawn(sizes, wanted.steps_of(splits, clients), wanted.samples, length)
        if any(wanted.sampler(of_split) is not full for of_split in sizes.values()):
            random_draws.append((wanted, drawn[name]))
    whole = dict[str, Weighted]()
    for split, ragged in splits.items():
        if any(split in of_name.sizes for of_name in drawn.values()):
            n = ragged.sizes[clients]
            whole[split] = _padded(np.concatenate([ragged[i] for i in clients.tolist()]), n, n.max(), like)
    if random_draws:
        _fill(random_draws, splits, [rng_of(i) for i in clients.tolist()], like)
    return whole, drawn


def _fill(random_draws: list[tuple[Steps | Epochs, Drawn]], splits: Iterable[str], rngs: Rngs, like: Tensor) -> None:
    """Fill in the positions of draws. Generators advance split by split, then name by name, by all samples, used or not.

    random_draws: the wanted draws of each name, and their `Drawn`. splits: the names of all splits. rngs: each client's generator.
    """
    unfinished: Iterator[Stretch] = iter(())
    for split in splits:
        for wanted, of_name in random_draws:
            if split in of_name.sizes:
                deque(unfinished, maxlen=0)  # moves the generators on to the end of the draws before
                counts = of_name.steps * (wanted.samples or 1)
                stretches = partial(_stretches, wanted, of_name.sizes[split], counts, of_name.length, like)
                if counts.max() > of_name.length:
                    of_name.later[split] = stretches, deepcopy(rngs)
                unfinished = stretches(rngs)
                of_name.positions[split], of_name.lengths[split] = next(unfinished)


def _stretches(
    wanted: Steps | Epochs, sizes: np.ndarray, counts: np.ndarray, length: int, like: Tensor, rngs: Rngs
) -> Iterator[Stretch]:
    """Yield the positions of the clients' samples and their weights, `length` samples at a time.

    sizes, counts, rngs: each client's number of examples, number of samples, and generator.
    """
    width, sampler = _width(wanted, sizes[counts > 0].max(initial=1)), wanted.sampler(sizes)
    for first in range(0, max(counts.max(), 1), length):
        due = np.clip(counts - first, 0, length).tolist()
        yield _stacked(sampler(rngs, sizes.tolist(), due), width, like)


def _stacked(lists: Sequence[Samples], width: int, like: Tensor) -> Stretch:
    """Return the samples of clients as one array [clients, samples, width], and their weights, padded as `_padded` says.

    Also return the number of examples of each sample, [clients, samples].

    lists: the samples of each client; an array of samples has exactly ``width`` columns.
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
    """Return an amount for each of ``clients``: a number holds for all clients, an array is indexed, a function is called."""
    if callable(amount):
        return amount(clients)
    return np.full(len(clients), amount) if np.ndim(amount) == 0 else np.asarray(amount)[clients]
