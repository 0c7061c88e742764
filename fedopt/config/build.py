"""How a config node becomes an object. Types and ranges are checked here."""

import dataclasses
import re
import traceback
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any, NotRequired, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import is_pydantic_dataclass
from typing_extensions import TypedDict

from fedopt.deprecated import removed
from fedopt.errors import UserError, first_line, is_own, line_of, nearest

MOST = 10**9  # of whole numbers, except a seed and what a budget counts: the product of two fits into 64 bits
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
T = TypeVar("T")

# What a class must define to be built for a key: nothing else that a sent file names is ever called
INTERFACES = {
    "algo": ("solves", "init", "step", "output"),
    "problem": ("start", "sample", "evaluate"),
    "dataset": ("load",),
    "partitioner": ("__call__",),
    "logger": ("start",),
}


def build(cls: type[T], node: Any, where: str = "") -> T:
    """Return an object of a dataclass, made from its config node after a check of all values against the fields' types.

    Args:
        cls: The dataclass.
        node: The node: a value for each key.
        where: The node's dotted key, for messages; empty for the top level.

    Raises:
        UserError: A key is unknown or missing, or a value is not allowed. The message names the key, the value and what is
            allowed.
    """
    return _made(cls, checked(cls, node, where), where)


def build_target(node: dict[str, Any], where: str) -> Any:
    """Return an object of the class that the node's `_target_` names, made from the node's other keys as `build` does.

    node: the config node. where: its dotted key. Raises UserError as `target` and `build` do.
    """
    return build(*target(node, where), where)


def builder(node: dict[str, Any], where: str, *given: str) -> Callable[..., Any]:
    """Check the values of a node now, and return a function that builds the object of its `_target_` later.

    Args:
        node, where: As in `build`.
        given: The names of fields that the node does not hold, such as ``world``. The returned function takes them as keyword
            arguments.

    Raises:
        UserError: As in `target` and `build`; later also if the class itself raises ValueError.
    """
    cls, keys = target(node, where)
    return partial(_made, cls, checked(cls, keys, where, *given), where)


def _made(cls: type[T], values: Any, where: str, **given: Any) -> T:
    if isinstance(values, cls):
        return values
    try:
        return cls(**given, **values)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def target(node: dict[str, Any], where: str) -> tuple[type, dict[str, Any]]:
    """Return the class that the node's `_target_` names, and the node's keys that do not begin with an underscore.

    where: the node's dotted key, which begins with its config group. Raises UserError if `_target_` is missing or cannot be
        imported. Also raises it if the class is not a dataclass, or lacks a method that the group needs.
    """
    if "_target_" not in node:
        raise UserError(f"{where}._target_: is missing; give the dotted path of a class")
    word = f"{where}._target_={node['_target_']}"
    cls = imported(node["_target_"], word)
    defined = {name for base in getattr(cls, "__mro__", ()) for name in vars(base)}
    lacking = sorted({*getattr(cls, "__abstractmethods__", ())} | {*INTERFACES[where.partition(".")[0]]} - defined)
    body = vars(cls) if isinstance(cls, type) else {}
    undecorated = "__dataclass_fields__" not in body and body.get("__annotations__")
    if lacking or undecorated or not hasattr(cls, "__dataclass_fields__"):
        why = f"does not define {', '.join(lacking)}" if lacking else "is not a dataclass; write @dataclass above it"
        if "solves" in lacking:
            why += "; write solves: ClassVar = (Minimisation,), the classes of problems that it is for"
        raise UserError(f"{word}: {cls.__name__} {why}")
    return cls, {key: value for key, value in node.items() if not key.startswith("_")}


def imported(path: Any, word: str) -> Any:
    """Return what a dotted path names in a module that is installed or on PYTHONPATH.

    Args:
        path: The dotted path.
        word: The key with the path, for messages, such as algo._target_=my_sgd.MySgd.

    Raises:
        UserError: It cannot be imported.
    """
    module, _, name = str(path).rpartition(".")
    try:
        source = import_module(module)
        if hasattr(source, name):
            return getattr(source, name)
    except (Exception, SystemExit) as error:
        top = module.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name == top:
            why = f"there is no module {top}, neither installed nor on PYTHONPATH; if {top}.py is in this folder, "
            why += 'write python_path = "." into its fedopt.toml'
        else:
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
            why = "".join(f"{line_of(frame.filename, frame.lineno)}: " for frame in frames[-1:])
            why += f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{word} cannot be imported: {why}") from None
    raise UserError(f"{word} cannot be imported: {module} has no {name}{nearest(name, dir(source))}")


