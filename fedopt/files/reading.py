"""Read files that may be missing, broken or from somebody else: only regular files, no links, and of limited size."""

import codecs
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import yaml
from pydantic import JsonValue, TypeAdapter, ValidationError

from fedopt.errors import UserError, first_line

T = TypeVar("T")
Node = dict[str, Any]  # a config, or a part of one: nested dicts, lists, strings, numbers, true, false and null
LARGEST, LARGEST_JSON = 2**28, 2**26  # bytes; tables and JSON need 12 and 30 times as much memory as their text
MOST_OF_A_CONFIG = 2**17  # bytes of a YAML file
MOST_ALIASES = 20  # of a YAML file; nested aliases can expand to exponentially many values
BROKEN = (OSError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError, yaml.YAMLError, UserError)
REMEDY = "replace it with a good copy, or remove it"


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # CSafeLoader is ten times as fast
    """Reads YAML in the same way as Hydra: 1e-3 is a number, a date is a string, and a key must not occur twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """Return the dict of a YAML mapping, as yaml's loaders do, but refuse a key that occurs twice."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len({*keys}) < len(keys):
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: the key {max(keys, key=keys.count)} occurs twice")
        return super().construct_mapping(node, deep)


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if not tag.endswith("timestamp")]
    for first, known in Loader.yaml_implicit_resolvers.items()
}
POWERS = "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(_\d+)*(\.[\d_]*)?[eE][-+]?\d+$", re.ASCII), [*"-+0123456789"]
Loader.add_implicit_resolver(*POWERS)


def opened(path: Path, links: bool = False) -> BinaryIO:
    """Open a regular file for reading.

    Args:
        path: The file.
        links: Whether the path may be a symbolic link. This is safe if the user has named the path. A link in a folder from
            somebody else could expose the user's private files.

    Raises:
        OSError: The file cannot be opened.
        UserError: The path is a link, or not a regular file.
    """
    if path.is_symlink() and not links:
        raise UserError(f"{path}: is a symbolic link, which is not followed; replace it with the file itself")
    if path.exists() and not path.is_file():  # opening a pipe would block
        raise UserError(f"{path}: must be a regular file, not a folder, pipe or device")
    return path.open("rb")


def read_bytes(path: Path, most: int | None = None, links: bool = False) -> bytes:
    """Read a file as bytes.

    Args:
        path: The file.
        most: The largest size of the file in bytes. None: no limit.
        links: Whether the path may be a symbolic link (see `opened`).

    Raises:
        OSError: The file cannot be opened.
        UserError: The file is too large, a refused link, or not a regular file.
    """
    with opened(path, links) as file:
        if most is not None and path.stat().st_size > most:
            raise UserError(f"{path}: is too large; such a file may have at most {most:,} bytes")
        return file.read()


def read_text(path: Path, most: int = LARGEST, links: bool = False) -> str:
    r"""Read a text file in UTF-8, or in UTF-16 with a byte order mark. Line ends become \n.

    Args:
        path: The file.
        most: The largest number of bytes.
        links: Whether the path may be a symbolic link.

    Raises:
        OSError: The file cannot be opened.
        UserError: The file is too large, a refused link, not a regular file, or not text.
    """
    return decoded(read_bytes(path, most, links), path)


def decoded(content: bytes, path: Path, encoding: str | None = None) -> str:
    r"""Return the text of a file's bytes. Line ends become \n, and a byte order mark is removed.

    Args:
        content: The bytes.
        path: The file, for the message.
        encoding: The name of the encoding. None: UTF-16 if there is a byte order mark for it, otherwise UTF-8.

    Raises:
        UserError: The bytes are not text in this encoding, or the encoding is unknown.
    """
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode(encoding or ("utf-16" if marked else "utf-8"))
        if "\0" in text:
            raise ValueError("it contains zero bytes, so it is not text")
    except (ValueError, LookupError) as error:
        why = f"is not text in {encoding or 'UTF-8'} ({first_line(error)}); save it as UTF-8"
        raise UserError(f"{path}: {why}") from None
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def read_as(path: Path, parse: Callable[[str], T], most: int = LARGEST, remedy: str = REMEDY) -> T:
    """Read and parse a text file.

    Args:
        path: The file.
        parse: A function of the text. If it raises one of the exceptions in `BROKEN`, the file counts as broken.
        most: The largest number of bytes.
        remedy: What to do if the file is broken, for the message.

    Returns:
        The result of ``parse``.

    Raises:
        UserError: The file is missing or broken. The message names the file and the remedy in one line.
    """
    try:
        return parse(read_text(path, most))
    except FileNotFoundError:
        raise UserError(f"{path}: does not exist (any more); put it back, or choose another folder") from None
    except BROKEN as error:
        why = first_line(error).removeprefix(f"{path}: ")
        raise UserError(f"{path}: cannot be read ({why}); {remedy}") from None


def config_text(path: Path, links: bool = False) -> str:
    """Return the text of a YAML file.

    Args:
        path: The file.
        links: Whether the path may be a symbolic link.

    Raises:
        OSError: The file cannot be opened.
        UserError: The file is too large, a refused link, not text, or has too many aliases.
    """
    text = read_text(path, MOST_OF_A_CONFIG, links)
    if len(re.findall(r"[\s\[,]\*\w", text)) > MOST_ALIASES:
        raise UserError(f"{path}: has more than {MOST_ALIASES} YAML aliases such as *name; write out their values")
    return text


def read_config(path: Path) -> Node:
    """Return the content of a YAML file, a dict of dicts, lists, strings, numbers, true, false and null.

    Args:
        path: The file.

    Raises:
        UserError: The file cannot be read, or contains anything else.
    """

    def parse(text: str) -> Node:
        try:
            return _adapter(dict[str, JsonValue]).validate_python(yaml.load(text, Loader))
        except ValidationError:
            raise ValueError("it is not a config, which consists of dicts, lists, strings and numbers") from None

    return read_as(path, parse, MOST_OF_A_CONFIG, "replace it with a good copy, or choose another output_dir")


def read_json(path: Path, types: Mapping[str, object], others: object = None) -> Node:
    """Return the entries of a JSON file whose values have the right types; {} if the file cannot be read.

    Args:
        path: The file, which should contain a JSON object.
        types: The type of each key.
        others: The type of all other keys. None: other keys are left out.
    """
    content, fitting = None, {}
    with suppress(UserError):
        content = read_as(path, partial(json.loads, parse_constant=lambda _: None), LARGEST_JSON)  # JSON has no nan
    for key, value in content.items() if isinstance(content, dict) else ():
        with suppress(ValidationError, ValueError, RecursionError):
            if kind := types.get(key, others):
                fitting[key] = _adapter(kind).validate_json(json.dumps(value), strict=True)
    return fitting


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the pydantic adapter that checks values of the type ``kind``. Adapters are cached."""
    return TypeAdapter(kind)


def expanded(path: str) -> Path:
    """Return the path with ~ replaced by the home folder. ~NAME is kept if there is no such user."""
    return Path(os.path.expanduser(path))
