"""The parts of a config that every run has, and how a config node becomes an object: types and ranges are checked here."""

import dataclasses
import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Literal, NotRequired, TypeVar, get_type_hints

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    StrictBool,
    StrictInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass, is_pydantic_dataclass
from typing_extensions import TypedDict

from fedopt.errors import UserError, WrongKeys, nearest
from fedopt.mistakes import classes_in, is_own_class, not_imported, place

MOST = 10**9  # of whole numbers, but for a seed and what a budget counts: the product of two fits into 64 bits

_config = ConfigDict(extra="forbid", allow_inf_nan=False)
T = TypeVar("T")


@dataclass(frozen=True, config=_config)
class Budget:
    """When a run ends: at whichever limit is reached first; seconds are of training time. None is no limit."""

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

    metric: what keep=best goes by; with a target, summary.json says when the metric first reached it.
    diverged: a run whose loss, objective or distance exceeds this, or is not finite, is stopped; infinity: by what is not finite
    alone.
    """

    every: PositiveInt
    at: list[PositiveInt]
    metric: str | None
    target: float | None
    diverged: Annotated[float, Field(gt=0, allow_inf_nan=True)]

    @model_validator(mode="after")
    def _target_of_metric(self) -> "Evaluation":
        if self.metric is None and self.target is not None:
            raise ValueError(
                "eval.target goes with eval.metric: set both, or eval.target=null, also where a preset has one"
            )
        return self


@dataclass(frozen=True, config=_config)
class Participation:
    """Which clients take part in a round, and how much local work they do.

    cohort: number of clients that take part in a round, drawn uniformly without replacement; None: all of them.
    dropout: probability that a client of the cohort drops out of a round; at least one client stays.
    least: a client's local steps (epochs where the algorithm has those) in a round are drawn uniformly from this number to the
    algorithm's own; None: all clients take the algorithm's number.
    work: fixed numbers of local steps or epochs instead, one for each client; "once": what a client draws from `least` is the same
    in all rounds; None: not fixed.
    stragglers: fraction of all clients, drawn anew each round, that take no local step in it; they answer all the same.
    """

    cohort: PositiveInt | None = None
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    least: PositiveInt | None = None
    work: list[PositiveInt] | Literal["once"] | None = None
    stragglers: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _one_kind(self) -> "Participation":
        if self.work == "once" and self.least is None:
            raise ValueError("work=once draws from least, which is not set")
        if self.least is not None and isinstance(self.work, list):
            raise ValueError("give least or work, and set the other to null")
        return self

    @property
    def uneven(self) -> bool:
        """Whether local work is not the algorithm's number for everyone."""
        return (self.least, self.work, self.stragglers) != (None, None, 0)


@dataclass(frozen=True, config=_config)
class Hardware:
    """Where a run computes, and with what numbers.

    device: cpu, cuda, cuda:1, ...; threads: of a process, None for OMP_NUM_THREADS, or else all cores, shared among parallel jobs.
    engine: auto, vectorised or one_by_one; stack: clients that the vectorised engine runs at once, None for what fits the cache.
    tf32: TensorFloat-32 matrix products on GPUs; autocast: the type of the products and convolutions of networks, None for dtype.
    deterministic: only operations that give the same bits every time.
    """

    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,4})?)$")]
    dtype: Literal["float32", "float64"]
    engine: Literal["auto", "vectorised", "one_by_one"]
    stack: PositiveInt | None
    threads: Annotated[int, Field(ge=1, le=1024)] | None
    tf32: bool
    autocast: Literal["bfloat16"] | None
    deterministic: bool

    @model_validator(mode="after")
    def _single_precision(self) -> "Hardware":
        if self.autocast and self.dtype != "float32":
            raise ValueError(f"autocast={self.autocast} goes with dtype=float32")
        return self


