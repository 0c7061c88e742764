"""Descriptions of the classes that a config names, which help and messages read without importing the classes.

A class, and torch with it, is imported only when its description is first needed. The description is then stored in the
user's cache until one of the class's files changes.
"""

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from fedopt.config.build import imported, typed
from fedopt.config.settings import Settings
from fedopt.files import read_json, write_atomically


class About(TypedDict):
    """The description of a class that a config names. `about` explains the entries."""

    files: dict[str, int]
    fields: dict[str, str]
    fits: list[str]
    before: dict[str, Any]


SETTINGS, PROBLEM = "fedopt.config.settings.Settings", "fedopt.problems.classes.Problem"
NAMES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true | false"}
NAMES |= {"null": "null", "object": "mapping"}
BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
# The name of a type with several kinds, by the class of one of its kinds
SCHEDULES = {"Piecewise": "step size", "Growing": "local work", "Cyclic": "pattern"}


def about(path: str) -> About:
    """Describe a class that a config names.

    Args:
        path: The dotted path of the class, such as a value of `_target_`.

    Returns:
        A dict with four entries, which are empty if the class cannot be imported:

        - ``fields``: the type of each field as readable text, by dotted key.
        - ``fits``: the classes of problems that an algorithm solves, or that a problem belongs to; all classes for `PROBLEM`.
        - ``before``: fields that are missing in the configs of older runs, with the values that reproduce these runs.
        - ``files``: the files that define the class and its bases, with their modification times in nanoseconds.
    """
    return about_all([path])[path]


def about_all(paths: Iterable[str]) -> dict[str, About]:
    """Return the descriptions (see `about`) of several classes by path. The user's cache is read and written only once."""
    known, found, new = _cached(), dict[str, About](), dict[str, About]()
    for path in paths:
        key = path if path.startswith("fedopt.") else f"{path} in {os.pathsep.join(sys.path)}"
        described = known.get(key)
        if described is None or described["files"] != _times(described["files"]):
            described = _describe(path)
            if described["files"]:  # a class that cannot be imported is not cached, so that it is tried again
                new[key] = described
        found[path] = described
    known.update(new)
    if new and (file := _file()):
        with suppress(OSError):  # the home folder may be read-only
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, json.dumps(_read() | new).encode())
    return found


def _describe(path: str) -> About:
    """Import a class and return its description (see `about`), without using the cache."""
    try:
        cls: Any = imported(path, path)
        schema = typed(cls, "world").json_schema() if isinstance(cls, type) and dataclasses.is_dataclass(cls) else {}
        reductions = import_module("fedopt.problems.reductions") if {"solves", "start"} & {*dir(cls)} else None
        kinds = reductions.fits(cls) if reductions else []
    except Exception:  # a user's class that cannot be imported; a run reports the error
        return {"files": {}, "fields": {}, "fits": [], "before": {}}
    modules = (reductions, *(sys.modules[base.__module__] for base in cls.__mro__))
    fields: dict[str, str] = {}
    for key, node in schema.get("properties", {}).items():
        inner = schema.get("$defs", {}).get(node.get("$ref", "").rpartition("/")[2], {}) if cls is Settings else {}
        inner_fields = {f"{key}.{name}": _type_text(field) for name, field in inner.get("properties", {}).items()}
        fields |= inner_fields or {key: _type_text(node)}
    class_fields = dataclasses.fields(cls) if schema else ()
    return {
        "files": _times(file for module in modules if (file := getattr(module, "__file__", None))),
        "fields": fields,
        "fits": kinds,
        "before": {field.name: field.metadata["before"] for field in class_fields if "before" in field.metadata},
    }


def _type_text(node: dict[str, Any]) -> str:
    """Return the type of a field as readable text, such as 'whole number from 1' or 'random | label'.

    Args:
        node: The JSON schema of the field.
    """
    options = node.get("anyOf", [node] if "$ref" in node else [])
    names = [option.get("$ref", "").rpartition("/")[2] for option in options]
    if kind := next((SCHEDULES[name] for name in names if name in SCHEDULES), ""):
        others = [option for option in options if "items" in option or option.get("type") == "null"]
        return " | ".join([kind, *map(_type_text, others)])
    if options:
        return " | ".join(dict.fromkeys(_type_text(option) for option in options if "$ref" not in option))
    if values := node.get("enum", [node["const"]] if "const" in node else []):
        return " | ".join(map(str, values))
    if node.get("type") == "array":
        return f"[{_type_text(node['items'])}, ...]"
    bounds = {key: node[key] for key in BOUNDS if key in node and node[key] != 2**63}
    if node.get("type") == "integer" and bounds.get("exclusiveMinimum") == 0:
        bounds = {"minimum": 1} | {key: bound for key, bound in bounds.items() if key != "exclusiveMinimum"}
    limits = [f"{BOUNDS[key]} {str(bound).removesuffix('.0')}" for key, bound in bounds.items()]
    return " ".join([NAMES.get(node.get("type", ""), ""), *limits])


def _times(files: Iterable[str]) -> dict[str, int]:
    """Return the modification times of the files that exist: path -> nanoseconds since 1970."""
    return {file: os.stat(file).st_mtime_ns for file in files if os.path.exists(file)}


@cache
def _cached() -> dict[str, About]:
    """Return the known descriptions by class: those in the user's cache at the first call, and later additions."""
    return _read()


def _read() -> dict[str, About]:
    """Return the descriptions in the user's cache that have the right types; {} if the file is missing or damaged."""
    return read_json(file, {}, About) if (file := _file()) else {}


def _file() -> Path | None:
    """Return the file in the user's cache for this version of fedopt and Python; None if the user has no home folder."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    version = f"{import_module('fedopt').__version__} {__file__} {os.stat(__file__).st_mtime_ns} {sys.version}"
    name = f"classes-{hashlib.sha256(version.encode()).hexdigest()[:10]}.json"
    return Path(folder, "fedopt", name) if os.path.isabs(folder) else None
