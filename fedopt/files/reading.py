"""Reading files that may be sent, broken or gone: regular files, no links, and no more of them than is meant."""

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
REMEDY = "put a good copy there, or remove it"
LEAVES = (str, bool, int, float, type(None))  # the types of a config's values, besides lists and dicts of them


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # ten times as fast; libyaml may lack
    """Reads YAML as a command's words and Hydra's files are read: 1e-3 is a number, and a date is a text."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if not tag.endswith("timestamp")]
    for first, known in Loader.yaml_implicit_resolvers.items()
}
POWERS = "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(_\d+)*(\.[\d_]*)?[eE][-+]?\d+$", re.ASCII), [*"-+0123456789"]
Loader.add_implicit_resolver(*POWERS)
_OF_YAML_1_1 = re.compile(r"[-+]?0([0-7_]+|b.*)|.*:.*")  # octal, binary, and to the base of 60


@contextmanager
def opened(path: Path, links: bool = False) -> Iterator[BinaryIO]:
    """Open a regular file to be read; nobody waits for the other end of a pipe.

    Args:
        path: The file.
        links: Whether a link may stand in its place, as where a user names it. A link in a folder that somebody sent would show
            a file of the reader's.

    Raises:
        OSError: The file cannot be opened.
        UserError: It is a link, or no regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path}: is a link, which is not followed; put the file itself there") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UserError(f"{path}: is no regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_bytes(path: Path, most: int | None = None, links: bool = False) -> bytes:
    """Read a file. Raises as `opened`, and UserError for more bytes than `most`."""
    with opened(path, links) as file:
        content = file.read(-1 if most is None else most + 1)
    if most is not None and len(content) > most:
        raise UserError(f"{path}: is too large, with more than {most:,} bytes")
    return content


def read_start(path: Path, size: int) -> bytes:
    """The first bytes; none where there are fewer than so many. Raises as `opened`."""
    with opened(path) as file:
        return file.read(size) if 0 <= size <= os.fstat(file.fileno()).st_size else b""


def read_text(path: Path, most: int = LARGEST, links: bool = False) -> str:
    """Read a text as `decoded`. Raises as `read_bytes`, and UserError for what is no text."""
    return decoded(read_bytes(path, most, links), path)


def decoded(content: bytes, path: Path, encoding: str | None = None) -> str:
    """The text of a file, with line ends of any system and without a byte order mark. Raises UserError for what is no text.

    encoding: None for UTF-8, or UTF-16 where the mark says so.
    """
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode(encoding or ("utf-16" if marked else "utf-8"))
    except UnicodeError:
        raise UserError(f"{path}: is no text in {encoding or 'UTF-8'}") from None
    if "\0" in text:
        raise UserError(f"{path}: is no text in {encoding or 'UTF-8'}: it has zero bytes")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def lines_of(text: str) -> Iterator[str]:
    """The lines of a text one by one, with their ends, and without a copy of all of them."""
    return (match[0] for match in re.finditer(r"[^\n]*\n|[^\n]+", text))


def read_as(path: Path, parse: Callable[[str], T], most: int = LARGEST, remedy: str = REMEDY) -> T:
    """Return what a parser makes of a text that may be sent, broken or gone.

    Raises:
        UserError: One line that names the file, and the remedy.
    """
    try:
        return parse(read_text(path, most))
    except FileNotFoundError:
        raise UserError(f"{path}: is not there (any more)") from None
    except BROKEN as error:
        why = first_line(error).removeprefix(f"{path}: ")
        raise UserError(f"{path}: cannot be read ({why}); {remedy}") from None


def config_text(path: Path, links: bool = False) -> str:
    """The text of a YAML file, as `plain_yaml`. Raises OSError and UserError."""
    try:
        return plain_yaml(read_text(path, MOST_OF_A_CONFIG, links))
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def plain_yaml(text: str) -> str:
    """A text of YAML as it is.

    Raises:
        ValueError: A key stands twice, a number is one in YAML 1.1 alone or has very many digits, or aliases stand for more than
            a config holds.
    """
    with suppress(yaml.YAMLError, RecursionError):  # whoever reads it says what is wrong
        if (root := yaml.compose(text, Loader)) is not None and _values_in(root, {}) > MOST_VALUES:
            raise ValueError(f"its aliases stand for more than {MOST_VALUES:,} values")
    return text


def _values_in(node: yaml.Node, counted: dict[int, float]) -> float:
    """With what its aliases stand for; without end where one stands for what it is in. Raises ValueError as `plain_yaml`."""
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
            raise ValueError(f"{where}the key {max(keys, key=keys.count)} stands twice")
        if node.tag.endswith((":int", ":float")):
            if len(node.value) > MOST_DIGITS:
                raise ValueError(f"{where}a number has {len(node.value):,} digits")
            if _OF_YAML_1_1.fullmatch(node.value):
                raise ValueError(
                    f"{where}{node.value} is no plain number; write it in tens, or '{node.value}' for a text"
                )
        parts = (part for item in inner for part in (item if isinstance(item, tuple) else (item,)))
        counted[id(node)] = 1 + sum(_values_in(part, counted) for part in parts)
    return counted[id(node)]


def read_config(path: Path) -> dict[str, Any]:
    """A YAML file of dicts, lists, texts, numbers, true, false and null. Raises UserError for anything else."""

    def parse(text: str) -> dict[str, Any]:
        config = yaml.load(plain_yaml(text), Loader)
        if odd := _odd(config) if isinstance(config, dict) else "it holds no config":
            raise ValueError(odd)
        return config

    return read_as(path, parse, MOST_OF_A_CONFIG, "put a good copy there, or choose another output_dir")


def _odd(node: Any, depth: int = 0) -> str:
    """What no config holds, in words; empty where there is nothing of that kind."""
    if depth > DEEPEST:
        return f"more than {DEEPEST} nodes are in each other"
    if isinstance(node, dict):
        keys = next((f"the key {key} is no text" for key in node if not isinstance(key, str)), "")
        return keys or next(filter(None, (_odd(value, depth + 1) for value in node.values())), "")
    if isinstance(node, list):
        return next(filter(None, (_odd(value, depth + 1) for value in node)), "")
    return "" if isinstance(node, LEAVES) else f"{node} is a {type(node).__name__}"


def read_json(path: Path, types: Mapping[str, Any], others: Any = None) -> dict[str, Any]:
    """What a JSON object says, as far as values are of the types of their keys; empty where no file can be read.

    others: the type of all other keys; None leaves them out.
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
