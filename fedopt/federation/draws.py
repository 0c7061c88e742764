"""Draw the examples that a client uses in each local step.

An exchange names its draws, as in `fed.exchange(f, x, S, local=Steps(5, B=32))`. A client gets its samples by this name.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from fedopt.data import Ragged
from fedopt.decimals import exact
from fedopt.errors import UserError

Weighted = tuple[Tensor, Tensor]  # row indices of examples, or positions among a client's examples, and their weights
Stretch = tuple[Weighted, np.ndarray]  # samples of a stack, [clients, samples, B], and the number of examples of each
Splits = Mapping[str, Ragged]
# For all clients, [M], or as a function of some clients
Amount = float | np.ndarray | Callable[[np.ndarray], np.ndarray]
Samples = np.ndarray | list[np.ndarray]  # of a client, as positions among its examples
Rngs = list[np.random.Generator]  # of some clients
# A function that draws the next samples of several clients, as positions among the examples of each client. Its arguments are
# the random generators of the clients, their numbers of examples, and the number of samples to draw for each client
Sampler = Callable[[Rngs, list[int], list[int]], Sequence[Samples]]
# `_by_choice` draws if B > WIDE, or if clients take fewer than FEW samples on average, since it is faster then; and if a client
# has n > MANY examples, from which `Generator.choice` may use an algorithm other than Floyd's
WIDE, MANY, FEW = 64, 10_000, 3
STRETCH = 2**20  # positions that are drawn at a time for a stack, which bounds memory


@dataclass(frozen=True)
class Steps:
    """Samples for a number of local steps, each drawn independently of the others.

    Args:
        steps: The number of steps: one number for all clients, an array ``[M]`` with one number per client, or a function of an
            array of client indices that returns their numbers. Fractions are rounded up.
        B: The batch size: the number of examples that a sample takes from each split, drawn without replacement. A client with
            fewer examples uses all of them. None: all steps share one sample, which contains all examples of the client.
        samples: The number of samples per step, which the client gets as a list. None: one sample, which is not in a list.
        split: The name of the split to draw from. None: all splits.
        replace: Whether the B examples of a sample are drawn with replacement, which is faster for many steps. All samples then
            have B examples.
        fixed: Whether the examples of a client are cut once, in their order, into fixed batches of B, and each sample is one of
            these batches. The batch that contains a uniformly random example is chosen, so a smaller last batch is chosen less
            often. `Client.batch` returns the index of the batch.

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
        _check_batch_size(self.B)
        if self.replace and self.fixed:
            raise UserError("Steps(replace=True, fixed=True): these exclude each other; set at most one of them")

    def steps_of(self, splits: Splits, clients: np.ndarray) -> np.ndarray:
        """Return the number of local steps of each client, ``[clients]``, as whole numbers.

        Args:
            splits: The examples of all clients, by split.
            clients: The indices of the clients.
        """
        return np.ceil(exact(_of(self.steps, clients))).astype(np.int64)

    def sampler(self, sizes: np.ndarray) -> Sampler:
        """Return the sampler. It is `full` if every sample contains all examples of its client.

        Args:
            sizes: The number of examples of each client, ``[clients]``.
        """
        if self.B is None or (not self.replace and (sizes <= self.B).all()):
            return full
        if self.replace:
            return partial(with_replacement, self.B)
        return partial(fixed_batches if self.fixed else uniform, self.B)


