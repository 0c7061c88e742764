"""The expected weights of clients, which differ from the problem's weights if the server averages cohorts of unequal clients."""

from dataclasses import replace
from math import comb

import numpy as np

from fedopt.config import Participation
from fedopt.federation.round import Federation

EXACT = 12  # largest number of clients for which all cohorts are enumerated; beyond it, cohorts are sampled
DRAWS = 10**6  # total number of clients that are sampled: each of 100 clients is then sampled 10,000 times
MOST = 20_000  # largest number of clients for which weights are computed
CLOSE = 0.002  # the total variation below which weights count as equal


def effective_weights(federation: Federation, kind: str = "mean") -> list[float] | None:
    """Return the clients' expected weights in a round, ``[M]``, normalised to the sum 1 and rounded to six digits.

    In a round in which the clients S take part, let client i have the weight::

        w_i = p_i / sum_{j in S} p_j    if i is in S, else 0

    The function computes the expectation of w_i over cohorts, dropouts and the rounds of the availability pattern. It is exact
    for at most `EXACT` clients, and otherwise estimated by sampling.

    Args:
        federation: The clients and their participation settings.
        kind: The algorithm's ``cohort_weights``. ``mean``: the weights above. ``unbiased``: the weights ``p_i M / |S|``.
            ``corrected``: the algorithm corrects for partial participation itself.

    Returns:
        The weights. None if they equal the problem's weights, if ``kind`` is ``corrected``, if the server uses a robust rule, or if
        there are more than `MOST` clients.
    """
    p, who = federation.problem.weights, federation.participation
    if kind == "corrected" or who.rule or len(p) > MOST or (who.pattern is None and np.ptp(p) < 1e-12):
        return None
    q = np.full_like(p, 1 / len(p)) if kind == "unbiased" and who.sampling == "uniform" else p
    if who.sampling == "by_weight":  # with available clients A, the expected share of draws is p_i / p(A)
        who = replace(who, cohort=None, dropout=0.0)
    chances = federation.availability.chances()
    inverse = (_enumerated if len(p) <= EXACT else _drawn)(q, chances, who)
    # If nobody is available, one of all clients takes part
    nobody = np.mean([np.prod(1 - chance) for chance in chances])
    w = p * (inverse + nobody / len(p) / np.maximum(q, 1e-300))
    w /= w.sum()
    return None if np.abs(w - p).sum() / 2 < CLOSE else [float(f"{w_i:.6g}") for w_i in w]


def _enumerated(q: np.ndarray, chances: list[np.ndarray], who: Participation) -> np.ndarray:
    """Return the following expectation for each client i, ``[M]``, by enumerating all sets S of clients that may take part::

        E[1(i in S) / sum_{j in S} q_j]

    Args:
        q: The weights of the clients, ``[M]``.
        chances: For each round of one period of the availability pattern, the probability that each client is available,
            ``[M]``, independently of the others.
        who: The participation settings: cohort and dropout.
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
    """Estimate the result of `_enumerated`, which has the same arguments, by sampling.

    In each sample, the available clients are shuffled and cut into sets. The set S of a client is the set that contains it.

    Args:
        q: The weights of the clients, ``[M]``.
        chances: The probability of each client to be available, ``[M]``, for each round of a period.
        who: The participation settings: cohort and dropout.
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
        # The last set overlaps the one before
        end = np.clip((ranks // size + 1) * size, size, np.maximum(available, size))
        mass = np.take_along_axis(sums, end, 1) - np.take_along_axis(sums, end - size, 1)
        found = np.where(ranks < available, size / np.maximum(available, 1) / np.maximum(mass, 1e-300), 0)
        mean = np.bincount(order.ravel(), found.ravel(), len(able)) / np.maximum(present.sum(0), 1)
        total[able] += chance[able] * mean / len(chances)
    return total
