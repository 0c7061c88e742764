"""Facts on the classes that a config names, in words. Help and messages read them without importing the class.

A class is imported, which takes torch, when somebody first asks about it. The user's cache keeps the answer until a file
changes.
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


class Answer(TypedDict):
    files: dict[str, int]
    fields: dict[str, str]
    fits: list[str]
    before: dict[str, Any]


SETTINGS, PROBLEM = "fedopt.config.settings.Settings", "fedopt.problems.classes.Problem"
NAMES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true | false", "null": "null"}
BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
# By one of the classes that a schedule may be of
SCHEDULES = {"Piecewise": "step size", "Growing": "local work", "Cyclic": "pattern"}


def about(path: str) -> dict[str, Any]:
    """Return facts on a class that a config names; all of them are empty if it cannot be imported.

    Args:
        path: The class, as a `_target_` names it.

    Returns:
        `fields`: the types in words, by dotted key. `fits`: for an algorithm the classes of problems that it solves; for a
        problem the classes that it belongs to; for `PROBLEM` all classes. `before`: fields that configs of older runs lack,
        each with the value that reproduces those runs. `files`: the files with the class and its bases, each with its time.
    """
    return about_all([path])[path]


def about_all(paths: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return what `about` returns for several classes, by path. The user's cache is read and written once."""
    known, answers, new = _kept(), dict[str, dict[str, Any]](), dict[str, dict[str, Any]]()
    for path in paths:
        key = path if path.startswith("fedopt.") else f"{path} in {os.pathsep.join(sys.path)}"
        answer = known.get(key)
        if answer is None or answer["files"] != _times(answer["files"]):
            answer = _asked(path)
            if answer["files"]:  # else it cannot be imported, and is asked again the next time
                new[key] = answer
        answers[path] = answer
    known.update(new)
    if new and (file := _file()):
        with suppress(OSError):  # a home that cannot be written to
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, json.dumps(_read() | new).encode())
    return answers


def _asked(path: str) -> dict[str, Any]:
    try:
        cls: Any = imported(path, path)
        schema = typed(cls, "world").json_schema() if isinstance(cls, type) and dataclasses.is_dataclass(cls) else {}
        kinds = import_module("fedopt.problems.reductions").fits(cls) if {"solves", "start"} & {*dir(cls)} else []
    except Exception:  # a class of the user's, which a run would refuse
        return {"files": {}, "fields": {}, "fits": [], "before": {}}
    modules = (sys.modules[base.__module__] for base in cls.__mro__)
    fields: dict[str, str] = {}
    for key, node in schema.get("properties", {}).items():
        inner = schema.get("$defs", {}).get(node.get("$ref", "").rpartition("/")[2], {}) if cls is Settings else {}
        parts = {f"{key}.{name}": _in_words(part) for name, part in inner.get("properties", {}).items()}
        fields |= parts or {key: _in_words(node)}
    own = dataclasses.fields(cls) if schema else ()
    return {
        "files": _times(file for module in modules if (file := getattr(module, "__file__", None))),
        "fields": fields,
        "fits": kinds,
        "before": {field.name: field.metadata["before"] for field in own if "before" in field.metadata},
    }


def _in_words(node: dict[str, Any]) -> str:
    """Return a JSON schema in words: the values of an enumeration, or a type and its range."""
    several = node.get("anyOf", [node] if "$ref" in node else [])
    named = [part.get("$ref", "").rpartition("/")[2] for part in several]
    if kind := next((SCHEDULES[name] for name in named if name in SCHEDULES), ""):
        others = [part for part in several if "items" in part or part.get("type") == "null"]
        return " | ".join([kind, *map(_in_words, others)])
    if several:
        return " | ".join(dict.fromkeys(_in_words(part) for part in several if "$ref" not in part))
    if values := node.get("enum", [node["const"]] if "const" in node else []):
        return " | ".join(map(str, values))
    if node.get("type") == "array":
        return f"[{_in_words(node['items'])}, ...]"
    bounds = {key: node[key] for key in BOUNDS if key in node and node[key] != 2**63}
    if node.get("type") == "integer" and bounds.get("exclusiveMinimum") == 0:
        bounds = {"minimum": 1} | {key: bound for key, bound in bounds.items() if key != "exclusiveMinimum"}
    return NAMES.get(node.get("type", ""), "") + "".join(
        f" {BOUNDS[key]} {str(bound).removesuffix('.0')}" for key, bound in bounds.items()
    )


def _times(files: Iterable[str]) -> dict[str, int]:
    """Return when each of the files that exist was last written, in nanoseconds."""
    return {file: os.stat(file).st_mtime_ns for file in files if os.path.exists(file)}


@cache
def _kept() -> dict[str, dict[str, Any]]:
    """Return the answers in the user's cache when this process first asked, and those that it got since."""
    return _read()


def _read() -> dict[str, dict[str, Any]]:
    """Return the answers in the user's cache that have the right types; {} if there are none yet, or the file is damaged."""
    return read_json(file, {}, Answer) if (file := _file()) else {}


def _file() -> Path | None:
    """Return the file of this version in the user's cache; None for a user without a home."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    here = f"{import_module('fedopt').__version__} {__file__} {sys.version}"
    name = f"classes-{hashlib.sha256(here.encode()).hexdigest()[:10]}.json"
    return Path(folder, "fedopt", name) if os.path.isabs(folder) else None