def checked(cls: Any, node: Any, where: str, *given: str) -> Any:
    """Check a config node and return the values of the dataclass's fields by name; for a pydantic dataclass, return the object.

    cls: the dataclass. node, where: as in `build`. given: fields that have no key. Raises UserError as `build` does.
    """
    try:
        values = typed(cls, *given).validate_python(node)
    except ValidationError as error:
        errors = error.errors(include_url=False)[:3]
        fields = [field.name for field in dataclasses.fields(cls) if field.init and field.name not in given]
        aliases = {name: field.alias for name, field in getattr(cls, "__pydantic_fields__", {}).items()}
        fields = [aliases.get(name) or name for name in fields]  # as a config has them: from, not source
        text = "; ".join(_message(one, node, where, fields) for one in errors)
        if any(one["type"] in OF_KEYS and len(one["loc"]) == 1 for one in errors):
            text += f"; the keys are {', '.join(fields) or '(none)'}"
        raise UserError(text) from None
    _refuse_odd_numbers(node, values, where)
    return values


@cache
def typed(cls: Any, *given: str) -> TypeAdapter[Any]:
    """Return the pydantic type of a dataclass's config node. given: fields that have no key."""
    return TypeAdapter(cls if is_pydantic_dataclass(cls) else _keys_of(cls, *given))


def _keys_of(cls: Any, *given: str) -> Any:
    """Return a TypedDict with the fields of a dataclass that have keys. given: the fields that have none."""
    hints = get_type_hints(cls, include_extras=True)
    fields = [f for f in dataclasses.fields(cls) if f.init and f.name not in given]
    # Both are MISSING where a field has no default
    keys = {f.name: hints[f.name] if f.default is f.default_factory else NotRequired[hints[f.name]] for f in fields}
    typed = TypedDict(cls.__name__, keys)  # type: ignore[misc]
    typed.__pydantic_config__ = ConfigDict(**STRICT, arbitrary_types_allowed=True)  # type: ignore[attr-defined]
    return typed


def _refuse_odd_numbers(node: dict[str, Any], values: Any, where: str) -> None:
    """Raise UserError for true or false in place of a number, which pydantic would read as 1 or 0.

    Whole numbers above `MOST` are refused too, except for the seed and the budget.

    node: the values as they were given. values: the same, typed. where: the node's dotted key.
    """
    for key, given in node.items():
        taken = values.get(key, given) if isinstance(values, dict) else getattr(values, key, given)
        name = f"{where}.{key}" if where else key
        if isinstance(given, bool) and not isinstance(taken, bool):
            raise UserError(f"{name}={str(given).lower()}: must be a number, not true or false")
        counts = taken if isinstance(taken, list) else [taken]
        if where != "budget" and name != "seed" and any(isinstance(n, int) and abs(n) > MOST for n in counts):
            raise UserError(f"{name}: must be at most {MOST}")
        if isinstance(given, dict) and not isinstance(taken, dict):  # which no type says anything of yet
            _refuse_odd_numbers(given, taken, name)


def _meant(key: str, value: Any) -> str:
    """Return a hint on what was meant by a value that is no number: several numbers, or null; '' if it is unclear.

    key, value: of the config.
    """
    if isinstance(value, list) or re.fullmatch(r"\d+(\.\.|-|:)\d+", str(value)):
        return f"; a sweep takes several values, fedopt -m {key}=A,B,..., in Python fedopt.sweep"
    return "; write null for all or none" if str(value).lower() in ("all", "none") else ""


WORDS = {  # for people, by pydantic's type of error
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "must be a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    "finite_number": "must be a finite number",
    "string_type": "must be a text",
    "list_type": "must be a list, [A, B]",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}
OF_KEYS = ("missing", "unexpected_keyword_argument", "extra_forbidden")  # what pydantic says of keys


def _message(error: Any, node: Any, where: str, fields: list[str]) -> str:
    """Format one of pydantic's errors as a message that names the key, the value and what is allowed.

    error: pydantic's. node: the node that was checked. where: its dotted key. fields: the keys that it may have.
    """
    path, value = [where] if where else [], node
    for part in error["loc"]:  # other parts say which of several types pydantic tried
        if (isinstance(value, dict) and part in value) or (isinstance(value, list) and isinstance(part, int)):
            value = value[part]
            path.append(str(part))
    if error["type"] == "missing":
        return f"{'.'.join([*path, str(error['loc'][-1])])}: is missing"
    key = ".".join(path)
    if error["type"] in OF_KEYS:
        return (
            removed(key) or f"{key}: there is no such key{nearest(path[-1], fields) if len(error['loc']) == 1 else ''}"
        )
    if error["type"].startswith("union_tag"):
        kind = f"={value['kind']}" if "kind" in value else ""
        return f"{key}.kind{kind}: must be {error['ctx'].get('expected_tags', 'given')}"
    if error["type"] == "dataclass_type":
        return f"{key}={value}: cannot be set as a whole; set its keys, {key}.KEY=VALUE"
    words = WORDS.get(error["type"])
    text = words.format(**error.get("ctx", {})) if words else error["msg"].removeprefix("Value error, ")
    text += _meant(key, value) if error["type"].startswith(("int_", "float_")) else ""
    text = text[0].lower() + text[1:]
    if not key:
        return text
    return f"{key}: {text}" if isinstance(value, dict) else f"{key}={value}: {text}"
