"""The weights that clients have in the long run, where the server averages cohorts of unequal clients."""

from dataclasses import replace
from math import comb

import numpy as np

from fedopt.config import Participation
from fedopt.federation.round import Federation

EXACT = 12  # clients of whom all cohorts are enumerated; cohorts of more are drawn
DRAWS = 10**6  # clients that are drawn in all, so that each of 100 is drawn 10,000 times
MOST = 20_000  # clients above which nothing is computed
CLOSE = 0.002  # the total variation below which weights count as equal


def effective_weights(federation: Federation, kind: str = "mean") -> list[float] | None:
    """Return the clients' expected weights in a round, ``[M]``, with the sum 1 and six digits.

    In a round with the clients S, a client of S has the weight ``p_i / p(S)``, and others have 0. The expectation is over
    cohorts, dropouts and the pattern's rounds. It is exact for at most `EXACT` clients.

    Args:
        federation: The clients, and who of them takes part.
        kind: The algorithm's ``cohort_weights``. ``mean``: as above. ``unbiased``: weights in a round are ``p_i M / |S|``.
            ``corrected``: the algorithm needs no weights of cohorts.

    Returns:
        The weights; None if they are the problem's weights, or if there are more than `MOST` clients.
    """
    p, who = federation.problem.weights, federation.participation
    if kind == "corrected" or len(p) > MOST or (who.pattern is None and np.ptp(p) < 1e-12):
        return None
    q = np.full_like(p, 1 / len(p)) if kind == "unbiased" and who.sampling == "uniform" else p
    if who.sampling == "by_weight":  # shares of draws have the expectation p_i / p(A), if the clients A are available
        who = replace(who, cohort=None, dropout=0.0)
    chances = federation.availability.chances()
    inverse = (_enumerated if len(p) <= EXACT else _drawn)(q, chances, who)
    nobody = np.mean([np.prod(1 - chance) for chance in chances])  # then one of all clients takes part
    w = p * (inverse + nobody / len(p) / np.maximum(q, 1e-300))
    w /= w.sum()
    return None if np.abs(w - p).sum() / 2 < CLOSE else [float(f"{w_i:.6g}") for w_i in w]


def _enumerated(q: np.ndarray, chances: list[np.ndarray], who: Participation) -> np.ndarray:
    """Return E[1(i in S) / q(S)] of each client, [M], over all sets S of clients that may take part.

    q: [M]. chances: the clients' independent probabilities of being available, in each of some rounds, [M] each.
    """
    M = len(q)
    masks = (np.arange(2**M)[:, None] >> np.arange(M) & 1).astype(bool)
    counts, contain = masks.sum(1), np.zeros((M + 1, 2**M))
    contain[counts, np.arange(2**M)] = np.mean([np.prod(np.where(masks, c, 1 - c), axis=1) for c in chances], axis=0)
    contain = contain.reshape(-1, *[2] * M)
    for axis in range(1, M + 1):  # now [a, S] is the probability that a clients are available, and S are among them
        contain = np.flip(np.flip(contain, axis).cumsum(axis), axis)
    among = np.zeros((M + 1, M + 1))  # [a, k]: the probability that a certain k of the a available clients take part
    for a in range(1, M + 1):
        asked, stay = min(who.cohort or a, a), 1 - who.dropout
        for k in range(asked + 1):  # one stays if none would
            among[a, max(k, 1)] += comb(asked, k) * stay**k * (1 - stay) ** (asked - k) / comb(a, max(k, 1))
    sets = (among[:, counts] * contain.reshape(M + 1, -1)).sum(0)
    return (sets / np.maximum(masks @ q, 1e-300)) @ masks


def _drawn(q: np.ndarray, chances: list[np.ndarray], who: Participation) -> np.ndarray:
    """Estimate what `_enumerated` returns by draws.

    In a draw, the available clients are put into a random order and cut into sets: a client's S is its set.
    """
    rng, total = np.random.default_rng(0), np.zeros_like(q)
    draws = -(-DRAWS // sum(map(np.count_nonzero, chances)))
    for chance in chances:
        able = np.flatnonzero(chance)
        ranks, present = np.arange(len(able)), rng.random((draws, len(able))) < chance[able]
        available = present.sum(1, keepdims=True)
        size = np.maximum(rng.binomial(np.minimum(who.cohort or len(q), available), 1 - who.dropout), 1)
        order = np.argsort(np.where(present, rng.random(present.shape), 2), axis=1)  # unavailable clients come last
        sums = np.pad(q[able][order].cumsum(1), ((0, 0), (1, 0)))
        end = np.clip(
            (ranks // size + 1) * size, size, np.maximum(available, size)
        )  # the last set overlaps the one before
        mass = np.take_along_axis(sums, end, 1) - np.take_along_axis(sums, end - size, 1)
        found = np.where(ranks < available, size / np.maximum(available, 1) / np.maximum(mass, 1e-300), 0)
        mean = np.bincount(order.ravel(), found.ravel(), len(able)) / np.maximum(present.sum(0), 1)
        total[able] += chance[able] * mean / len(chances)
    return total
