"""Reading files that somebody else may have made: regular files only, in UTF-8, and no more of them than is meant."""

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import yaml
from pydantic import TypeAdapter, ValidationError

from fedopt.errors import UserError, first_line

MOST_OF_A_CONFIG = 2**17  # bytes of a YAML file
MOST_VALUES = 20_000  # in it, with those that aliases stand for
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast; libyaml may lack
LEAVES = (str, bool, int, float, type(None))  # the types of a config's values, besides lists and dicts of them


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file, to be read; nobody waits for the other end of a pipe. Raises OSError, and UserError for another kind."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UserError(f"{path}: is no regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Raises OSError, and UserError for another kind of file, or for more bytes than `most`."""
    with opened(path) as file:
        content = file.read(-1 if most is None else most + 1)
    if most is not None and len(content) > most:
        raise UserError(f"{path}: is too large, with more than {most:,} bytes")
    return content


def read_start(path: Path, size: int) -> bytes:
    """The first bytes; none where there are fewer than so many. Raises as `read_bytes`."""
    with opened(path) as file:
        return file.read(size) if 0 <= size <= os.fstat(file.fileno()).st_size else b""


def read_text(path: Path, most: int | None = None) -> str:
    """In UTF-8, with line ends of any system. Raises as `read_bytes`, and UserError for what is no text."""
    try:
        return read_bytes(path, most).decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise UserError(f"{path}: is no text in UTF-8") from None


def config_text(path: Path) -> str:
    """The text of a YAML file, whose aliases stand for no more than a config holds. Raises OSError and UserError."""
    text = read_text(path, MOST_OF_A_CONFIG)
    if "*" in text and "&" in text:
        try:
            root = yaml.compose(text, LOADER)
        except (yaml.YAMLError, RecursionError):
            return text  # whoever reads it says what is wrong
        if root is not None and _values_in(root, {}) > MOST_VALUES:
            raise UserError(f"{path}: its aliases stand for more than {MOST_VALUES:,} values")
    return text


def _values_in(node: yaml.Node, counted: dict[int, float]) -> float:
    """With what its aliases stand for; without end where one stands for what it is in."""
    if id(node) not in counted:
        counted[id(node)] = float("inf")
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for item in inner for part in (item if isinstance(item, tuple) else (item,)))
        counted[id(node)] = 1 + sum(_values_in(part, counted) for part in parts)
    return counted[id(node)]


def read_config(path: Path) -> dict[str, Any]:
    """A YAML file of dicts, lists, texts, numbers, true, false and null. Raises UserError for anything else."""
    try:
        config = yaml.load(config_text(path), LOADER)
        odd = _odd(config) if isinstance(config, dict) else "it holds no config"
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        odd = first_line(error)
    except UserError as error:
        odd = str(error).removeprefix(f"{path}: ")
    if odd:
        raise UserError(f"{path}: cannot be read ({odd})")
    return config


def _odd(node: Any) -> str:
    """What no config holds, in words; empty where there is nothing of that kind."""
    if isinstance(node, dict):
        keys = next((f"the key {key} is no text" for key in node if not isinstance(key, str)), "")
        return keys or next(filter(None, map(_odd, node.values())), "")
    if isinstance(node, list):
        return next(filter(None, map(_odd, node)), "")
    return "" if isinstance(node, LEAVES) else f"{node} is a {type(node).__name__}"


def read_json(path: Path, types: Mapping[str, Any], others: Any = None) -> dict[str, Any]:
    """What a JSON object says, as far as values are of the types of their keys; empty where no file can be read.

    others: the type of all other keys; None leaves them out.
    """
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError, UserError):
        return {}
    fitting = {}
    for key, value in content.items() if isinstance(content, dict) else ():
        with suppress(ValidationError, ValueError, RecursionError):
            if kind := types.get(key, others):
                fitting[key] = _adapter(kind).validate_json(json.dumps(value), strict=True)
    return fitting


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
