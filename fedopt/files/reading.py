"""Reading files that may have been sent, or be broken or missing: only regular files, no links, and a limited size."""

import codecs
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from fedopt.errors import UserError, first_line

T = TypeVar("T")
LARGEST, LARGEST_JSON = 2**28, 2**26  # bytes of a text, of which tables and JSON need 12 and 30 times as much memory
MOST_OF_A_CONFIG = 2**17  # bytes of a YAML file
MOST_VALUES, DEEPEST = 20_000, 50  # in it, with those that aliases stand for; nodes in each other
MOST_DIGITS = 300  # of a number in it
BROKEN = (OSError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError, yaml.YAMLError, UserError)
REMEDY = "replace it with a good copy, or remove it"
LEAVES = (str, bool, int, float, type(None))  # the types of a config's values, besides lists and dicts of them


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # ten times as fast; libyaml may lack
    """Reads YAML as Hydra reads overrides and files: 1e-3 is a number, and a date is a text."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if not tag.endswith("timestamp")]
    for first, known in Loader.yaml_implicit_resolvers.items()
}
POWERS = "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(_\d+)*(\.[\d_]*)?[eE][-+]?\d+$", re.ASCII), [*"-+0123456789"]
Loader.add_implicit_resolver(*POWERS)
_OF_YAML_1_1 = re.compile(r"[-+]?0([0-7_]+|b.*)|.*:.*")  # octal, binary, and to the base of 60


@contextmanager
def opened(path: Path, links: bool = False) -> Iterator[BinaryIO]:
    """Open a regular file for reading. It never waits for the other end of a pipe.

    Args:
        path: The file.
        links: Whether the path may be a link. That is safe if the user named it; a link in a folder that somebody sent could
            show one of the reader's private files.

    Raises:
        OSError: The file cannot be opened.
        UserError: It is a link, or not a regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path}: is a link, which is not followed; put the file itself there") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UserError(f"{path}: must be a regular file, not a folder, pipe or device")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_bytes(path: Path, most: int | None = None, links: bool = False) -> bytes:
    """Read a file.

    Args:
        path: The file.
        most: The largest number of bytes. None: no limit.
        links: As in `opened`.

    Raises:
        OSError, UserError: As in `opened`; UserError also for more bytes than ``most``.
    """
    with opened(path, links) as file:
        large = most is not None and os.fstat(file.fileno()).st_size > most
        content = b"" if large else file.read()
    if large:
        raise UserError(f"{path}: is too large; such a file may have at most {most:,} bytes")
    return content


def read_start(path: Path, size: int) -> bytes:
    """Return the first ``size`` bytes of a file; b"" if it is shorter. Raises as `opened` does."""
    with opened(path) as file:
        return file.read(size) if 0 <= size <= os.fstat(file.fileno()).st_size else b""


def read_text(path: Path, most: int = LARGEST, links: bool = False) -> str:
    r"""Read a text file, UTF-8 or UTF-16 with a byte order mark; line ends become \n.

    most: the largest number of bytes. links: whether the path may be a link. Raises OSError if the file cannot be opened, and
        UserError if it is a refused link, too large or no text.
    """
    return decoded(read_bytes(path, most, links), path)


def decoded(content: bytes, path: Path, encoding: str | None = None) -> str:
    r"""Decode a text, with line ends as \n and without a byte order mark.

    Args:
        content: The bytes.
        path: Their file, for the message.
        encoding: The name of the encoding. None: UTF-8, or UTF-16 if the byte order mark says so.

    Raises:
        UserError: The bytes are not text in this encoding.
        LookupError: The encoding is unknown.
    """
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode(encoding or ("utf-16" if marked else "utf-8"))
    except UnicodeError:
        raise UserError(f"{path}: is not text in {encoding or 'UTF-8'}; save it in this encoding") from None
    if "\0" in text:
        raise UserError(
            f"{path}: is not text in {encoding or 'UTF-8'}, since it has zero bytes; save it in this encoding"
        )
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def lines_of(text: str) -> Iterator[str]:
    """Yield the lines of a text with their line ends, without copying the text."""
    return (match[0] for match in re.finditer(r"[^\n]*\n|[^\n]+", text))


def read_as(path: Path, parse: Callable[[str], T], most: int = LARGEST, remedy: str = REMEDY) -> T:
    """Read a text file and return what ``parse`` makes of it.

    Args:
        path: The file.
        parse: A function of the text. If it raises one of the exceptions in `BROKEN`, the file counts as broken.
        most: The largest number of bytes.
        remedy: What to do if the file is broken, for the message.

    Raises:
        UserError: The file is missing or broken; one line that names the file and the remedy.
    """
    try:
        return parse(read_text(path, most))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file (any more); put it back, or choose another folder") from None
    except BROKEN as error:
        why = first_line(error).removeprefix(f"{path}: ")
        raise UserError(f"{path}: cannot be read ({why}); {remedy}") from None


