"""Step sizes and local work as functions of the round.

A key that is a step size, such as `algo.alpha`, takes a number or one of the schedules below. A key that is local work, such
as `algo.tau`, takes a number of steps or epochs, or a schedule.

    algo.alpha=0.05
    'algo.alpha={kind: inverse_power, initial: 0.1, power: 0.5}'
    algo.tau=5
    'algo.tau=5 epochs'
    'algo.tau={kind: growing, tau: 20}'
"""

import re
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from pydantic.dataclasses import dataclass

from fedopt.config.build import STRICT
from fedopt.decimals import exact

MOST_STEPS = 10**6  # the largest number of steps, or of epochs, of a client in a round
Steps = Annotated[float, Field(gt=0, le=MOST_STEPS)]
Size = Annotated[float, Field(ge=0, le=1e30)]  # a step size, within the range of float32


@dataclass(frozen=True, config=STRICT)
class Constant:
    """The same step size in every round.

    Args:
        value: The step size.
    """

    value: Size
    kind: Literal["constant"] = "constant"

    def __call__(self, r: int) -> float:
        """Return the step size in round r = 0, 1, ...."""
        return self.value


@dataclass(frozen=True, config=STRICT)
class InversePower:
    """Step size ``initial / (1 + r / delay)^power`` in round r.

    Args:
        initial: The step size in round 0.
        power: The exponent.
        delay: The number of rounds after which 1 + r / delay is 2.
    """

    initial: Size
    power: NonNegativeFloat = 1.0
    delay: PositiveFloat = 1.0
    kind: Literal["inverse_power"] = "inverse_power"

    def __call__(self, r: int) -> float:
        """Return the step size in round r = 0, 1, ...."""
        return self.initial / (1 + r / self.delay) ** self.power


@dataclass(frozen=True, config=STRICT)
class Exponential:
    """Step size ``initial * decay^r`` in round r.

    Args:
        initial: The step size in round 0.
        decay: The factor from one round to the next.
    """

    initial: Size
    decay: Annotated[float, Field(gt=0, le=1)]
    kind: Literal["exponential"] = "exponential"

    def __call__(self, r: int) -> float:
        """Return the step size in round r = 0, 1, ...."""
        return self.initial * self.decay**r


@dataclass(frozen=True, config=STRICT)
class Piecewise:
    """Step size ``values[j]`` from round ``boundaries[j-1]`` to round ``boundaries[j] - 1``.

    Args:
        boundaries: The rounds in which the step size changes, in increasing order.
        values: The step sizes, one more than boundaries. The first applies from round 0, the last one until the end.
    """

    values: list[Size]
    boundaries: list[PositiveInt]
    kind: Literal["piecewise"] = "piecewise"

    @model_validator(mode="after")
    def _check(self) -> "Piecewise":
        """Refuse boundaries that do not increase, or whose number does not match the number of values."""
        if len(self.values) != len(self.boundaries) + 1 or sorted(set(self.boundaries)) != self.boundaries:
            raise ValueError("a piecewise schedule needs increasing boundaries and one more value than boundaries")
        return self

    def __call__(self, r: int) -> float:
        """Return the step size in round r = 0, 1, ...."""
        return self.values[sum(r >= boundary for boundary in self.boundaries)]


def _number_is_constant(value: object) -> object:
    """Return the config node of a constant schedule for a number. A schedule is returned unchanged.

    Raises:
        ValueError: The value is neither a number nor a schedule.
    """
    if isinstance(value, dict | StepSize):
        return value
    try:
        return {"kind": "constant", "value": float(value)}  # type: ignore[arg-type]
    except (ValueError, TypeError):
        example = "{kind: inverse_power, initial: 0.1, power: 0.5}"
        raise ValueError(f"must be a number, or a schedule such as {example}; fedopt help KEY lists all") from None


StepSize = Constant | InversePower | Exponential | Piecewise
Schedule = Annotated[
    Annotated[StepSize, Field(discriminator="kind")],
    BeforeValidator(_number_is_constant, json_schema_input_type=Size | StepSize),
]


def values(schedule: StepSize) -> list[float]:
    """Return some values of a schedule, among them its largest value, and 0 if the schedule reaches 0.

    Checks of the range of a step size use them. They are all values of a piecewise schedule, and the first value of any other
    schedule, which is its largest.

    Args:
        schedule: The schedule of a step size.
    """
    return schedule.values if isinstance(schedule, Piecewise) else [schedule(0)]


@dataclass(frozen=True, config=STRICT)
class Fixed:
    """The same local work in every round and for every client.

    Args:
        value: The number of steps or epochs. With 0.5 epochs, a client stops halfway through a pass over its examples.
        unit: ``steps`` or ``epochs``.
    """

    value: Annotated[int | float, Field(gt=0, le=MOST_STEPS)]
    kind: Literal["constant"] = "constant"
    unit: Literal["steps", "epochs"] = "steps"

    @model_validator(mode="after")
    def _check(self) -> "Fixed":
        """Return self. Raise ValueError if a number of steps is not whole."""
        if self.unit == "steps" and self.value % 1:
            raise ValueError("must be a whole number of steps, or epochs, such as '0.5 epochs'")
        return self

    def __call__(self, r: int, clients: int) -> int | float:
        """Return the number of steps or epochs in round r, which is the same for all clients."""
        return self.value


@dataclass(frozen=True, config=STRICT)
class Growing:
    """Local work that grows with the round: ``ceil(tau (r + 1)^power)`` steps in round r, at most a million.

    Args:
        tau: One number for all clients, or a list. Client i takes entry i; the list is repeated if it is too short.
        power: The exponent.
    """

    tau: Steps | Annotated[list[Steps], Field(min_length=1)]
    power: Annotated[float, Field(ge=0, le=10)] = 0.5
    kind: Literal["growing"] = "growing"
    unit: Literal["steps"] = "steps"

    def __call__(self, r: int, clients: int) -> int | np.ndarray:
        """Return the number of steps in round r: one number for all clients, or an array of shape [clients] if tau is a list.

        Args:
            r: The index of the round.
            clients: The number of clients.
        """
        amounts = exact(np.resize(self.tau, clients) * (r + 1) ** self.power)
        steps = np.ceil(amounts).clip(max=MOST_STEPS).astype(np.int64)
        return steps if isinstance(self.tau, list) else int(steps[0])


Work = Fixed | Growing


def _parsed(value: object) -> object:
    """Return the config node of local work that is written as 5, '5 steps', '5 epochs' or '0.5 epochs'.

    A dict is returned unchanged, since it is a schedule.

    Raises:
        ValueError: The value has none of these forms.
    """
    if isinstance(value, dict):
        return value
    form = r"([1-9][0-9]*|[0-9]*\.[0-9]+) *(steps?|epochs?)?"
    found = re.fullmatch(form, str(value)) if isinstance(value, int | str) else None
    unit = "epochs" if found and (found[2] or "").startswith("epoch") else "steps"
    if found is None or (unit == "steps" and "." in found[1]):
        raise ValueError(
            "must be a number of steps, such as 5, a number of epochs, such as '0.5 epochs', or a schedule"
        )
    return {"kind": "constant", "value": float(found[1]) if "." in found[1] else int(found[1]), "unit": unit}


LocalWork = Annotated[
    Annotated[Work, Field(discriminator="kind")],
    BeforeValidator(_parsed, json_schema_input_type=PositiveInt | str | Work),
]
