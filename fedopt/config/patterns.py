"""Patterns of availability: which clients are there in a round.

`participation.pattern` takes one of these, or null. The cohort of a round is drawn among the clients that are there.

    'participation.pattern={kind: cyclic, groups: 2, by: label}'
    'participation.pattern={kind: markov, on: 0.1, off: 0.3}'
    'participation.pattern={kind: diurnal, share: 0.3, depth: 0.8, period: 24}'
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator
from pydantic.dataclasses import dataclass

_config = ConfigDict(extra="forbid", allow_inf_nan=False)
Groups = Annotated[int, Field(ge=2)] | Annotated[list[NonNegativeInt], Field(min_length=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Shares = Share | Annotated[list[Share], Field(min_length=1)]  # of all clients, or of each
DAY = 100  # times of a day, see `Diurnal.chances`
Uniform = Callable[[int], np.ndarray]  # numbers in [0, 1) of all clients in a round, [M]


@dataclass(frozen=True, config=_config)
class Cyclic:
    """One of several groups is there at a time, in turn [Eichner et al. 2019; Cho et al. 2023].

    Args:
        groups: The number of groups, or the group of each client, counted from 0.
        by: What the clients of a group have in common. ``random``: nothing. ``label``: clients are sorted by their most
            frequent class, and cut into groups of equal size.
        stay: The number of rounds that a group stays.
    """

    groups: Groups
    by: Literal["random", "label"] = "random"
    stay: PositiveInt = 1
    kind: Literal["cyclic"] = "cyclic"

    @model_validator(mode="after")
    def _one_rule(self) -> "Cyclic":
        _check_groups(self.groups, self.by)
        return self

    def there(self, r: int, groups: np.ndarray, uniform: Uniform) -> np.ndarray:
        """Return whether each client is there in round r, ``[M]``. groups: ``[M]``. ``uniform`` is not used."""
        return groups == r // self.stay % (groups.max() + 1)

    def chances(self, groups: np.ndarray) -> list[np.ndarray]:
        """Return the probability that each client is there, ``[M]``, in each of some rounds that stand for all."""
        return [groups == g for g in range(groups.max() + 1)]


@dataclass(frozen=True, config=_config)
class Markov:
    """Each client comes and goes as a chain of two states, independently of others. It starts in its stationary state.

    In the mean a client is there in the share on / (on + off) of rounds, for 1 / off rounds at a time. With few clients stays are
    shorter and the share is larger, since one client is drawn in rounds in which all are away.

    Args:
        on: The probability that a client that is away is there in the next round; one number, or one for each client.
        off: The probability that a client that is there is away in the next round, likewise.
    """

    on: Shares
    off: Shares
    kind: Literal["markov"] = "markov"

    def there(self, r: int, groups: np.ndarray, uniform: Uniform) -> np.ndarray:
        """Return whether each client is there in round r, ``[M]``. ``groups`` is not used.

        A client's number in round k says whether it is there, for either state in round k - 1. These maps are composed from
        round r backwards, until the earlier state does not matter. So nothing need be kept between rounds.
        """
        on, off = np.asarray(self.on), np.asarray(self.off)
        if_away, if_there, k = np.zeros(len(groups), bool), np.ones(len(groups), bool), r
        while k > 0 and (if_away != if_there).any():
            u, k = uniform(k), k - 1
            if_away, if_there = np.where(u < on, if_there, if_away), np.where(u < 1 - off, if_there, if_away)
        return np.where(uniform(0) < on / (on + off), if_there, if_away)

    def chances(self, groups: np.ndarray) -> list[np.ndarray]:
        """Return as `Cyclic.chances`."""
        return [np.broadcast_to(np.asarray(self.on) / np.add(self.on, self.off), len(groups))]


@dataclass(frozen=True, config=_config)
class Diurnal:
    """Client i is there with the probability share (1 + depth sin(2 pi (r / period + phase_i))) in round r.

    Args:
        share: The mean probability; one number, or one for each client.
        depth: How much the probability changes, relative to its mean.
        period: The rounds of a day.
        groups: As in `Cyclic`, such as time zones. Group g of G has the phase g / G. None: each client is a group.
        by: As in `Cyclic`.
    """

    share: Shares
    depth: Annotated[float, Field(ge=0, le=1)]
    period: Annotated[float, Field(ge=2)]
    groups: Groups | None = None
    by: Literal["random", "label"] = "random"
    kind: Literal["diurnal"] = "diurnal"

    @model_validator(mode="after")
    def _probabilities(self) -> "Diurnal":
        if np.max(self.share) * (1 + self.depth) > 1:
            raise ValueError(
                "share * (1 + depth) must be at most 1, since it is a probability; make share or depth smaller"
            )
        _check_groups(self.groups, self.by)
        return self

    def there(self, r: int, groups: np.ndarray, uniform: Uniform) -> np.ndarray:
        """Return whether each client is there in round r, ``[M]``. groups: ``[M]``."""
        return uniform(r) < self._chance(r, groups)

    def chances(self, groups: np.ndarray) -> list[np.ndarray]:
        """Return as `Cyclic.chances`: those of a day's rounds, or of `DAY` times of a day that is longer or no whole number."""
        rounds = int(self.period) if self.period.is_integer() and self.period <= DAY else DAY
        return [self._chance(k * self.period / rounds, groups) for k in range(rounds)]

    def _chance(self, r: float, groups: np.ndarray) -> np.ndarray:
        phase = groups / (groups.max() + 1)
        return np.asarray(self.share) * (1 + self.depth * np.sin(2 * np.pi * (r / self.period + phase)))


def _check_groups(groups: Any, by: str) -> None:
    if isinstance(groups, list) and by == "label":
        raise ValueError("by=label and a list of groups cannot be combined; give the number of groups")
    if isinstance(groups, list) and len({*groups}) <= max(groups):
        raise ValueError("groups must be numbered 0, 1, ..., each with a client")


def _refuse_other(value: object) -> object:
    if not isinstance(value, dict | Kinds):
        raise ValueError(
            "must be null, or a pattern such as {kind: cyclic, groups: 2}; fedopt --help lists all patterns"
        )
    return value


Kinds = Cyclic | Markov | Diurnal
Pattern = Annotated[
    Annotated[Kinds, Field(discriminator="kind")], BeforeValidator(_refuse_other, json_schema_input_type=Kinds)
]
