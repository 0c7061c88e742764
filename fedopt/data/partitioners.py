"""How examples are divided among clients. Each partitioner takes the labels (or None, where there are none), a generator and
the least number of examples a client must have, and returns one array of rows for each client: disjoint and complete.
"""

import re
from collections.abc import Sequence
from heapq import heapify, heapreplace
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from fedopt.data.datasets import LabelledData, expanded, with_owners
from fedopt.data.names import LONGEST, spelt
from fedopt.data.ragged import cut
from fedopt.errors import UserError, first_line
from fedopt.files.reading import read_text

_config = ConfigDict(extra="forbid")
Labels = np.ndarray | None  # the class of each example, [count]
Parts = list[np.ndarray]  # the rows of each client


class Partitioner(Protocol):
    """clients: how many there are, None where that follows from the data."""

    @property
    def clients(self) -> int | None: ...

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> Parts: ...


def check_division(partitioner: Partitioner, parts: Any, count: int, least: int) -> None:
    """Raises UserError where a partitioner's parts are not a division of rows 0 .. count - 1 among its clients."""
    key = f"partitioner._target_={type(partitioner).__module__}.{type(partitioner).__name__}"
    clients = getattr(partitioner, "clients", None)
    arrays = [np.asarray(part) for part in parts] if isinstance(parts, Sequence | np.ndarray) else []
    if not arrays or any(a.ndim != 1 or (a.size and a.dtype.kind not in "iu") for a in arrays):
        raise UserError(f"{key}: must return a list of arrays, the row numbers of each client")
    if clients is not None and len(arrays) != clients:
        raise UserError(f"{key}: gives {len(arrays)} clients, and partitioner.clients={clients}")
    sizes = np.array([len(rows) for rows in arrays])
    if sizes.min() < least:
        few = f"client {sizes.argmin()} only {sizes.min()} of the {count} examples"
        raise UserError(f"{key}: gives {few}, and each needs {least}")
    rows = np.concatenate(arrays)
    if rows.min() < 0 or rows.max() >= count:
        raise UserError(f"{key}: must give rows 0 to {count - 1}, not {rows.min()} to {rows.max()}")
    times = np.bincount(rows, minlength=count)
    if (wrong := times != 1).any():
        row = wrong.argmax()
        raise UserError(f"{key}: gives row {row} {times[row]} times; each row belongs to one client")


def _check(clients: int, count: int, least: int) -> None:
    if count < clients * least:
        most = f"{count} examples give each at most {count // clients}"
        raise UserError(f"partitioner.clients={clients} is too many: {most}, and each needs {least}")


def _labels(labels: Labels, partitioner: object) -> np.ndarray:
    if labels is None:
        name = re.sub(r"\B(?=[A-Z])", "_", type(partitioner).__name__).lower()  # as on the command line
        raise UserError(f"partitioner={name} divides by class, and the data have no classes: use partitioner=iid")
    return labels


def _by_owner(owner: np.ndarray, sizes: np.ndarray) -> Parts:
    """The rows of each client, in order. owner: the number of each row's client; sizes: the clients' numbers of rows."""
    return cut(np.argsort(owner, kind="stable"), sizes)