@dataclass(frozen=True)
class Epochs:
    """Samples for a number of local epochs: shuffled passes over a client's examples.

    The last sample of a pass contains the examples that remain, so it may be smaller.

    Args:
        epochs: The number of passes: one number for all clients, an array ``[M]`` with one number per client, or a function of
            an array of client indices that returns their numbers. A fraction of a pass is rounded up to whole samples.
        B: The batch size: the number of examples that a sample takes from each split. A client with fewer examples uses all of
            them. None: each pass is one sample with all examples.
        samples: The number of samples per step, which the client gets as a list. None: one sample, which is not in a list.
        split: The name of the split to draw from. None: all splits.
        over: The name of the split whose size determines the number of steps per pass. None: ``split``, or the first split if
            ``split`` is None too.

    Raises:
        UserError: B is less than 1.
    """

    epochs: Amount
    B: int | None = None
    samples: int | None = None
    split: str | None = None
    over: str | None = None

    def __post_init__(self) -> None:
        _check_batch_size(self.B)

    def steps_of(self, splits: Splits, clients: np.ndarray) -> np.ndarray:
        """Return the number of local steps of each client, ``[clients]``, as whole numbers.

        Args:
            splits: The examples of all clients, by split. The size of one split determines the number of steps per pass.
            clients: The indices of the clients.
        """
        sizes = splits[self.over or self.split or next(iter(splits))].sizes[clients]
        steps = _of(self.epochs, clients) * (np.ones_like(sizes) if self.B is None else -(-sizes // self.B))
        return np.ceil(exact(steps)).astype(np.int64)

    def sampler(self, sizes: np.ndarray) -> Sampler:
        """Return a new sampler.

        Args:
            sizes: The number of examples of each client, ``[clients]``.
        """
        return full if self.B is None else Shuffled(self.B)


class Shuffled:
    """A `Sampler` of shuffled passes, cut into samples of B examples. It stores the unused samples of each client's pass."""

    def __init__(self, B: int):
        self.B, self._left = B, list[list[np.ndarray]]()

    def __call__(self, rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[Samples]:
        """Return the next samples of each client; see `Sampler`."""
        self._left, drawn = self._left or [[] for _ in rngs], list[Samples]()
        for left, rng, n, count in zip(self._left, rngs, sizes, counts, strict=True):
            while len(left) < count:
                order = rng.permutation(n)
                left += [order[start : start + self.B] for start in range(0, n, self.B)]
            drawn.append(left[:count])
            del left[:count]
        return drawn


def full(rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[Samples]:
    """Return samples that each contain all examples of their client. This function is a `Sampler`.

    Args:
        rngs: The random generator of each client.
        sizes: The number of examples of each client.
        counts: The number of samples to draw for each client.
    """
    return [[np.arange(n)] * count for n, count in zip(sizes, counts, strict=True)]


def with_replacement(B: int, rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[Samples]:
    """Draw the B examples of each sample with replacement. With B fixed, this function is a `Sampler`.

    Args:
        B: The batch size.
        rngs: The random generator of each client.
        sizes: The number of examples of each client.
        counts: The number of samples to draw for each client.
    """
    return [rng.integers(n, size=(count, B)) for rng, n, count in zip(rngs, sizes, counts, strict=True)]


def fixed_batches(B: int, rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[Samples]:
    """Draw each sample from the client's fixed batches of B examples: the batch that contains a uniformly random example.

    With B fixed, this function is a `Sampler`.

    Args:
        B: The batch size.
        rngs: The random generator of each client.
        sizes: The number of examples of each client.
        counts: The number of samples to draw for each client.
    """
    drawn = list[Samples]()
    for rng, n, count in zip(rngs, sizes, counts, strict=True):
        starts = rng.integers(n, size=count) // B * B if n > B else [0] * count
        drawn.append([np.arange(start, min(start + B, n)) for start in starts])
    return drawn


def uniform(B: int, rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[Samples]:
    """Draw the B examples of each sample without replacement. A client with at most B examples uses all of them.

    With B fixed, this function is a `Sampler`.

    Args:
        B: The batch size.
        rngs: The random generator of each client.
        sizes: The number of examples of each client.
        counts: The number of samples to draw for each client.
    """
    if min(sizes) > B:
        return _different(B, rngs, sizes, counts)
    drawn = list[Samples]()
    for rng, n, count in zip(rngs, sizes, counts, strict=True):
        drawn += (full if n <= B else partial(_different, B))([rng], [n], [count])
    return drawn


def _different(B: int, rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[np.ndarray]:
    """Draw the B examples of each sample without replacement, for clients that all have more than B examples.

    `_by_choice` and `_by_floyd` consume the same random numbers and return the same samples, so the result does not depend on
    which of the two draws (test_batches_are_those_of_choice).

    Args:
        B: The batch size.
        rngs: The random generator of each client.
        sizes: The number of examples of each client.
        counts: The number of samples to draw for each client.
    """
    by_choice = B > WIDE or max(sizes) > MANY or sum(counts) < FEW * len(counts)
    return (_by_choice if by_choice else _by_floyd)(B, rngs, sizes, counts)


def _by_choice(B: int, rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[np.ndarray]:
    each = zip(rngs, sizes, counts, strict=True)
    drawn = [[rng.choice(n, B, replace=False, shuffle=False) for _ in range(count)] for rng, n, count in each]
    return [np.array(of_client, np.int64).reshape(-1, B) for of_client in drawn]


def _by_floyd(B: int, rngs: Rngs, sizes: list[int], counts: list[int]) -> Sequence[np.ndarray]:
    """Draw the samples of all clients together by Floyd's algorithm, which `Generator.choice` uses too.

    The i-th example of a sample, i = 0, 1, ..., B - 1, is drawn from the first n - B + i + 1 of the client's n examples. If the
    sample already contains it, it is replaced with the last of these examples, whose index is n - B + i.

    Args:
        B: The batch size.
        rngs: The random generator of each client.
        sizes: The number of examples of each client.
        counts: The number of samples to draw for each client.
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
    """Return draws of a single sample that contains all examples of a client, or all examples of one split.

    Args:
        split: The name of the split. None: all splits.

    Example:
        >>> fedopt.Full("val") == fedopt.Steps(split="val")
        True
    """
    return Steps(split=split)


# The draws of an exchange by name; `draw` processes them split by split, then name by name
Draws = Mapping[str, Steps | Epochs]


@dataclass(eq=False)
class Drawn:
    """The draws of one name for one stack of clients. With `OneByOne`, a stack has one client.

    The samples are drawn in stretches (blocks of consecutive samples), which bounds memory. The object stores the stretch that
    was requested last.

    Args:
        sizes: For each split that is drawn from, the number of examples of each client, ``[clients]``.
        steps: The number of local steps of each client, ``[clients]``.
        samples: The number of samples per step. None: one sample, which is not in a list.
        length: The number of samples in a stretch.
        positions: For each split, the examples of each sample in the first stretch, as positions among the client's examples,
            and their weights, ``[clients, length, B]`` each. Empty if every sample contains all examples.
        lengths: For each split, the number of examples of each sample in the first stretch, ``[clients, length]``.
        later: For each split with more than one stretch, the function that yields all its stretches, and copies of the
            clients' generators in their state before the first stretch.
    """

    sizes: dict[str, np.ndarray]
    steps: np.ndarray
    samples: int | None
    length: int
    positions: dict[str, Weighted] = field(default_factory=dict)
    lengths: dict[str, np.ndarray] = field(default_factory=dict)
    later: dict[str, tuple[Callable[[Rngs], Iterator[Stretch]], Rngs]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._number, self._at_hand = 0, (self.positions, self.lengths)  # the stretch that was requested last
        # For each split the iterator over all stretches, whose next one is `_number` + 1; empty until it is needed
        self._due = dict[str, Iterator[Stretch]]()

    @cached_property
    def rising_steps(self) -> list[int]:
        """The numbers of local steps of the clients, in ascending order."""
        return sorted(self.steps.tolist())

    def examples(self, k: int) -> np.ndarray:
        """Return the number of examples in the k-th sample of each client, ``[clients]``.

        If the sample has examples of several splits, this is the mean of their numbers, rounded to a whole number.

        Args:
            k: The index of the sample, from 0.
        """
        first, _, lengths = self.stretch(k)
        of_splits = [of_split[:, k - first] for of_split in lengths.values()] or [*self.sizes.values()]
        # Rounded for each client, so that the sum is the same whether clients are vectorised or run one by one
        return np.rint(np.mean(of_splits or [0 * self.steps], axis=0)).astype(np.int64)

    def stretch(self, k: int) -> tuple[int, dict[str, Weighted], dict[str, np.ndarray]]:
        """Return the stretch that contains sample k: the index of its first sample, its positions and its lengths.

        Positions and lengths have the shapes of the attributes ``positions`` and ``lengths``.

        Args:
            k: The index of the sample, from 0.
        """
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
    """Draw the samples of an exchange for each client of a stack (clients that are computed together), each with its own generator.

    Args:
        draws: The requested draws by name.
        splits: The examples of all clients, by split.
        clients: The indices of the clients in the stack.
        rng_of: A function that returns the generator of the client with a given index.
        like: A tensor with the device and dtype of the results.

    Returns:
        A pair. First: for each split that is drawn from, the row indices and weights of all examples of each client, both
        ``[clients, n]``, padded with weight 0. Second: for each name, its `Drawn`.
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
    """Fill in the positions of draws in place.

    The generators advance split by split, then name by name, and past all samples of a name, even past those that no client uses.

    Args:
        random_draws: For each name, the requested draws and the `Drawn` to fill in.
        splits: The names of all splits.
        rngs: The generator of each client.
        like: A tensor with the device and dtype of the results.
    """
    unfinished: Iterator[Stretch] = iter(())
    for split in splits:
        for wanted, of_name in random_draws:
            if split in of_name.sizes:
                deque(unfinished, maxlen=0)  # advances the generators to the end of the previous draws
                counts = of_name.steps * (wanted.samples or 1)
                stretches = partial(_stretches, wanted, of_name.sizes[split], counts, of_name.length, like)
                if counts.max() > of_name.length:
                    of_name.later[split] = stretches, deepcopy(rngs)
                unfinished = stretches(rngs)
                of_name.positions[split], of_name.lengths[split] = next(unfinished)


def _stretches(
    wanted: Steps | Epochs, sizes: np.ndarray, counts: np.ndarray, length: int, like: Tensor, rngs: Rngs
) -> Iterator[Stretch]:
    """Yield the stretches: the positions of ``length`` samples of each client, their weights and their numbers of examples.

    Args:
        wanted: The requested draws.
        sizes: The number of examples of each client, ``[clients]``.
        counts: The number of samples of each client, ``[clients]``.
        length: The number of samples in a stretch.
        like: A tensor with the device and dtype of the results.
        rngs: The generator of each client.
    """
    width, sampler = _width(wanted, sizes[counts > 0].max(initial=1)), wanted.sampler(sizes)
    for first in range(0, max(counts.max(), 1), length):
        due = np.clip(counts - first, 0, length).tolist()
        yield _stacked(sampler(rngs, sizes.tolist(), due), width, like)


def _stacked(lists: Sequence[Samples], width: int, like: Tensor) -> Stretch:
    """Stack the samples of several clients, which may have different sizes.

    Args:
        lists: The samples of each client. If they are one array, it has exactly ``width`` columns.
        width: The largest number of examples of a sample.
        like: A tensor with the device and dtype of the results.

    Returns:
        The positions and their weights, ``[clients, samples, width]`` each, padded with weight 0; and the number of examples of
        each sample, ``[clients, samples]``.
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
    """Return index lists of different lengths as one tensor, ``[..., width]``, and a tensor of weights of the same shape.

    A list of length n has the weights 1/n; padding has the weight 0.

    Args:
        numbers: The concatenation of all lists.
        sizes: The length of each list, ``[...]``.
        width: The length to which all lists are padded.
        like: A tensor with the device of both results and the dtype of the weights.
    """
    sizes = sizes[..., None]
    used = np.arange(width) < sizes
    index = np.zeros(used.shape, dtype=np.int64)
    index[used] = numbers
    return torch.from_numpy(index).to(like.device), torch.from_numpy(used / np.maximum(sizes, 1)).to(like)


def _width(wanted: Steps | Epochs, n: int) -> int:
    """Return the largest number of examples in a sample of a client that has n examples. wanted: the requested draws."""
    B = wanted.B or n
    return B if isinstance(wanted, Steps) and wanted.replace else min(B, n)


def _check_batch_size(B: int | None) -> None:
    """Raise UserError if a batch size is less than 1. None stands for all examples of a client."""
    if B is not None and B < 1:
        raise UserError(f"B={B}: must be at least 1, or null for all of a client's examples")


def _of(amount: Amount, clients: np.ndarray) -> np.ndarray:
    """Return the amount of each client, ``[clients]``.

    Args:
        amount: One number for all clients, an array ``[M]``, or a function of an array of client indices.
        clients: The indices of the clients.
    """
    if callable(amount):
        return amount(clients)
    return np.full(len(clients), amount) if np.ndim(amount) == 0 else np.asarray(amount)[clients]
