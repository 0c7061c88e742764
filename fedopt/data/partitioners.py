"""Partitions of the examples among clients.

A partitioner is called with the number of examples, their labels (or None), a random generator and the minimum number of
examples per client. It returns one array of indices per client; every example belongs to exactly one client.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from fedopt.data.arrays import with_owners
from fedopt.data.labelled import LabelledData
from fedopt.data.names import LONGEST
from fedopt.data.ragged import cut
from fedopt.decimals import exact
from fedopt.errors import UserError, first_line
from fedopt.files import expanded, read_text

_config = ConfigDict(extra="forbid")
Labels = np.ndarray | None  # class of each example, [count]
ByClient = list[np.ndarray]  # example indices of each client


class Partitioner(Protocol):
    """The interface of a partition of the examples among clients.

    Attributes:
        clients: The number of clients. None: it is determined by the data.

    Calling a partitioner returns one array of example indices per client. The arguments are the number of examples
    ``count``; their classes ``labels``, ``[count]`` or None (`ByColumn` expects clients instead of classes); the generator
    ``rng``; and ``least``, the minimum number of examples per client.
    """

    @property
    def clients(self) -> int | None: ...

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> ByClient: ...


def check_partition(partitioner: Partitioner, lists: Any, count: int, least: int) -> None:
    """Raise UserError unless ``lists`` is a partition of the indices 0, ..., count - 1.

    Args:
        partitioner: The partitioner that returned it, for the message and the number of clients.
        lists: The value it returned: one array of example indices per client.
        count: Number of examples.
        least: Minimum number of examples that each client must have.

    Raises:
        UserError: ``lists`` is not such a partition.
    """
    key = f"partitioner._target_={type(partitioner).__module__}.{type(partitioner).__name__}"
    clients = getattr(partitioner, "clients", None)
    arrays = [np.asarray(rows) for rows in lists] if isinstance(lists, Sequence | np.ndarray) else []
    if not arrays or any(a.ndim != 1 or (a.size and a.dtype.kind not in "iu") for a in arrays):
        raise UserError(f"{key}: must return a list with an array for each client, the indices of its examples")
    if clients is not None and len(arrays) != clients:
        raise UserError(f"{key}: returns {len(arrays)} clients, but partitioner.clients={clients}; return as many")
    sizes = np.array([len(rows) for rows in arrays])
    if sizes.min() < least:
        raise UserError(f"{key}: client {sizes.argmin()} gets {sizes.min()} of {count} examples; give each {least}")
    rows = np.sort(np.concatenate(arrays))
    if not np.array_equal(rows, np.arange(count)):
        raise UserError(f"{key}: must return each index from 0 to {count - 1} exactly once, for one client")


def _check(clients: int, count: int, least: int) -> None:
    """Raise UserError if there are fewer than ``clients * least`` examples.

    Args:
        clients: Number of clients.
        count: Number of examples.
        least: Minimum number of examples per client.
    """
    if count < clients * least:
        raise UserError(f"partitioner.clients={clients}: too many for {count} examples; use at most {count // least}")


def _labels(labels: Labels, partitioner: object) -> np.ndarray:
    """Return the labels unchanged. Raise UserError if they are None, because the partitioner needs classes.

    Args:
        labels: Class of each example, ``[count]``, or None.
        partitioner: The partitioner that needs them, named in the message.
    """
    if labels is None:
        name = re.sub(r"\B(?=[A-Z])", "_", type(partitioner).__name__).lower()  # the name on the command line
        how = "use partitioner=iid or, in a custom problem, self.world.split(n, labels=CLASSES)"
        raise UserError(f"partitioner={name}: these data have no classes; {how}")
    return labels


def _by_owner(owner: np.ndarray, sizes: np.ndarray) -> ByClient:
    """Group the example indices by client.

    Args:
        owner: Client of each example, ``[count]``.
        sizes: Number of examples of each client, ``[M]``.

    Returns:
        The indices of each client's examples, in ascending order.
    """
    return cut(np.argsort(owner, kind="stable"), sizes)


@dataclass(frozen=True, config=_config)
class Iid:
    """A uniformly random partition, in which the sizes of the clients differ by at most one.

    Args:
        clients: Number of clients.
    """

    clients: PositiveInt

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> ByClient:
        _check(self.clients, count, least)
        return cut(rng.permutation(count), count // self.clients + (np.arange(self.clients) < count % self.clients))


@dataclass(frozen=True, config=_config)
class Proportions:
    """A random partition with prescribed proportions.

    Args:
        clients: Number of clients.
        shares: Relative size of each client. If there are fewer entries than clients, the last entry is repeated.
    """

    clients: PositiveInt
    shares: Annotated[list[PositiveFloat], Field(min_length=1)]

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> ByClient:
        _check(self.clients, count, least)
        shares = np.cumsum((self.shares + self.clients * self.shares[-1:])[: self.clients])
        return np.split(rng.permutation(count), np.rint(exact(count * shares[:-1] / shares[-1])).astype(int))


@dataclass(frozen=True, config=_config)
class Centralized:
    """A single client that has all examples.

    Args:
        clients: Always 1.
    """

    clients: Annotated[int, Field(ge=1, le=1)] = 1

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> ByClient:
        _check(1, count, least)
        return [np.arange(count)]


@dataclass(frozen=True, config=_config)
class ByColumn:
    """The natural partition of the data: a column of the data, or a file, names the client of each example.

    Clients are sorted by name or number.

    Args:
        clients: Number of clients that the data must have. None: any number.
        file: File with one client name per line, for the training examples, or for the training examples followed by the
            test examples. None: use the data set's own column.
    """

    clients: PositiveInt | None = None
    file: str | None = None

    def with_owners(self, data: LabelledData) -> LabelledData:
        """Return the data with the name of the client that owns each example, read from the file if there is one.

        Raises:
            UserError: Neither a file nor the data set names the clients, or the file does not match the data.
        """
        if self.file is not None:
            train, path = len(data.y_train), expanded(self.file)
            names = self._read(path, train, len(data.y_test))
            return with_owners(data, str(path), names[:train], names[train:] if len(names) > train else None)
        if data.owners is None:
            how = "set partitioner.file=FILE, dataset.client=COLUMN with dataset=csv, or save client_train in an .npz"
            raise UserError(f"partitioner=by_column: these data do not say which client an example belongs to; {how}")
        return data

    def _read(self, path: Path, train: int, test: int) -> np.ndarray:
        """Read the client names from the file.

        Args:
            path: The file.
            train: Number of training examples.
            test: Number of test examples.

        Returns:
            The names, ``[train]`` or ``[train + test]``.

        Raises:
            UserError: The file cannot be read, or has another number of lines.
        """
        wanted = f"have a client's name on each line, {train} or, with the test examples, {train + test} lines"
        try:
            names = read_text(path, LONGEST * (train + test), links=True).removesuffix("\n").split("\n")
            if len(names) not in (train, train + test):
                raise ValueError(f"it has {len(names)} lines")
        except (OSError, UserError, ValueError) as error:
            why = first_line(error).removeprefix(f"{path}: ")
            raise UserError(f"partitioner.file={path}: must {wanted} ({why})") from None
        return np.array(names)

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> ByClient:
        """Return the indices of each client's examples.

        Args:
            count: Not used.
            labels: Client (not class) of each example, ``[count]``.
            rng: Not used.
            least: Minimum number of examples per client.

        Raises:
            UserError: A client has fewer than ``least`` examples, or the number of clients differs from ``clients``.
        """
        if labels is None:
            how = "use partitioner=iid or, in a custom problem, self.world.split(n, owners=NAMES)"
            raise UserError(f"partitioner=by_column: this problem does not name the client of each example; {how}")
        names, owner, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        if self.clients not in (None, len(names)):
            raise UserError(f"partitioner.clients={self.clients}: the data have {len(names)} clients; set it to null")
        if sizes.min() < least:
            few = f"client {names[sizes.argmin()]} has fewer than {least} examples"
            raise UserError(f"partitioner=by_column: {few}; remove it, or merge it with another client")
        return _by_owner(owner, sizes)


@dataclass(frozen=True, config=_config)
class Shards:
    """A partition by shards of examples sorted by class [McMahan et al. 2017].

    The sorted examples are cut into ``per_client * clients`` shards, and each client gets ``per_client`` random shards.

    Args:
        clients: Number of clients.
        per_client: Number of shards per client.
    """

    clients: PositiveInt
    per_client: PositiveInt = 2

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> ByClient:
        labels = _labels(labels, self)
        shard = -(-least // self.per_client)  # minimum size of a shard: a client may get only small ones
        _check(self.clients, count, shard * self.per_client)
        by_class = np.lexsort((rng.random(count), labels))
        shards = np.array_split(by_class, self.clients * self.per_client)
        order = rng.permutation(len(shards)).reshape(self.clients, self.per_client)
        return [np.concatenate([shards[j] for j in mine]) for mine in order]


@dataclass(frozen=True, config=_config)
class Dirichlet:
    """A partition whose class proportions follow a Dirichlet distribution [Wang et al. 2019].

    For each class, the shares of the clients are sampled from Dir(alpha).

    Args:
        clients: Number of clients.
        alpha: Concentration. With a small value, each client has few classes; a large value approaches an IID partition.
        min_size: Minimum number of examples per client. Clients with fewer get random examples from the largest clients.
    """

    clients: PositiveInt
    alpha: PositiveFloat
    min_size: PositiveInt = 1

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> ByClient:
        labels = _labels(labels, self)
        least = max(least, self.min_size)
        _check(self.clients, count, least)
        owner = np.empty(count, dtype=np.int64)
        for c in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == c))
            cuts = np.cumsum(self._proportions(rng))[:-1] * len(rows)
            owner[rows] = np.searchsorted(np.round(cuts), np.arange(len(rows)), side="right")
        sizes = np.bincount(owner, minlength=self.clients)
        clients = [rng.permutation(rows) for rows in _by_owner(owner, sizes)]
        for poor in np.flatnonzero(sizes < least):
            while sizes[poor] < least:
                rich = sizes.argmax()
                taken = min(least - sizes[poor], max(1, sizes[rich] - least))
                clients[poor], clients[rich] = np.append(clients[poor], clients[rich][:taken]), clients[rich][taken:]
                sizes[[poor, rich]] += taken, -taken
        return clients

    def _proportions(self, rng: np.random.Generator) -> np.ndarray:
        """Sample the clients' shares of one class, ``[clients]``, with sum 1."""
        gammas = rng.standard_gamma(self.alpha, self.clients)
        if not gammas.any():  # all values underflowed because alpha is very small
            gammas[rng.integers(self.clients)] = 1
        return gammas / gammas.sum()