@dataclass(frozen=True, config=_config)
class Iid:
    """A uniformly random division into equal parts."""

    clients: PositiveInt

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> Parts:
        _check(self.clients, count, least)
        return cut(rng.permutation(count), count // self.clients + (np.arange(self.clients) < count % self.clients))


@dataclass(frozen=True, config=_config)
class Proportions:
    """A random division in given proportions: client i has `shares[i]` of their sum; all further clients have the last one."""

    clients: PositiveInt
    shares: Annotated[list[PositiveFloat], Field(min_length=1)]

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> Parts:
        _check(self.clients, count, least)
        shares = np.cumsum((self.shares + self.clients * self.shares[-1:])[: self.clients])
        return np.split(rng.permutation(count), np.rint(count * shares[:-1] / shares[-1]).astype(int))


@dataclass(frozen=True, config=_config)
class Centralized:
    """One client with everything."""

    clients: Annotated[int, Field(ge=1, le=1)] = 1

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> Parts:
        _check(1, count, least)
        return [np.arange(count)]


@dataclass(frozen=True, config=_config)
class ByColumn:
    """As the data say: whose each row is, by the data set's own column, or by a file with the name of a client on each line.

    file: a line for each training example, or for each of them and then for each test example. The clients come in the order of
    their names, or of their numbers.
    """

    clients: PositiveInt | None = None
    file: str | None = None

    def with_owners(self, data: LabelledData) -> LabelledData:
        """The data, with whose each row is. Raises UserError where nothing says so."""
        if self.file is not None:
            train, path = len(data.y_train), expanded(self.file)
            names = self._read(path, train, len(data.y_test))
            return with_owners(data, str(path), names[:train], names[train:] if len(names) > train else None)
        if data.owners is None:
            where = (
                "partitioner.file=FILE, dataset.client=COLUMN of dataset=csv, client_train in an .npz, or dataset=leaf"
            )
            raise UserError(f"partitioner=by_column: nothing says whose each row is; {where} does")
        return data

    def _read(self, path: Path, train: int, test: int) -> np.ndarray:
        try:
            text = read_text(path, LONGEST * (train + test), links=True)
        except (OSError, UserError) as error:
            why = first_line(error).removeprefix(f"{path}: ")
            raise UserError(f"partitioner.file={path}: cannot be read: {why}") from None
        names = [spelt(name) for name in text.removesuffix("\n").split("\n")]
        if len(names) not in (train, train + test) or "" in names:
            has = f"has {len(names) - names.count('')} names"
            raise UserError(f"partitioner.file={path}: {has}; it must have one on each line, {train} or {train + test}")
        return np.array(names)

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> Parts:
        """labels: whose each row is."""
        if labels is None:
            raise UserError(
                "partitioner=by_column: goes with dataset=csv, npz, leaf or images; other data have no owners"
            )
        names, owner, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        if self.clients not in (None, len(names)):
            raise UserError(f"partitioner.clients={self.clients}: the data have {len(names)} clients")
        if sizes.min() < least:
            few = f"client {names[sizes.argmin()]} has {sizes.min()} example"
            raise UserError(f"partitioner=by_column: {few}, and each needs {least}")
        return _by_owner(owner, sizes)


@dataclass(frozen=True, config=_config)
class Shards:
    """Sorted by class, cut into `per_client` x M shards, `per_client` of them a client [McMahan et al. 2017]."""

    clients: PositiveInt
    per_client: PositiveInt = 2

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> Parts:
        labels = _labels(labels, self)
        shard = -(-least // self.per_client)  # the least size of a shard: a client may get the smaller ones only
        _check(self.clients, count, shard * self.per_client)
        by_class = np.lexsort((rng.random(count), labels))
        shards = np.array_split(by_class, self.clients * self.per_client)
        order = rng.permutation(len(shards)).reshape(self.clients, self.per_client)
        return [np.concatenate([shards[j] for j in mine]) for mine in order]


@dataclass(frozen=True, config=_config)
class Dirichlet:
    """For each class, proportions over the clients from Dir(alpha) [Wang et al. 2019]; alpha -> infinity is iid.

    A client with fewer than `min_size` examples is filled up with random examples of the largest clients.
    """

    clients: PositiveInt
    alpha: PositiveFloat
    min_size: PositiveInt = 1

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> Parts:
        labels = _labels(labels, self)
        least = max(least, self.min_size)
        _check(self.clients, count, least)
        owner = np.empty(count, dtype=np.int64)
        for c in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == c))
            cuts = np.cumsum(self._proportions(rng))[:-1] * len(rows)
            owner[rows] = np.searchsorted(np.round(cuts), np.arange(len(rows)), side="right")
        sizes = np.bincount(owner, minlength=self.clients)
        parts = [rng.permutation(rows) for rows in _by_owner(owner, sizes)]
        by_size = [(-len(part), j) for j, part in enumerate(parts)]
        heapify(by_size)
        for i in np.flatnonzero(sizes < least):
            while len(parts[i]) < least:
                richest = by_size[0][1]
                take = min(least - len(parts[i]), max(1, len(parts[richest]) - least))
                parts[i], parts[richest] = np.append(parts[i], parts[richest][:take]), parts[richest][take:]
                heapreplace(by_size, (-len(parts[richest]), richest))
        return parts

    def _proportions(self, rng: np.random.Generator) -> np.ndarray:
        gammas = rng.standard_gamma(self.alpha, self.clients)
        if not gammas.any():  # alpha so small that all of them underflowed
            gammas[rng.integers(self.clients)] = 1
        return gammas / gammas.sum()


@dataclass(frozen=True, config=_config)
class QHeterogeneity:
    """Controlled heterogeneity q [FedMSA Sec. 4]: C clients (C classes) of equal size n; client c first takes q n examples of
    class c (all of a class that has fewer), then fills up to n uniformly from what remains; then each is split into M / C
    equal clients. q = 0 is iid, q = 1 as pathological as the class sizes allow.
    """

    clients: PositiveInt
    q: Annotated[NonNegativeFloat, Field(le=1)]

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> Parts:
        labels = _labels(labels, self)
        _check(self.clients, count, least)
        classes = np.unique(labels)
        C = len(classes)
        if self.clients % C:
            raise UserError(f"partitioner.clients={self.clients} must be a multiple of the number of classes, {C}")
        sizes = [len(part) for part in np.array_split(np.empty(count), C)]
        own = [rng.permutation(np.flatnonzero(labels == c)) for c in classes]
        own = [mine[: round(self.q * n)] for mine, n in zip(own, sizes, strict=True)]
        rest = rng.permutation(np.setdiff1d(np.arange(count), np.concatenate(own)))
        ends = np.cumsum([n - len(mine) for n, mine in zip(sizes, own, strict=True)])
        groups = [np.concatenate(pair) for pair in zip(own, np.split(rest, ends[:-1]), strict=True)]
        return [part for group in groups for part in np.array_split(rng.permutation(group), self.clients // C)]
