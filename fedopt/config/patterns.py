"""Availability patterns: which clients are available in a round.

`participation.pattern` takes one of these patterns, or null. The cohort of a round is sampled from the available clients.

    'participation.pattern={kind: cyclic, groups: 2, by: label}'
    'participation.pattern={kind: markov, on: 0.1, off: 0.3}'
    'participation.pattern={kind: diurnal, share: 0.3, depth: 0.8, period: 24}'
"""

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt, model_validator
from pydantic.dataclasses import dataclass

from fedopt.config.build import STRICT

Groups = Annotated[int, Field(ge=2)] | Annotated[list[NonNegativeInt], Field(min_length=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Shares = Share | Annotated[list[Share], Field(min_length=1)]  # one number for all clients, or one for each
DAY = 100  # the number of times per day at which `Diurnal.chances` evaluates the probability
Uniform = Callable[[int], np.ndarray]  # round -> one uniform random number in [0, 1) per client, [M]


@dataclass(frozen=True, config=STRICT)
class Cyclic:
    """Several groups of clients are available in turn, one at a time [Eichner et al. 2019; Cho et al. 2023].

    Args:
        groups: The number of groups, or a list with the index of each client's group, from 0.
        by: How clients are assigned to groups. ``random``: at random. ``label``: clients are sorted by their most frequent
            class and split into groups of equal size.
        stay: The number of consecutive rounds in which a group is available.
    """

    groups: Groups
    by: Literal["random", "label"] = "random"
    stay: PositiveInt = 1
    kind: Literal["cyclic"] = "cyclic"

    @model_validator(mode="after")
    def _one_rule(self) -> "Cyclic":
        """Refuse groups that contradict ``by``."""
        _check_groups(self.groups, self.by)
        return self

    def available(self, r: int, groups: np.ndarray, uniform: Uniform) -> np.ndarray:
        """Return whether each client is available in round r.

        Args:
            r: The index of the round.
            groups: The group of each client, shape ``[M]``.
            uniform: A source of random numbers, which is not used.

        Returns:
            Booleans, shape ``[M]``.
        """
        return groups == r // self.stay % (groups.max() + 1)

    def chances(self, groups: np.ndarray) -> list[np.ndarray]:
        """Return the clients' probabilities of being available, which are 0 or 1, for each group that is available.

        Args:
            groups: The group of each client, shape ``[M]``.

        Returns:
            For each group, an array of shape ``[M]`` for the rounds in which this group is available.
        """
        return [groups == g for g in range(groups.max() + 1)]


@dataclass(frozen=True, config=STRICT)
class Markov:
    """Each client's availability is an independent Markov chain with two states, started in its stationary distribution.

    On average a client is available in the fraction on / (on + off) of the rounds, for 1 / off consecutive rounds. With few
    clients the fraction is larger and the periods are shorter, since one client is sampled in rounds in which no client is
    available.

    Args:
        on: The probability that an unavailable client is available in the next round: one number, or one for each client.
        off: The probability that an available client is unavailable in the next round: one number, or one for each client.
    """

    on: Shares
    off: Shares
    kind: Literal["markov"] = "markov"

    def available(self, r: int, groups: np.ndarray, uniform: Uniform) -> np.ndarray:
        """Return whether each client is available in round r.

        The random number of round k determines the state in round k for each of the two possible states in round k - 1. These
        maps are composed backwards from round r until the earlier state no longer matters, so that no state has to be stored
        between rounds.

        Args:
            r: The index of the round.
            groups: An array of shape ``[M]``, of which only the length is used.
            uniform: Returns the uniform random numbers of a round, shape ``[M]``.

        Returns:
            Booleans, shape ``[M]``.
        """
        on, off = np.asarray(self.on), np.asarray(self.off)
        if_off, if_on, k = np.zeros(len(groups), bool), np.ones(len(groups), bool), r
        while k > 0 and (if_off != if_on).any():
            u, k = uniform(k), k - 1
            if_off, if_on = np.where(u < on, if_on, if_off), np.where(u < 1 - off, if_on, if_off)
        return np.where(uniform(0) < on / (on + off), if_on, if_off)

    def chances(self, groups: np.ndarray) -> list[np.ndarray]:
        """Return the clients' stationary probabilities of being available: a list with one array of shape ``[M]``."""
        return [np.broadcast_to(np.asarray(self.on) / np.add(self.on, self.off), len(groups))]


@dataclass(frozen=True, config=STRICT)
class Diurnal:
    """In round r, client i is available with the probability share (1 + depth sin(2 pi (r / period + phase_i))).

    Args:
        share: The mean probability: one number, or one for each client.
        depth: The amplitude of the probability, relative to its mean.
        period: The number of rounds per day.
        groups: The number of groups (such as time zones), or a list with the index of each client's group, from 0. Group g of
            G groups has the phase g / G. None: each client is a group.
        by: How clients are assigned to groups. ``random``: at random. ``label``: clients are sorted by their most frequent
            class and split into groups of equal size.
    """

    share: Shares
    depth: Annotated[float, Field(ge=0, le=1)]
    period: Annotated[float, Field(ge=2)]
    groups: Groups | None = None
    by: Literal["random", "label"] = "random"
    kind: Literal["diurnal"] = "diurnal"

    @model_validator(mode="after")
    def _probabilities(self) -> "Diurnal":
        """Refuse probabilities above 1, and groups that contradict ``by``."""
        if np.max(self.share) * (1 + self.depth) > 1:
            raise ValueError("share * (1 + depth) must be at most 1, since it is a probability; reduce share or depth")
        _check_groups(self.groups, self.by)
        return self

    def available(self, r: int, groups: np.ndarray, uniform: Uniform) -> np.ndarray:
        """Return whether each client is available in round r.

        Args:
            r: The index of the round.
            groups: The group of each client, shape ``[M]``.
            uniform: Returns the uniform random numbers of a round, shape ``[M]``.

        Returns:
            Booleans, shape ``[M]``.
        """
        return uniform(r) < self._chance(r, groups)

    def chances(self, groups: np.ndarray) -> list[np.ndarray]:
        """Return the clients' probabilities of being available, in each round of a day.

        If the period is longer than `DAY` or not a whole number, they are returned for `DAY` times of the day.

        Args:
            groups: The group of each client, shape ``[M]``.

        Returns:
            For each of the rounds or times, an array of shape ``[M]``.
        """
        rounds = int(self.period) if self.period.is_integer() and self.period <= DAY else DAY
        return [self._chance(k * self.period / rounds, groups) for k in range(rounds)]

    def _chance(self, r: float, groups: np.ndarray) -> np.ndarray:
        """Return each client's probability of being available at time ``r`` (in rounds), shape ``[M]``."""
        phase = groups / (groups.max() + 1)
        return np.asarray(self.share) * (1 + self.depth * np.sin(2 * np.pi * (r / self.period + phase)))


def _check_groups(groups: int | list[int] | None, by: str) -> None:
    """Raise ValueError if the fields ``groups`` and ``by`` of an availability pattern cannot be used together.

    Args:
        groups: The number of groups, or the index of each client's group. None: each client is a group.
        by: How clients are assigned to groups, ``random`` or ``label``.
    """
    if isinstance(groups, list) and by == "label":
        raise ValueError("by=label and a list of groups cannot be combined; give the number of groups")
    if isinstance(groups, list) and len({*groups}) <= max(groups):
        raise ValueError("groups must be numbered 0, 1, ..., and each group needs a client; correct the list")


def _refuse_other(value: object) -> object:
    """Return the value of `participation.pattern` unchanged, or raise ValueError if it cannot be a pattern."""
    if not isinstance(value, dict | Kinds):
        raise ValueError("must be null or a pattern, such as {kind: cyclic, groups: 2}; fedopt help KEY lists all")
    return value


Kinds = Cyclic | Markov | Diurnal
Pattern = Annotated[
    Annotated[Kinds, Field(discriminator="kind")], BeforeValidator(_refuse_other, json_schema_input_type=Kinds)
]
