"""Patterns of availability: which clients are there in a round.

`participation.pattern` takes one of these, or null. The cohort of a round is drawn among the clients that are there.

    'participation.pattern={kind: cyclic, groups: 2, by: label}'
"""

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator
from pydantic.dataclasses import dataclass

_config = ConfigDict(extra="forbid", allow_inf_nan=False)
Groups = Annotated[int, Field(ge=2)] | Annotated[list[NonNegativeInt], Field(min_length=1)]
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
    def _groups_by_one_rule(self) -> "Cyclic":
        if isinstance(self.groups, list) and self.by == "label":
            raise ValueError("by=label and a list of groups cannot be combined; give the number of groups")
        if isinstance(self.groups, list) and {*self.groups} != {*range(max(self.groups) + 1)}:
            raise ValueError("groups must be numbered 0, 1, ..., each with a client")
        return self

    def there(self, r: int, groups: np.ndarray, uniform: Uniform) -> np.ndarray:
        """Return whether each client is there in round r, ``[M]``. groups: ``[M]``. ``uniform`` is not used."""
        return groups == r // self.stay % (groups.max() + 1)


def _refuse_other(value: object) -> object:
    if not isinstance(value, dict | Cyclic):
        raise ValueError(
            "must be null, or a pattern such as {kind: cyclic, groups: 2}; fedopt --help lists all patterns"
        )
    return value


Pattern = Annotated[
    Annotated[Cyclic, Field(discriminator="kind")], BeforeValidator(_refuse_other, json_schema_input_type=Cyclic)
]
