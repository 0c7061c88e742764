"""Availability of the clients in a round, and delays of their answers.

Both depend only on the seed, the client and the round.
"""

import numpy as np

from fedopt.config import Markov, Participation, Pattern
from fedopt.errors import UserError
from fedopt.problems import Problem
from fedopt.randomness import Purpose, keyed_rng


class Availability:
    """The clients that are available in each round, and how late their answers are.

    Args:
        problem: The problem, which has the number of clients and the labels of their examples.
        seed: The seed of the run.
        participation: The participation settings. If ``participation.pattern`` is None, all clients are always available.

    Raises:
        UserError: The pattern groups clients by label, and the problem has no labels.
    """

    def __init__(self, problem: Problem, seed: int, participation: Participation):
        self.pattern, self.late = participation.pattern, participation.late
        self.clients, self._seed = problem.clients, seed
        self._groups = _groups(self.pattern, problem, seed)

    def at(self, r: int) -> np.ndarray:
        """Return the sorted indices of the clients that are available in round r.

        If the pattern makes no client available, one client is drawn uniformly from all clients.

        Args:
            r: The index of the round, from 0.
        """
        if self.pattern is None:
            return np.arange(self.clients)
        available = np.flatnonzero(self.pattern.available(r, self._groups, self._uniform))
        if not len(available):  # a new draw: the numbers that decided on availability would mostly choose a rare client
            available = keyed_rng(self._seed, Purpose.AVAILABILITY, r + 1, 1).integers(self.clients, size=1)
        return available

    def chances(self) -> list[np.ndarray]:
        """Return one period of the availability pattern: for each of its rounds, the probability of each client, ``[M]``.

        It is the probability of being available. For a daily pattern, the period is the rounds of one day.
        """
        return [np.ones(self.clients)] if self.pattern is None else [*self.pattern.chances(self._groups)]

    def ages(self, r: int) -> np.ndarray:
        """Return the age in rounds of the message that each client answers in round r, ``[M]``. 0 is the current message.

        Args:
            r: The index of the round, from 0.
        """
        if self.late == 0 or isinstance(self.late, list):
            return np.broadcast_to(self.late, self.clients)
        return keyed_rng(self._seed, Purpose.LATE, r + 1).integers(self.late + 1, size=self.clients)

    def _uniform(self, r: int) -> np.ndarray:
        """Return a random number in [0, 1) for each client in round r, ``[M]``.

        The number of client i is the same for any number of clients M > i.
        """
        return keyed_rng(self._seed, Purpose.AVAILABILITY, r + 1).random(self.clients)


def _groups(pattern: Pattern | None, problem: Problem, seed: int) -> np.ndarray:
    """Return the index of each client's group, ``[M]``. Group sizes differ by at most 1, unless the pattern lists the groups.

    Without a pattern, and for a Markov pattern, each client is a group of its own.

    Args:
        pattern: The availability pattern. None: all clients are always available.
        problem: The problem, which has the clients and their labels.
        seed: The seed of the run.
    """
    M = problem.clients
    if pattern is None or isinstance(pattern, Markov):
        return np.arange(M)
    if isinstance(pattern.groups, list):
        return np.array(pattern.groups)
    order = keyed_rng(seed, Purpose.AVAILABILITY).permutation(M)  # rounds are numbered from 1 here
    if pattern.by == "label":
        order = np.argsort(_usual_labels(problem), kind="stable")
    groups = np.empty(M, dtype=int)
    groups[order] = np.arange(M) * (pattern.groups or M) // M
    return groups


def _usual_labels(problem: Problem) -> np.ndarray:
    """Return the most frequent label of each client, [M].

    Args:
        problem: The problem, whose training examples have labels.
    """
    labels = problem.labels
    if labels is None:
        raise UserError("participation.pattern.by=label: this problem has no labels; use by=random, or list the groups")
    return np.array([np.bincount(labels[rows]).argmax() for rows in problem.splits["train"]])
