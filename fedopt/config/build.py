"""Build objects from config nodes, and check the types and ranges of their values."""

import dataclasses
import re
import traceback
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any, NotRequired, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import is_pydantic_dataclass
from typing_extensions import TypedDict

from fedopt.deprecated import removed
from fedopt.errors import UserError, first_line, is_own, line_of, nearest

MOST = 10**9  # the largest whole number, except for a seed or a budget: the product of two of them fits into 64 bits
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
T = TypeVar("T")

# The methods that a class must define for each config group. A class without them is refused and never called
INTERFACES = {
    "algo": ("solves", "init", "step", "output"),
    "problem": ("start", "sample", "evaluate"),
    "dataset": ("load",),
    "partitioner": ("__call__",),
    "logger": ("start",),
}


def build(cls: type[T], node: Mapping[str, object], where: str = "") -> T:
    """Check the values of a config node against the field types of a dataclass, and return an object of the dataclass.

    Args:
        cls: The dataclass.
        node: The config node, with a value for each key.
        where: The node's dotted key, for messages; empty for the top level.

    Returns:
        The object.

    Raises:
        UserError: A key is unknown or missing, or a value is not allowed. The message names the key, the value and what is
            allowed.
    """
    return _construct(cls, checked(cls, node, where), where)


def build_target(node: Mapping[str, object], where: str) -> Any:
    """Return an object of the class that the node's `_target_` names. The node's other keys are the fields of the class.

    Args:
        node: The config node.
        where: The node's dotted key, for messages.

    Raises:
        UserError: `_target_` or another key is missing, unknown or not allowed.
    """
    return build(*target(node, where), where)


def builder(node: Mapping[str, object], where: str, *supplied: str) -> Callable[..., Any]:
    """Check the values of a config node now, and return a function that later builds the object of the node's `_target_`.

    Args:
        node: The config node.
        where: The node's dotted key, for messages.
        supplied: The fields that are not in the config, such as ``world``. The returned function takes them as keyword
            arguments.

    Raises:
        UserError: `_target_` or another key is missing, unknown or not allowed. The returned function raises it if the class
            itself raises ValueError.
    """
    cls, keys = target(node, where)
    return partial(_construct, cls, checked(cls, keys, where, *supplied), where)


def _construct(cls: type[T], values: Any, where: str, **supplied: object) -> T:
    """Return an object of a dataclass whose values have been checked.

    Args:
        cls: The dataclass.
        values: The result of `checked`: the values of the fields by name, or already the object.
        where: The node's dotted key, for the message.
        supplied: The values of the fields that are not in the config.

    Raises:
        UserError: The class itself raises ValueError.
    """
    if isinstance(values, cls):
        return values
    try:
        return cls(**supplied, **values)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def target(node: Mapping[str, object], where: str) -> tuple[type, dict[str, object]]:
    """Return the class that the node's `_target_` names, and the node without the keys that begin with an underscore.

    Args:
        node: The config node.
        where: The node's dotted key, which begins with its config group.

    Raises:
        UserError: `_target_` is missing or cannot be imported; or the class is not a dataclass, or lacks a method that the
            group needs.
    """
    if "_target_" not in node:
        raise UserError(f"{where}._target_: is missing; set it to the dotted path of a class")
    setting = f"{where}._target_={node['_target_']}"
    cls = imported(node["_target_"], setting)
    defined = {name for base in getattr(cls, "__mro__", ()) for name in vars(base)}
    lacking = sorted({*getattr(cls, "__abstractmethods__", ())} | {*INTERFACES[where.partition(".")[0]]} - defined)
    body = vars(cls) if isinstance(cls, type) else {}
    undecorated = "__dataclass_fields__" not in body and body.get("__annotations__")
    if lacking or undecorated or not hasattr(cls, "__dataclass_fields__"):
        why = f"does not define {', '.join(lacking)}" if lacking else "is not a dataclass; write @dataclass above it"
        if "solves" in lacking:
            why += "; add a line such as solves: ClassVar = (Minimisation,) with the classes of problems that it solves"
        raise UserError(f"{setting}: {cls.__name__} {why}")
    return cls, {key: value for key, value in node.items() if not key.startswith("_")}


def imported(path: object, setting: str) -> Any:
    """Import an object by its dotted path. Its module must be installed or on PYTHONPATH.

    Args:
        path: The dotted path.
        setting: The key with the path, for messages, such as algo._target_=my_sgd.MySgd.

    Returns:
        The object.

    Raises:
        UserError: The object cannot be imported.
    """
    module, _, name = str(path).rpartition(".")
    try:
        source = import_module(module)
        if hasattr(source, name):
            return getattr(source, name)
    except (Exception, SystemExit) as error:
        top = module.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name == top:
            why = f"the module {top} is neither installed nor on PYTHONPATH; if {top}.py is in this folder, "
            why += 'write python_path = "." into fedopt.toml'
        else:
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
            why = "".join(f"{line_of(frame.filename, frame.lineno)}: " for frame in frames[-1:])
            why += f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"{setting} cannot be imported: {why}") from None
    raise UserError(f"{setting} cannot be imported: {module} has no {name}{nearest(name, dir(source))}")


