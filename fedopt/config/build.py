"""The parts of a config that every run has, and how a config node becomes an object: types and ranges are checked here."""

import dataclasses
import traceback
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any, NotRequired, TypeVar, get_type_hints

from pydantic import (
    ConfigDict,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import is_pydantic_dataclass
from typing_extensions import TypedDict

from fedopt.errors import UserError, WrongKeys, first_line, is_own, line_of, nearest

MOST = 10**9  # of whole numbers, but for a seed and what a budget counts: the product of two fits into 64 bits

_config = ConfigDict(extra="forbid", allow_inf_nan=False)
T = TypeVar("T")


def build(cls: type[T], node: Any, where: str = "", **given: Any) -> T:
    """An object of a dataclass from its config node, whose values are held against the fields' types.

    where: the node's dotted key, empty for the whole config. given: fields that have no key. Raises UserError, which names the key,
    the value and what is allowed.
    """
    return _made(cls, _values(cls, node, where, *given), where, **given)


def build_target(node: dict[str, Any], where: str) -> Any:
    """An object of the class that the node's `_target_` names. Raises UserError, as `target` and `build`."""
    return build(*target(node, where), where)


def builder(node: dict[str, Any], where: str, *given: str) -> Callable[..., Any]:
    """As `build_target`, in two steps: values are checked now, and the object is built when the given fields are."""
    cls, keys = target(node, where)
    return partial(_made, cls, _values(cls, keys, where, *given), where)


def _values(cls: Any, node: Any, where: str, *given: str) -> Any:
    values = checked(cls, node, where, *given)
    _refuse_odd_numbers(node, values, where)
    return values


def _made(cls: type[T], values: Any, where: str, **given: Any) -> T:
    if isinstance(values, cls):
        return values
    try:
        return cls(**given, **values)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


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
    if "__main__" in module.split("."):
        raise UserError(f"{said} cannot be imported: it is a program, which importing it would run")
    try:
        found = import_module(module)
        if hasattr(found, name):
            return getattr(found, name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            why = f"there is no module {error.name}, installed or in a folder of PYTHONPATH: type PYTHONPATH=. before the "
            why += f"command where {error.name}.py lies here"
        else:
            own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
            why = "".join(f"{line_of(frame.filename, frame.lineno)}: " for frame in own[-1:])
            why += f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{said} cannot be imported: {why}") from None
    raise UserError(f"{said} cannot be imported: {module} has no {name}{nearest(name, dir(found))}")


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
        if any(e["type"] in KEYS and len(e["loc"]) == 1 for e in errors[:3]):
            keys = ", ".join(fields) or "none"
            if not cls.__module__.startswith("fedopt."):  # a user's
                raise WrongKeys(
                    f"{said}; the keys are the fields of {cls.__module__}.{cls.__name__}, {keys}", where
                ) from None
            if "did you mean" not in said:
                said += f"; the keys are {keys}"
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