@dataclass(frozen=True, config=_config)
class QHeterogeneity:
    """A partition with controlled heterogeneity q [FedMSA, Sec. 4].

    There is one group of clients per class, and all C groups have the same number n of examples. The group of class c gets
    q n examples of class c (all of them if there are fewer) and is filled up at random from the remaining examples of all
    classes. The examples of a group are then divided evenly among its M / C clients.

    Args:
        clients: Number M of clients, a multiple of the number C of classes.
        q: Heterogeneity: 0 is IID, 1 is as heterogeneous as the class sizes allow.
    """

    clients: PositiveInt
    q: Annotated[NonNegativeFloat, Field(le=1)]

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> ByClient:
        labels = _labels(labels, self)
        _check(self.clients, count, least)
        classes = np.unique(labels)
        C = len(classes)
        if self.clients % C:
            raise UserError(f"partitioner.clients={self.clients}: must be a multiple of the number of classes, {C}")
        sizes = [len(chunk) for chunk in np.array_split(np.empty(count), C)]
        own = [rng.permutation(np.flatnonzero(labels == c)) for c in classes]
        own = [mine[: round(exact(self.q * n))] for mine, n in zip(own, sizes, strict=True)]
        rest = rng.permutation(np.setdiff1d(np.arange(count), np.concatenate(own)))
        ends = np.cumsum([n - len(mine) for n, mine in zip(sizes, own, strict=True)])
        groups = [np.concatenate(pair) for pair in zip(own, np.split(rest, ends[:-1]), strict=True)]
        return [chunk for group in groups for chunk in np.array_split(rng.permutation(group), self.clients // C)]