def checked(cls: Any, node: Mapping[str, object], where: str, *supplied: str) -> Any:
    """Check the values of a config node against the field types of a dataclass.

    Args:
        cls: The dataclass.
        node: The config node.
        where: The node's dotted key, for messages.
        supplied: The fields that are not in the config.

    Returns:
        The values of the fields by name; for a pydantic dataclass, the object.

    Raises:
        UserError: A key is unknown or missing, or a value is not allowed.
    """
    try:
        values = typed(cls, *supplied).validate_python(node)
    except ValidationError as error:
        errors = error.errors(include_url=False)[:3]
        fields = [field.name for field in dataclasses.fields(cls) if field.init and field.name not in supplied]
        aliases = {name: field.alias for name, field in getattr(cls, "__pydantic_fields__", {}).items()}
        fields = [aliases.get(name) or name for name in fields]  # the names in a config: from instead of source
        text = "; ".join(_message(one, node, where, fields) for one in errors)
        if any(one["type"] in KEY_ERRORS and len(one["loc"]) == 1 for one in errors):
            text += f"; the keys are {', '.join(fields) or '(none)'}"
        raise UserError(text) from None
    _refuse_odd_numbers(node, values, where)
    return values


@cache
def typed(cls: Any, *supplied: str) -> TypeAdapter[Any]:
    """Return the pydantic adapter that checks whether a config node fits the fields of a dataclass.

    Args:
        cls: The dataclass.
        supplied: The fields that are not in the config.
    """
    return TypeAdapter(cls if is_pydantic_dataclass(cls) else _keys_of(cls, *supplied))


def _keys_of(cls: Any, *supplied: str) -> Any:
    """Return a TypedDict type with the fields of a dataclass as keys, except the ``supplied`` fields."""
    hints = get_type_hints(cls, include_extras=True)
    fields = [f for f in dataclasses.fields(cls) if f.init and f.name not in supplied]
    # Both are MISSING if a field has no default
    keys = {f.name: hints[f.name] if f.default is f.default_factory else NotRequired[hints[f.name]] for f in fields}
    typed = TypedDict(cls.__name__, keys)  # type: ignore[misc]
    typed.__pydantic_config__ = ConfigDict(**STRICT, arbitrary_types_allowed=True)  # type: ignore[attr-defined]
    return typed


def _refuse_odd_numbers(node: Mapping[str, object], values: object, where: str) -> None:
    """Raise UserError if a number is true or false, which pydantic would read as 1 or 0, or a whole number above `MOST`.

    Args:
        node: The values in the config.
        values: The values after pydantic has converted them to their types: a dict, or an object with the keys as attributes.
        where: The node's dotted key, for messages.
    """
    for key, raw in node.items():
        typed_value = values.get(key, raw) if isinstance(values, dict) else getattr(values, key, raw)
        name = f"{where}.{key}" if where else key
        if isinstance(raw, bool) and not isinstance(typed_value, bool):
            raise UserError(f"{name}={str(raw).lower()}: must be a number, not true or false")
        counts = typed_value if isinstance(typed_value, list) else [typed_value]
        if where != "budget" and name != "seed" and any(isinstance(n, int) and abs(n) > MOST for n in counts):
            raise UserError(f"{name}: must be at most {MOST}; choose a smaller number")
        if isinstance(raw, dict) and not isinstance(typed_value, dict):  # an untyped dict is checked when it is built
            _refuse_odd_numbers(raw, typed_value, name)


MESSAGES = {  # pydantic's type of error -> message
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "must be a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    "finite_number": "must be a finite number",
    "string_type": "must be a string",
    "list_type": "must be a list, [A, B]",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
}
KEY_ERRORS = ("missing", "unexpected_keyword_argument", "extra_forbidden")  # pydantic's errors about keys


def _message(error: Any, node: Any, where: str, fields: list[str]) -> str:
    """Format one of pydantic's errors as a message that names the key, the value and what is allowed.

    Args:
        error: The error.
        node: The config node that was checked.
        where: The node's dotted key.
        fields: The keys that the node may have.
    """
    path, value = [where] if where else [], node
    for step in error["loc"]:  # a step that is no key names one of several types that pydantic tried
        if (isinstance(value, dict) and step in value) or (isinstance(value, list) and isinstance(step, int)):
            value = value[step]
            path.append(str(step))
    if error["type"] == "missing":
        return f"{'.'.join([*path, str(error['loc'][-1])])}: is missing"
    key = ".".join(path)
    if error["type"] in KEY_ERRORS:
        near = nearest(path[-1], fields) if len(error["loc"]) == 1 else ""
        return removed(key) or f"{key}: there is no such key{near}"
    if error["type"].startswith("union_tag"):
        kind = f"={value['kind']}" if "kind" in value else ""
        return f"{key}.kind{kind}: must be {error['ctx'].get('expected_tags', 'set')}"
    if error["type"] == "dataclass_type":
        return f"{key}={value}: must be a mapping such as {{KEY: VALUE}}; fedopt help {key} explains it"
    message = MESSAGES.get(error["type"])
    text = message.format(**error.get("ctx", {})) if message else error["msg"].removeprefix("Value error, ")
    several = isinstance(value, list) or re.fullmatch(r"\d+(\.\.|-|:)\d+", str(value))
    if several and error["type"].startswith(("int_", "float_")):
        text += f"; a sweep takes several values, fedopt -m {key}=A,B,..., in Python fedopt.sweep"
    text = text[0].lower() + text[1:]
    if not key:
        return text
    return f"{key}: {text}" if isinstance(value, dict) else f"{key}={value}: {text}"