@dataclass(frozen=True, config=_config)
class Settings:
    """The top level of a config.

    seed: of all random draws; resume: go on with the run in output_dir; output_dir: of the run, None for a folder under outputs/
    named by the overrides; source: the key `from`, the folder of a run at whose checkpoint a new one begins, None for the start.
    algo, problem, partitioner, dataset, logger: the nodes that `build_target` makes objects of.
    keep: of which evaluation the checkpoint has the variables, besides the last state: none, or the best one by eval.metric.
    """

    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)]
    resume: StrictBool
    output_dir: str | None
    source: Annotated[Annotated[str, Field(min_length=1)] | None, Field(alias="from")]
    budget: Budget
    eval: Evaluation
    hardware: Hardware
    participation: Participation
    algo: dict[str, Any]
    problem: dict[str, Any]
    partitioner: dict[str, Any]
    dataset: dict[str, Any]
    logger: dict[str, Any]
    keep: Literal["last", "best"] = "last"

    @model_validator(mode="after")
    def _best_by_metric(self) -> "Settings":
        if self.keep == "best" and self.eval.metric is None:
            raise ValueError("keep=best: goes by eval.metric, which is not set; name one of the problem's metrics")
        return self


def cores() -> int:
    """The number of CPU cores that this process may use; on macOS, which does not say, all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int:
    """The bytes of memory that the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def build(cls: type[T], node: Any, where: str = "", **given: Any) -> T:
    """An object of a dataclass from its config node, whose values are held against the fields' types.

    where: the node's dotted key, empty for the whole config. given: fields that have no key. Raises UserError, which names the key,
    the value and what is allowed.
    """
    values = checked(cls, node, where, *given)
    _refuse_odd_numbers(node, values, where)
    if isinstance(values, cls):
        return values
    try:
        return cls(**given, **values)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def build_target(node: dict[str, Any], where: str, **given: Any) -> Any:
    """An object of the class that the node's `_target_` names. given: as of `build`. Raises UserError, as `target` and `build`."""
    return build(*target(node, where), where, **given)


# What a class must define to be built for a key: nothing else that a sent file names is ever called
INTERFACES = {
    "algo": ("solves", "init", "step", "output"),
    "problem": ("start", "sample", "evaluate"),
    "dataset": ("load",),
    "partitioner": ("__call__",),
    "logger": ("start",),
}


def target(node: dict[str, Any], where: str) -> tuple[type, dict[str, Any]]:
    """The class that the node's `_target_` names, and the node's keys but for those that begin with an underscore.

    Raises UserError for a class that cannot be built.
    """
    if "_target_" not in node:
        raise UserError(f"{where}._target_: is missing, the class to build")
    said = f"{where}._target_={node['_target_']}"
    cls = imported(node["_target_"], said)
    defined = {name for base in getattr(cls, "__mro__", ()) for name in vars(base)}
    lacking = sorted({*getattr(cls, "__abstractmethods__", ())} | {*INTERFACES[where]} - defined)
    own = vars(cls) if isinstance(cls, type) else {}
    undecorated = "__dataclass_fields__" not in own and own.get("__annotations__")
    if lacking or undecorated or not hasattr(cls, "__dataclass_fields__"):
        why = f"does not define {', '.join(lacking)}" if lacking else "is not a dataclass"
        if "solves" in lacking:
            why += "; solves: ClassVar = (Minimisation,) says which classes of problems it is for"
        raise UserError(f"{said}: {cls.__name__} {why}")
    return cls, {key: value for key, value in node.items() if not key.startswith("_")}


def imported(path: Any, said: str) -> Any:
    """What a dotted path names in a module that is installed or on PYTHONPATH. said: the key and the path, for messages."""
    module, _, name = str(path).rpartition(".")
    try:
        if "__main__" in module.split("."):
            raise UserError(f"{said}: is a program, which importing it would run")
        found = import_module(module)
        if hasattr(found, name):
            return getattr(found, name)
    except (Exception, SystemExit) as error:
        raise UserError(f"{said} cannot be imported: {not_imported(module, error)}") from None
    known = classes_in(found)
    has = f"its classes are {', '.join(known)}" if known else "it has no classes"
    raise UserError(f"{said} cannot be imported: {module} has no {name}{nearest(name, known)}; {has}")


