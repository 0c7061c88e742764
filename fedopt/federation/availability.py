"""Which clients are available in a round, and how late they are: functions of the seed, the client and the round alone."""

import numpy as np

from fedopt.config import Markov, Participation, Pattern
from fedopt.errors import UserError
from fedopt.problems import Problem
from fedopt.randomness import Purpose, keyed_rng


class Availability:
    """The clients that are available, and how late their answers are, round by round.

    Args:
        problem: The problem, for the number of clients and their labels.
        seed: The seed of the run.
        participation: The settings of who takes part. Without a pattern all clients are available.

    Raises:
        UserError: The pattern groups clients by label, and the problem has no labels.
    """

    def __init__(self, problem: Problem, seed: int, participation: Participation):
        self.pattern, self.late = participation.pattern, participation.late
        self.clients, self._seed = problem.clients, seed
        self._groups = _groups(self.pattern, problem, seed)

    def at(self, r: int) -> np.ndarray:
        """Return the sorted indices of the clients that are available in round r. There is always one, drawn if need be."""
        if self.pattern is None:
            return np.arange(self.clients)
        available = np.flatnonzero(self.pattern.available(r, self._groups, self._uniform))
        if not len(available):  # a new draw: the numbers that decided on availability would mostly choose a rare client
            available = keyed_rng(self._seed, Purpose.AVAILABILITY, r + 1, 1).integers(self.clients, size=1)
        return available

    def chances(self) -> list[np.ndarray]:
        """Return the probability that each client is available, [M], in each of some rounds that represent all rounds."""
        return [np.ones(self.clients)] if self.pattern is None else [*self.pattern.chances(self._groups)]

    def ages(self, r: int) -> np.ndarray:
        """Return how many rounds old the message is that each client answers in round r, [M]."""
        if self.late == 0 or isinstance(self.late, list):
            return np.broadcast_to(self.late, self.clients)
        return keyed_rng(self._seed, Purpose.LATE, r + 1).integers(self.late + 1, size=self.clients)

    def _uniform(self, r: int) -> np.ndarray:
        """Return a number in [0, 1) for each client in round r, [M]. A client's does not depend on the number of clients."""
        return keyed_rng(self._seed, Purpose.AVAILABILITY, r + 1).random(self.clients)


def _groups(pattern: Pattern | None, problem: Problem, seed: int) -> np.ndarray:
    """Return the group of each client, [M]. Sizes of groups differ by at most one, unless the pattern lists the groups."""
    M = problem.clients
    if pattern is None or isinstance(pattern, Markov):
        return np.arange(M)
    if isinstance(pattern.groups, list):
        return np.array(pattern.groups)
    order = keyed_rng(seed, Purpose.AVAILABILITY).permutation(M)  # round 0 is no round's
    if pattern.by == "label":
        order = np.argsort(_usual_labels(problem), kind="stable")
    groups = np.empty(M, dtype=int)
    groups[order] = np.arange(M) * (pattern.groups or M) // M
    return groups


def _usual_labels(problem: Problem) -> np.ndarray:
    """Return the most frequent label of each client, [M]."""
    labels = problem.labels
    if labels is None:
        raise UserError(
            "participation.pattern.by=label: this problem has no labels; use by: random, or list each client's group"
        )
    return np.array([np.bincount(labels[rows]).argmax() for rows in problem.splits["train"]])
