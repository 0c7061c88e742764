"""How examples are divided among clients. Each partitioner takes the labels (or None, where there are none), a generator and
the least number of examples a client must have, and returns one array of rows for each client: disjoint and complete.
"""

import re
from heapq import heapify, heapreplace
from typing import Annotated, Protocol

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from fedopt.errors import UserError

_config = ConfigDict(extra="forbid")
Labels = np.ndarray | None  # the class of each example, [count]
Parts = list[np.ndarray]  # the rows of each client


class Partitioner(Protocol):
    """clients: how many there are."""

    clients: int

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> Parts: ...


def _check(clients: int, count: int, least: int) -> None:
    if count < clients * least:
        raise UserError(
            f"partitioner.clients={clients} is too many: {count} examples give each at most {count // clients}, "
            f"and each needs {least}"
        )


def _labels(labels: Labels, partitioner: object) -> np.ndarray:
    if labels is None:
        name = re.sub(r"\B(?=[A-Z])", "_", type(partitioner).__name__).lower()  # as on the command line
        raise UserError(
            f"partitioner={name} divides by class, and this problem's data have no classes: "
            "use partitioner=iid or partitioner=centralized"
        )
    return labels


@dataclass(frozen=True, config=_config)
class Iid:
    """A uniformly random division into equal parts."""

    clients: PositiveInt

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> Parts:
        _check(self.clients, count, least)
        return np.array_split(rng.permutation(count), self.clients)


@dataclass(frozen=True, config=_config)
class Centralized:
    """One client with everything."""

    clients: Annotated[int, Field(ge=1, le=1)] = 1

    def __call__(self, count: int, labels: Labels, rng: np.random.Generator, least: int = 1) -> Parts:
        _check(1, count, least)
        return [np.arange(count)]


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
        of_clients = np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
        parts = [rng.permutation(rows) for rows in of_clients]
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
            raise UserError(
                f"partitioner.clients={self.clients} must be a multiple of the number of classes, {C}, for q_heterogeneity"
            )
        sizes = [len(part) for part in np.array_split(np.empty(count), C)]
        own = [rng.permutation(np.flatnonzero(labels == c)) for c in classes]
        own = [mine[: round(self.q * n)] for mine, n in zip(own, sizes, strict=True)]
        rest = rng.permutation(np.setdiff1d(np.arange(count), np.concatenate(own)))
        ends = np.cumsum([n - len(mine) for n, mine in zip(sizes, own, strict=True)])
        groups = [np.concatenate(pair) for pair in zip(own, np.split(rest, ends[:-1]), strict=True)]
        return [part for group in groups for part in np.array_split(rng.permutation(group), self.clients // C)]