def checked(cls: Any, node: Any, where: str, *given: str) -> Any:
    """The values of a dataclass' fields from its config node, of their types, by name; of a pydantic dataclass, the object.

    given: fields that have no key. Raises UserError, as `build`.
    """
    try:
        return typed(cls, *given).validate_python(node)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        fields = [f.name for f in dataclasses.fields(cls) if f.init and f.name not in given]
        said = "; ".join(_message(e, where, fields) for e in errors[:3])
        wrong_keys = any(e["type"] in KEYS and len(e["loc"]) == 1 for e in errors[:3])
        if wrong_keys and is_own_class(cls):
            keys = f"the keys are the fields of {cls.__name__} ({place(cls)}), {', '.join(fields) or 'none'}"
            raise WrongKeys(f"{said}; {keys}", where) from None
        if wrong_keys and "did you mean" not in said:
            said += f"; the keys are {', '.join(fields) or 'none'}"
        raise UserError(said) from None


def typed(cls: Any, *given: str) -> TypeAdapter[Any]:
    """The type of a dataclass' config node. given: fields that have no key."""
    return TypeAdapter(cls if is_pydantic_dataclass(cls) else _keys_of(cls, *given))


def _refuse_odd_numbers(node: dict[str, Any], values: Any, where: str) -> None:
    """Raises UserError for true or false where a number is wanted, which pydantic takes for 1 or 0, and for counts above `MOST`."""
    for key, given in node.items():
        taken = values.get(key, given) if isinstance(values, dict) else getattr(values, key, given)
        name = f"{where}.{key}" if where else key
        if isinstance(given, bool) and not isinstance(taken, bool):
            raise UserError(f"{name}={str(given).lower()}: must be a number, not true or false")
        if where != "budget" and name != "seed":
            counts = taken if isinstance(taken, list) else [taken]
            if any(isinstance(count, int) and abs(count) > MOST for count in counts):
                raise UserError(f"{name}: must be at most {MOST}")
        if isinstance(given, dict) and not isinstance(taken, dict):  # which no type says anything of yet
            _refuse_odd_numbers(given, taken, name)


@cache
def _keys_of(cls: Any, *given: str) -> Any:
    """The fields of a dataclass that have keys, as the type of a config node."""
    hints = get_type_hints(cls, include_extras=True)
    fields = [f for f in dataclasses.fields(cls) if f.init and f.name not in given]
    keys = {f.name: hints[f.name] if f.default is dataclasses.MISSING else NotRequired[hints[f.name]] for f in fields}
    typed = TypedDict(cls.__name__, keys)  # type: ignore[misc]
    typed.__pydantic_config__ = ConfigDict(**_config, arbitrary_types_allowed=True)  # type: ignore[attr-defined]
    return typed


KEYS = ("missing", "unexpected_keyword_argument", "extra_forbidden")  # what pydantic says of keys
# Parts of a path that are no keys of the user's: which schedule or type pydantic tried
_INSIDE = {"constant", "growing", "inverse_power", "exponential", "piecewise", "str", "dict[str,any]"}


def _message(error: Any, where: str, fields: Sequence[str]) -> str:
    """fields: what `where` has keys for."""
    loc = error["loc"][:-1] if error["loc"][-2:] == ("constant", "value") else error["loc"]  # a number is a schedule
    path = [
        str(part)
        for part in loc
        if str(part) not in _INSIDE and not str(part).startswith(("function-", "list[", "constrained-"))
    ]
    key = ".".join([where, *path] if where else path)
    text = error["msg"].removeprefix("Value error, ")
    text = text[0].lower() + text[1:]
    if error["type"] == "missing":
        return f"{key}: is missing"
    if error["type"] in KEYS:
        near = nearest(path[0], list(fields)) if len(path) == 1 else ""
        return f"{key}: there is no such key{near}"
    value = error["input"]
    if not key:
        return text
    if error["type"].startswith("union_tag"):
        given = f"={value['kind']}" if "kind" in value else ""
        return f"{key}.kind{given}: must be {error['ctx'].get('expected_tags', 'given')}"
    if error["type"] == "dataclass_type":
        return f"{key}={value}: is set by its keys, {key}.KEY=VALUE"
    return f"{key}: {text}" if isinstance(value, dict) or "ArgsKwargs" in str(type(value)) else f"{key}={value}: {text}"