def config_text(path: Path, links: bool = False) -> str:
    """Return the text of a YAML file after the checks of `plain_yaml`. links: as in `opened`.

    Raises OSError, and UserError with the file's name.
    """
    try:
        return plain_yaml(read_text(path, MOST_OF_A_CONFIG, links))
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def plain_yaml(text: str) -> str:
    """Return a YAML text unchanged, after checking it. A text that is not YAML passes: its parser reports the error.

    Raises:
        ValueError: A key occurs twice. Or a number has more than `MOST_DIGITS` digits, or is written as only YAML 1.1 reads
            it (017, 1:30). Or aliases expand to more values than a config may hold.
    """
    with suppress(yaml.YAMLError, RecursionError):  # whoever reads it says what is wrong
        if (root := yaml.compose(text, Loader)) is not None and _values_in(root, {}) > MOST_VALUES:
            raise ValueError(f"its aliases expand to more than {MOST_VALUES:,} values; use fewer aliases")
    return text


def _values_in(node: yaml.Node, counted: dict[int, float]) -> float:
    """Return the number of values in a YAML node, aliases expanded; infinity if an alias refers to a node that contains it.

    counted: results so far, by id of the node. Raises ValueError as `plain_yaml` does.
    """
    if id(node) not in counted:
        counted[id(node)] = float("inf")
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        keys = (
            [key.value for key, _ in inner if not isinstance(key.value, list)]
            if isinstance(node, yaml.MappingNode)
            else []
        )
        where = f"line {node.start_mark.line + 1}: "
        if len({*keys}) < len(keys):
            raise ValueError(f"{where}the key {max(keys, key=keys.count)} occurs twice; keep one")
        if node.tag.endswith((":int", ":float")):
            if len(node.value) > MOST_DIGITS:
                raise ValueError(f"{where}a number has {len(node.value):,} digits; write it shorter, such as 1e300")
            if _OF_YAML_1_1.fullmatch(node.value):
                raise ValueError(
                    f"{where}{node.value} is not a plain decimal number; write one, or '{node.value}' for a text"
                )
        parts = (part for item in inner for part in (item if isinstance(item, tuple) else (item,)))
        counted[id(node)] = 1 + sum(_values_in(part, counted) for part in parts)
    return counted[id(node)]


def read_config(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a dict of dicts, lists, texts, numbers, true, false and null.

    Raises:
        UserError: It cannot be read, or holds anything else.
    """

    def parse(text: str) -> dict[str, Any]:
        config = yaml.load(plain_yaml(text), Loader)
        if odd := _odd(config) if isinstance(config, dict) else "it does not hold a config":
            raise ValueError(odd)
        return config

    return read_as(path, parse, MOST_OF_A_CONFIG, "replace it with a good copy, or choose another output_dir")


def _odd(node: Any, depth: int = 0) -> str:
    """Return what a node holds that no config may hold, in words; empty if it is fine. depth: how deep the node lies."""
    if depth > DEEPEST:
        return f"its nodes are nested more than {DEEPEST} deep"
    if isinstance(node, dict):
        keys = next((f"the key {key} is not a text" for key in node if not isinstance(key, str)), "")
        return keys or next(filter(None, (_odd(value, depth + 1) for value in node.values())), "")
    if isinstance(node, list):
        return next(filter(None, (_odd(value, depth + 1) for value in node)), "")
    return "" if isinstance(node, LEAVES) else f"{node} is a {type(node).__name__}"


def read_json(path: Path, types: Mapping[str, Any], others: Any = None) -> dict[str, Any]:
    """Return the entries of a JSON object whose values have the type of their key; {} if the file cannot be read.

    Args:
        path: The file.
        types: The type of each key.
        others: The type of all other keys. None: other keys are left out.
    """
    content, fitting = None, {}
    with suppress(UserError):
        content = read_as(path, partial(json.loads, parse_constant=lambda _: None), LARGEST_JSON)  # nan is no JSON
    for key, value in content.items() if isinstance(content, dict) else ():
        with suppress(ValidationError, ValueError, RecursionError):
            if kind := types.get(key, others):
                fitting[key] = _adapter(kind).validate_json(json.dumps(value), strict=True)
    return fitting


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def expanded(path: str) -> Path:
    """Return the path with ~ replaced by the home folder. The ~NAME of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))
