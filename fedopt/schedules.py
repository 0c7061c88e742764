"""Step sizes as functions of the round: a number, or one of the schedules below, in any `algo.*` key that is a step size.

algo.alpha=0.05
'algo.alpha={kind: inverse_power, initial: 0.1, power: 0.5}'
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from pydantic.dataclasses import dataclass

_config = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_config)
class Constant:
    """value, in every round."""

    value: NonNegativeFloat
    kind: Literal["constant"] = "constant"

    def __call__(self, r: int) -> float:
        return self.value


@dataclass(frozen=True, config=_config)
class InversePower:
    """initial / (1 + r / delay)^power."""

    initial: NonNegativeFloat
    power: NonNegativeFloat = 1.0
    delay: PositiveFloat = 1.0
    kind: Literal["inverse_power"] = "inverse_power"

    def __call__(self, r: int) -> float:
        return self.initial / (1 + r / self.delay) ** self.power


@dataclass(frozen=True, config=_config)
class Exponential:
    """initial * decay^r."""

    initial: NonNegativeFloat
    decay: Annotated[float, Field(gt=0, le=1)]
    kind: Literal["exponential"] = "exponential"

    def __call__(self, r: int) -> float:
        return self.initial * self.decay**r


@dataclass(frozen=True, config=_config)
class Piecewise:
    """values[j] from round boundaries[j-1] on; one value more than there are boundaries."""

    values: list[NonNegativeFloat]
    boundaries: list[PositiveInt]
    kind: Literal["piecewise"] = "piecewise"

    @model_validator(mode="after")
    def _check(self) -> "Piecewise":
        if len(self.values) != len(self.boundaries) + 1 or sorted(set(self.boundaries)) != self.boundaries:
            raise ValueError("piecewise needs increasing boundaries and one value more than boundaries")
        return self

    def __call__(self, r: int) -> float:
        return self.values[sum(r >= boundary for boundary in self.boundaries)]


def _number_is_constant(value: object) -> object:
    return {"kind": "constant", "value": value} if isinstance(value, (int, float, str)) else value


Schedule = Annotated[
    Annotated[Constant | InversePower | Exponential | Piecewise, Field(discriminator="kind")],
    BeforeValidator(_number_is_constant),
]
