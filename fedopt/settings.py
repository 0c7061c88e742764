"""The parts of a config that every run has, and how a config node becomes an object: types and ranges are checked here."""

import dataclasses
import os
from collections.abc import Hashable
from functools import cache
from typing import Annotated, Any, Literal, NotRequired, TypeVar, get_type_hints

from hydra.utils import get_class
from pydantic import (
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass, is_pydantic_dataclass
from typing_extensions import TypedDict

from fedopt.errors import UserError

_config = ConfigDict(extra="forbid")
T = TypeVar("T")


@dataclass(frozen=True, config=_config)
class Budget:
    """When a run ends: at whichever is reached first. null is no limit."""

    rounds: NonNegativeInt | None
    comm_rounds: NonNegativeInt | None
    bytes: NonNegativeInt | None
    seconds: PositiveFloat | None

    @model_validator(mode="after")
    def _some_limit(self) -> "Budget":
        if {self.rounds, self.comm_rounds, self.bytes, self.seconds} == {None}:
            raise ValueError("set at least one of rounds, comm_rounds, bytes, seconds")
        return self

    def spent(self, rounds: int, comm_rounds: int, bytes: int, seconds: float) -> float:
        """The largest fraction used of any limit; the run ends at 1."""
        used = [(rounds, self.rounds), (comm_rounds, self.comm_rounds), (bytes, self.bytes), (seconds, self.seconds)]
        return max((spent / limit if limit else 1.0) for spent, limit in used if limit is not None)


@dataclass(frozen=True, config=_config)
class Evaluation:
    """Rounds at which metrics are taken: 0, the last, every `every` rounds, and those in `at`.

    metric, target: summary.json says when the metric first reached the target. diverged: a run whose loss, objective or
    distance exceeds this, or is not finite, is stopped.
    """

    every: PositiveInt
    at: list[PositiveInt]
    metric: str | None
    target: float | None
    diverged: PositiveFloat

    @model_validator(mode="after")
    def _both_or_none(self) -> "Evaluation":
        if (self.metric is None) != (self.target is None):
            raise ValueError("metric and target go together")
        return self

    def due(self, round: int) -> bool:
        return round % self.every == 0 or round in self.at


@dataclass(frozen=True, config=_config)
class Participation:
    """cohort: clients that take part in a round, uniformly without replacement; null for all.

    dropout: the probability that one of them drops out of it; at least one does not.
    least: local steps, or epochs, of a client and round are uniform from this to the algorithm's number, null: always that.
    work: or fixed, a number for each client.
    stragglers: fraction of all clients that take no local step in a round, drawn anew each time; they answer all the same.
    """

    cohort: PositiveInt | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    least: PositiveInt | None = None
    work: list[PositiveInt] | None = None
    stragglers: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _one_kind(self) -> "Participation":
        if self.least is not None and self.work is not None:
            raise ValueError("give least or work, and set the other to null")
        return self

    @property
    def uneven(self) -> bool:
        return self.least is not None or self.work is not None or self.stragglers > 0


@dataclass(frozen=True, config=_config)
class Hardware:
    """device: cpu, cuda, cuda:1, ...; threads: of one process, null for all cores, shared among the jobs of a parallel sweep.

    engine: auto, vectorised or one_by_one; stack: clients that the vectorised engine runs at once, null for what fits the cache.
    tf32: TensorFloat-32 matrix products on GPUs; autocast: the type of the products and convolutions of networks, null for dtype.
    deterministic: only operations that give the same bits every time.
    """

    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")]
    dtype: Literal["float32", "float64"]
    engine: Literal["auto", "vectorised", "one_by_one"]
    stack: PositiveInt | None
    threads: PositiveInt | None
    tf32: bool
    autocast: Literal["bfloat16"] | None
    deterministic: bool

    @model_validator(mode="after")
    def _single_precision(self) -> "Hardware":
        if self.autocast and self.dtype != "float32":
            raise ValueError(f"autocast={self.autocast} goes with dtype=float32")
        return self


def cores() -> int:
    """That this process may use; macOS does not say, and all count."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def build(cls: type[T], node: Any, where: str, **given: Any) -> T:
    """An object of a dataclass from its config node, whose values are held against the fields' types. given: fields without a key.

    Raises UserError naming the key, the value and what is allowed.
    """
    checked: Any = cls
    try:
        if is_pydantic_dataclass(cls):
            return TypeAdapter(checked).validate_python(node)
        values = TypeAdapter(_keys_of(checked, *given)).validate_python(node)
    except ValidationError as error:
        raise UserError("; ".join(_message(e, where) for e in error.errors(include_url=False)[:3])) from None
    try:
        return cls(**given, **values)
    except ValueError as error:
        if given:  # of the data that were given, and not of a key
            raise
        raise UserError(f"{where}: {error}") from None


@cache
def _keys_of(cls: Hashable, *given: str) -> Any:
    """The fields of a dataclass and their types, without those that are given."""
    assert isinstance(cls, type)
    hints = get_type_hints(cls, include_extras=True)
    fields = [f for f in dataclasses.fields(cls) if f.init and f.name not in given]
    keys = {f.name: hints[f.name] if f.default is dataclasses.MISSING else NotRequired[hints[f.name]] for f in fields}
    typed = TypedDict(cls.__name__, keys)  # type: ignore[misc]
    typed.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)  # type: ignore[attr-defined]
    return typed


def build_target(node: dict[str, Any], where: str, **given: Any) -> Any:
    """An object of the class that the node's `_target_` names; keys that begin with an underscore are not its fields. given: as of
    `build`. Raises UserError."""
    if "_target_" not in node:
        raise UserError(f"{where}._target_: is missing, the class to build")
    try:
        cls = get_class(node["_target_"])
    except Exception as error:
        raise UserError(
            f"{where}._target_={node['_target_']} cannot be imported: {str(error).splitlines()[0]}"
        ) from None
    lacking = sorted(getattr(cls, "__abstractmethods__", ()))
    if lacking or not dataclasses.is_dataclass(cls):
        why = f"does not define {', '.join(lacking)}" if lacking else "is not a dataclass"
        raise UserError(f"{where}._target_={node['_target_']}: {cls.__name__} {why}")
    return build(cls, {key: value for key, value in node.items() if not key.startswith("_")}, where, **given)


# Parts of a path that are no keys of the user's: which schedule pydantic tried, and where local work has its schedule
_INSIDE = {"constant", "growing", "inverse_power", "exponential", "piecewise", "amount"}


def _message(error: Any, where: str) -> str:
    path = [
        str(part)
        for part in error["loc"]
        if str(part) not in _INSIDE and not str(part).startswith(("function-", "list[", "constrained-"))
    ]
    key = ".".join([where, *path])
    text = error["msg"].removeprefix("Value error, ")
    text = text[0].lower() + text[1:]
    if error["type"] in ("missing", "unexpected_keyword_argument", "extra_forbidden"):
        return f"{key}: {'is missing' if error['type'] == 'missing' else 'there is no such key'}"
    value = error["input"]
    return f"{key}: {text}" if isinstance(value, dict) or "ArgsKwargs" in str(type(value)) else f"{key}={value}: {text}"
