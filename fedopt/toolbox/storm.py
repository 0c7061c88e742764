"""Recursive momentum [Cutkosky & Orabona 2019], which several methods share, and the orders in which they average it.

Notation
    z, d    a client's point, and its estimates of the directions there: a vector for each variable
    D       the directions at a point on one sample xi
    c       the weights of the newest directions in d, one a variable: 1 is no memory, 0 forgets nothing
    t       the iteration, counted from 0

    d_t = D(z_t; xi) + (1 - c)(d_{t-1} - D(z_{t-1}; xi)),   the same xi twice;   z_{t+1} = move(z_t, d_t)

Where the clients' values become their means decides what the limit is at a constant step.
    together            z_{t+1} and d_t become means together, in one exchange; z_t, the next old point, stays the client's own
    points_first        z_{t+1} does, and then d_{t+1}, which the clients estimate at that mean: two exchanges; z_t as above
    Storm.iterations    in an exchange: z_t and d_t do, so that the next old point is the mean too
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedopt.federation import Client, Memory, Round, Sample, Steps
from fedopt.toolbox.vectors import Tensors, Vectors

Samples = Callable[[Client], Iterator[Sample]]


class Pair(NamedTuple):
    """A point z, and directions d at z."""

    z: Vectors
    d: Vectors


class Storm(NamedTuple):
    """Recursive momentum of a method that is given by three functions [Cutkosky & Orabona 2019].

    d_t = D(z_t; xi) + (1 - c)(d_{t-1} - D(z_{t-1}; xi)),   the same xi twice;   z_{t+1} = move(z_t, d_t)

    Args:
        D: ``D(client, z, xi)``, the directions at z on one sample.
        move: ``move(client, z, d, t)``, the point after iteration t's step, t = 0, 1, ...
        c: ``c(t)``, a weight for each variable, of the newest direction in d_{t+1}: 1 has no memory, 0 forgets nothing.
    """

    D: Callable[[Client, Vectors, Sample], Vectors]
    move: Callable[[Client, Vectors, Vectors, int], Vectors]
    c: Callable[[int], Sequence[float]]

    def first(self, client: Client, z: Vectors, xis: Iterable[Sample]) -> Vectors:
        """Return d_0, the mean of D at z over the samples xis."""
        new = [self.D(client, z, xi) for xi in xis]
        return Vectors(sum(part) / len(part) for part in zip(*new, strict=True))

    def estimate(self, client: Client, z: Vectors, z_prev: Vectors, d: Vectors, xi: Sample, t: int) -> Vectors:
        """Return d_t, the estimate of the directions at z_t. It may overwrite d, as `Client.moved_` may overwrite a point.

        Args:
            client: The client.
            z: The point z_t.
            z_prev: The point z_{t-1}.
            d: The estimate d_{t-1}.
            xi: The sample of iteration t, which is used at both points.
            t: The iteration.
        """
        D, D_prev = self.D(client, z, xi), self.D(client, z_prev, xi)
        c = self.c(t - 1)
        # D + (1 - c) (d - D_prev)
        d = Vectors(client.moved_(old, new, 1.0) for old, new in zip(d, D_prev, strict=True))
        return Vectors(client.moved_(new, change, c_n - 1) for new, change, c_n in zip(D, d, c, strict=False))

    def iterations(self, client: Client, z: Vectors, d: Vectors, xis: Iterable[Sample], t: int) -> Pair:
        """Return (z, d) after one iteration for each sample. An iteration first moves z, and then estimates d there.

        Args:
            client: The client.
            z: The point before the first iteration.
            d: The estimate at z.
            xis: The samples.
            t: The number of the first iteration.
        """
        for t_now, xi in enumerate(xis, t):
            z_prev, z = z, self.move(client, z, d, t_now)
            d = self.estimate(client, z, z_prev, d, xi, t_now + 1)
        return Pair(z, d)


class Averages(NamedTuple):
    """The state between two rounds of `together`, before iteration t.

    Attributes:
        z, d: The clients' means of z_t and d_{t-1}.
        previous: The mean of z_{t-1}, flat, which is used if cohorts change.
        memory: Each client's own z_{t-1}, flat, which is used if all clients take part.
    """

    z: Vectors
    d: Vectors
    previous: Tensor
    memory: Memory


def at_start(z: Vectors, clients: int) -> Averages:
    """Return the state before the first iteration: z for all clients, and d = 0. clients: their number."""
    return Averages(z, 0.0 * z, torch.cat(z), Memory([torch.cat(z)] * clients))


def together(
    storm: Storm, s: Averages, fed: Round, p: int, draws: Steps, S: int = 1, samples: Samples | None = None
) -> Averages:
    """Return the state after p iterations and one exchange, which averages points and directions together.

    Args:
        storm: The method.
        s: The state before.
        fed: The round.
        draws: The samples that clients take under the name xi.
        S: The number of samples whose mean D is d_0. The first round needs p + S - 1 samples, later rounds p.
        samples: client -> its samples, one for each D; None: the samples of its draws.
    """
    first = fed.r * p

    # What is averaged is z_t and d_{t-1}; a client's z_{t-1} is not replaced. Where cohorts change, a client that joins has none of
    # its own: their averages are sent with the rest.
    def iterations(client: Client, message: tuple[Vectors, Vectors, *Tensors]) -> tuple[Pair, Tensor]:
        z, d, *averaged = message
        z_prev = z.parts(averaged[0] if averaged else client.memory)
        xis = samples(client) if samples else client.steps("xi")
        for t in range(first, first + p):
            if t == 0:
                d = storm.first(client, z, [next(xis) for _ in range(S)])
            else:
                d = storm.estimate(client, z, z_prev, d, next(xis), t)
            z_prev, z = z, storm.move(client, z, d, t)
        return Pair(z, d), torch.cat(z_prev)

    if fed.complete:
        (z, d), memory = fed.exchange(iterations, (s.z, s.d), fed.cohort(), memory=s.memory, xi=draws)
        return Averages(z, d, s.previous, memory)
    (z, d), previous = fed.exchange(iterations, (s.z, s.d, s.previous), fed.cohort(), xi=draws)
    return Averages(z, d, previous, s.memory)


class Means(NamedTuple):
    """The state between two rounds of `points_first`.

    Attributes:
        z, d: The clients' means of the first variables and of their directions. The other variables stay on the clients.
        memory: Each client's z and d of all variables, as one vector.
    """

    z: Vectors
    d: Vectors
    memory: Memory


def means_at_start(z: Vectors, averaged: int, clients: int) -> Means:
    """Return the state before the first round. averaged: the number of variables that are. clients: the number of clients."""
    means = Vectors(z[:averaged])
    return Means(means, 0.0 * means, Memory([torch.cat((*z, *(0.0 * z)))] * clients))


def points_first(storm: Storm, s: Means, sizes: list[int], fed: Round, I: int, draws: Mapping[str, Steps]) -> Means:
    """Return the state after I iterations and two exchanges.

    Points are averaged first, then the directions at their mean. The first round has one exchange more, for d_0.

    Args:
        storm: The method.
        s: The state before.
        sizes: Of all variables.
        fed: The round.
        draws: `first` for d_0, `xi` for I - 1 iterations, `last` for the estimate at the mean.
    """
    (z, d, memory), n = s, len(s.z)
    start, last = fed.r * I, fed.r * I + I - 1

    def own(client: Client) -> Pair:
        z, d = client.memory.chunk(2)
        return Pair(Vectors(torch.split(z, sizes)), Vectors(torch.split(d, sizes)))

    def first(client: Client, z: Vectors) -> tuple[Vectors, Tensor]:
        z = replaced(own(client)[0], z)
        d = storm.first(client, z, client.steps("first"))
        return Vectors(d[:n]), torch.cat((*z, *d))

    def to_the_step(client: Client, means: Pair) -> tuple[Vectors, Tensor]:
        z, d = map(replaced, own(client), means)
        z, d = storm.iterations(client, z, d, client.steps("xi"), start)
        return Vectors(storm.move(client, z, d, last)[:n]), torch.cat((*z, *d))

    def at_the_mean(client: Client, z_mean: Vectors) -> tuple[Vectors, Tensor]:
        z_prev, d = own(client)
        z = replaced(storm.move(client, z_prev, d, last), z_mean)
        d = storm.estimate(client, z, z_prev, d, client.sample("last"), last + 1)
        return Vectors(d[:n]), torch.cat((*z, *d))

    if fed.r == 0:
        d, memory = fed.exchange(first, z, fed.everyone(), memory=memory, first=draws["first"])
    S = fed.cohort()
    z, memory = fed.exchange(to_the_step, Pair(z, d), S, memory=memory, xi=draws["xi"])
    d, memory = fed.exchange(at_the_mean, z, S, memory=memory, last=draws["last"])
    return Means(z, d, memory)


def replaced(z: Vectors, means: Vectors) -> Vectors:
    """Return z with its first variables replaced by the means, of which there may be fewer."""
    return Vectors((*means, *z[len(means) :]))


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise ValueError if the weight of a newest estimate is above 1. The weights have names, such as ``c * eta^2``."""
    for name, weight in weights.items():
        if weight > 1 + 1e-12:
            raise ValueError(f"{name} must be at most 1, not {weight:g}; make a factor of it smaller")
