"""Recursive momentum (STORM) [Cutkosky & Orabona 2019], which several methods share.

Notation
    z, d    a client's point, and its estimate of the directions at this point: one vector for each variable
    D       the directions at a point on one sample xi
    c       the weights of the newest directions in d, one for each variable; with 1, earlier directions have no influence
    t       the iteration, counted from 0

    d_t = D(z_t; xi) + (1 - c)(d_{t-1} - D(z_{t-1}; xi))    with the same sample xi in both terms
    z_{t+1} = move(z_t, d_t)

The functions below differ in the values that the server averages. These values determine to which point a method with a
constant step size converges.
    together            one exchange averages z_{t+1} and d_t; each client keeps its own z_t, the next old point
    points_first        one exchange averages z_{t+1}, and a second one averages d_{t+1}, which clients estimate at that mean;
                        each client keeps its own z_t
    Storm.iterations    if it runs in one exchange, z_t and d_t are averaged, so the next old point is also the mean
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedopt.federation import Client, Memory, Round, Sample, Steps
from fedopt.toolbox.vectors import Tensors, Vectors

Samples = Callable[[Client], Iterator[Sample]]


class Pair(NamedTuple):
    """A point of a method and its estimated directions.

    Attributes:
        z: The point.
        d: The directions at z, with the shapes of z.
    """

    z: Vectors
    d: Vectors


class Storm(NamedTuple):
    """Recursive momentum (STORM) [Cutkosky & Orabona 2019]. Three functions define the method.

    Iteration t = 0, 1, ... uses a new sample xi in both terms of::

        d_t = D(z_t; xi) + (1 - c)(d_{t-1} - D(z_{t-1}; xi))
        z_{t+1} = move(z_t, d_t)

    Args:
        D: ``D(client, z, xi)``, which returns the directions at z on one sample, with the shapes of z.
        move: ``move(client, z, d, t)``, which returns the point after the step of iteration t.
        c: ``c(t)``, which returns the weight of the newest direction in d_{t+1}, one number between 0 and 1 for each variable.
            With 1, earlier directions have no influence.
    """

    D: Callable[[Client, Vectors, Sample], Vectors]
    move: Callable[[Client, Vectors, Vectors, int], Vectors]
    c: Callable[[int], Sequence[float]]

    def first(self, client: Client, z: Vectors, xis: Iterable[Sample]) -> Vectors:
        """Return d_0, the mean of the directions D at z_0 over several samples.

        Args:
            client: The client.
            z: The point z_0.
            xis: The samples, each of which gives one value of D.
        """
        new = [self.D(client, z, xi) for xi in xis]
        return Vectors(sum(values) / len(values) for values in zip(*new, strict=True))

    def estimate(self, client: Client, z: Vectors, z_prev: Vectors, d: Vectors, xi: Sample, t: int) -> Vectors:
        """Return d_t, the estimate of the directions at z_t. If d was itself returned by this method, it may be overwritten.

        Args:
            client: The client.
            z: The point z_t.
            z_prev: The point z_{t-1}.
            d: The estimate d_{t-1}.
            xi: The sample of iteration t, which is used at both points.
            t: The index of the iteration.
        """
        D, D_prev = self.D(client, z, xi), self.D(client, z_prev, xi)
        c = self.c(t - 1)
        # D + (1 - c) (d - D_prev)
        d = Vectors(client.moved_(old, new, 1.0) for old, new in zip(d, D_prev, strict=True))
        return Vectors(client.moved_(new, change, c_n - 1) for new, change, c_n in zip(D, d, c, strict=False))

    def iterations(self, client: Client, z: Vectors, d: Vectors, xis: Iterable[Sample], t: int) -> Pair:
        """Run one iteration for each sample, and return (z, d). An iteration moves z, and then estimates d at the new z.

        Args:
            client: The client.
            z: The point before the first iteration.
            d: The estimate of the directions at this point.
            xis: The samples, one for each iteration.
            t: The index of the first iteration.
        """
        for t_now, xi in enumerate(xis, t):
            z_prev, z = z, self.move(client, z, d, t_now)
            d = self.estimate(client, z, z_prev, d, xi, t_now + 1)
        return Pair(z, d)


class Averages(NamedTuple):
    """The state of a method between two rounds of `together`, before iteration t. z_t is the point, and d_t the direction.

    Attributes:
        z: The mean of the clients' z_t.
        d: The mean of the clients' d_{t-1}.
        previous: The mean of the clients' z_{t-1} as one vector: the old point of every client's next estimate if cohorts change.
        memory: Each client's z_{t-1} as one vector: the old point if all clients take part in every round.
    """

    z: Vectors
    d: Vectors
    previous: Tensor
    memory: Memory


def at_start(z: Vectors, clients: int) -> Averages:
    """Return the state of `together` before the first iteration: all clients have the point z, and d = 0.

    Args:
        z: The initial point.
        clients: The number of clients.
    """
    return Averages(z, 0.0 * z, torch.cat(z), Memory([torch.cat(z)] * clients))


def together(
    storm: Storm, s: Averages, fed: Round, p: int, xi: Steps, S: int = 1, samples: Samples | None = None
) -> Averages:
    """Run p local iterations on each client, average the points and directions in one exchange, and return the new state.

    Args:
        storm: The method.
        s: The state before the round.
        fed: The round.
        p: The number of iterations per round.
        xi: The samples of each client: p + S - 1 samples in the first round, and p samples in later rounds.
        S: The number of samples over which the first estimate d_0 is averaged.
        samples: A function that takes a client and yields the sample of each evaluation of D. None: the samples ``xi`` are used.
    """
    first = fed.r * p

    # z_t and d_{t-1} are averaged, but each client keeps its own z_{t-1}. If cohorts change, a client that joins has no z_{t-1},
    # so the average of z_{t-1} is sent too.
    def iterations(client: Client, message: tuple[Vectors, Vectors, *Tensors]) -> tuple[Pair, Tensor]:
        z, d, *averaged = message
        z_prev = z.unflatten(averaged[0] if averaged else client.memory)
        xis = samples(client) if samples else client.steps("xi")
        for t in range(first, first + p):
            if t == 0:
                d = storm.first(client, z, [next(xis) for _ in range(S)])
            else:
                d = storm.estimate(client, z, z_prev, d, next(xis), t)
            z_prev, z = z, storm.move(client, z, d, t)
        return Pair(z, d), torch.cat(z_prev)

    if fed.complete:
        (z, d), memory = fed.exchange(iterations, (s.z, s.d), fed.cohort(), memory=s.memory, origin=(s.z, None), xi=xi)
        return Averages(z, d, s.previous, memory)
    (z, d), previous = fed.exchange(
        iterations, (s.z, s.d, s.previous), fed.cohort(), origin=((s.z, None), s.previous), xi=xi
    )
    return Averages(z, d, previous, s.memory)


class Means(NamedTuple):
    """The state between two rounds of `points_first`.

    Attributes:
        z: The mean over clients of the averaged variables, the first ones of a point. The other variables stay on the clients.
        d: The mean over clients of the directions of the averaged variables.
        memory: Each client's z and d of all variables as one vector.
    """

    z: Vectors
    d: Vectors
    memory: Memory


def means_at_start(z: Vectors, averaged: int, clients: int) -> Means:
    """Return the state of `points_first` before the first round: all clients have the point z, and the
    direction 0.

    Args:
        z: The initial point.
        averaged: The number of variables that the server averages. They are the first variables of z.
        clients: The number of clients.
    """
    means = Vectors(z[:averaged])
    return Means(means, 0.0 * means, Memory([torch.cat((*z, *(0.0 * z)))] * clients))


def points_first(storm: Storm, s: Means, sizes: list[int], fed: Round, I: int, samples: Mapping[str, Steps]) -> Means:
    """Run I local iterations on each client with two exchanges, and return the new state.

    The first exchange averages the points, and the second exchange averages the directions at their mean. The first round has
    one more exchange, for d_0.

    Args:
        storm: The method.
        s: The state before the round.
        sizes: The number of entries of each variable.
        fed: The round.
        I: The number of iterations per round.
        samples: The samples by name: ``first`` for d_0, ``xi`` for I - 1 iterations, and ``last`` for the estimate at the mean.
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
        d, memory = fed.exchange(first, z, fed.everyone(), memory=memory, first=samples["first"])
    S = fed.cohort()
    z, memory = fed.exchange(to_the_step, Pair(z, d), S, memory=memory, origin=z, xi=samples["xi"])
    d, memory = fed.exchange(at_the_mean, z, S, memory=memory, last=samples["last"])
    return Means(z, d, memory)


def replaced(z: Vectors, means: Vectors) -> Vectors:
    """Return the variables z, the first of which are replaced with means.

    Args:
        z: The variables.
        means: The new values of the first variables, at most as many as z has.
    """
    return Vectors((*means, *z[len(means) :]))


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise ValueError if a weight of a method is greater than 1.

    Args:
        weights: name for the message -> weight. The name is a formula such as ``c * eta^2``.
    """
    for name, weight in weights.items():
        if weight > 1 + 1e-12:
            raise ValueError(f"{name} must be at most 1, not {weight:g}; choose smaller factors")
