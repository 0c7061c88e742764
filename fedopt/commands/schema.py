"""JSON schemas of config files, for editors, made from the dataclasses that check the files."""

from collections.abc import Iterable
from typing import Any

from pydantic import TypeAdapter

from fedopt.config import (
    INTERFACES,
    Budget,
    Evaluation,
    Hardware,
    Participation,
    Settings,
    class_path,
    options,
    target,
    typed,
)
from fedopt.papers import Claim, Published

FOR_NAMES = {"type": "string", "pattern": "[{]"}  # ${key}, or {name} of `where`, in place of a number
PARTIAL = [cls.__name__ for cls in (Settings, Budget, Evaluation, Hardware, Participation)]


def schema(kind: str, folders: Iterable[str] = ()) -> dict[str, Any]:
    """Return the JSON schema of one kind of config file. Keys may be left out, unknown keys are not allowed.

    Args:
        kind: ``config``: a complete config, such as a run's config.yaml. ``experiment``: a published experiment. The name of
            a config group, such as ``algo``: the file of one option.
        folders: The user's config folders, whose classes are included.

    Raises:
        UserError: A class in these folders cannot be used.
    """
    classes = {group: _classes(group, list(folders)) for group in INTERFACES}
    nodes = {cls for members in classes.values() for cls in members} | {Settings}
    inputs = sorted(nodes | {Published, Claim}, key=lambda cls: cls.__qualname__)
    refs, together = TypeAdapter.json_schemas([(cls, "validation", typed(cls, "world")) for cls in inputs])
    schemas: dict[Any, Any] = {cls: _relaxed(node) for (cls, _), node in refs.items()}
    defs = _relaxed(together.get("$defs", {}))

    def definition(cls: type) -> dict[str, Any]:
        return defs[schemas[cls]["$ref"].rpartition("/")[2]] if "$ref" in schemas[cls] else schemas[cls]

    for cls in nodes:
        definition(cls)["patternProperties"] = {"^_": {}}
    for partial in [*(defs[name] for name in PARTIAL if name in defs), *map(definition, nodes | {Published})]:
        partial.pop("required", None)
    root = definition(Settings)
    root["properties"] |= {group: {"anyOf": [schemas[cls] for cls in classes[group]]} for group in INTERFACES}
    root["properties"] |= {"defaults": {"type": "array"}}
    if kind in INTERFACES:
        root = root["properties"][kind]
    if kind == "experiment":
        _describe_experiment(definition(Published), definition(Claim), schemas[Claim])
        root["properties"]["experiment"] = schemas[Published]
        root["required"] = ["experiment"]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**head, **root, "title": f"fedopt {kind}", "$defs": defs}


def _classes(group: str, folders: list[str]) -> list[type]:
    """Return the classes that the options of a config group configure, sorted by name."""
    paths = {class_path(group, name, folders) for name in options(group, folders)}
    classes = [target({"_target_": path}, group)[0] for path in paths if path]
    return sorted(classes, key=lambda cls: cls.__qualname__)


def _relaxed(node: Any) -> Any:
    """Return a schema without defaults, in which a number or a truth value may also be a text with {, such as ${key}."""
    if isinstance(node, list):
        return [_relaxed(part) for part in node]
    if not isinstance(node, dict):
        return node
    inner = {key: _relaxed(value) for key, value in node.items() if key not in ("default", "propertyNames")}
    return {"anyOf": [inner, FOR_NAMES]} if inner.get("type") in ("number", "integer", "boolean") else inner


def _describe_experiment(published: dict[str, Any], claim: dict[str, Any], claim_ref: dict[str, Any]) -> None:
    """Add to the schemas, in place, the keys that `fedopt.papers.where` resolves before a file is checked: where, for, and
    groups of claims.
    """
    axes = {"type": ["object", "array", "string"]}
    claim["properties"] |= {"for": axes, "paper": {"type": ["string", "number"]}}
    group = {
        "type": "object",
        "properties": {"for": axes, "claims": {"type": "array", "items": claim_ref}},
        "required": ["for", "claims"],
        "additionalProperties": False,
    }
    published["properties"] |= {
        "where": {"type": "object"},
        "claims": {"type": "array", "items": {"anyOf": [claim_ref, group]}},
    }
