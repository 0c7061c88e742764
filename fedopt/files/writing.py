"""Writing files completely, or not at all."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

import yaml

from fedopt.errors import UserError
from fedopt.files.reading import POWERS

PART = ".part"  # ends the name of a file that is being written


class _Dumper(yaml.SafeDumper):
    """Writes YAML with quotes around texts that `Loader` would read as numbers."""


_Dumper.add_implicit_resolver(*POWERS)


def yaml_text(node: Any, width: int = 80) -> str:
    """Return a node of dicts, lists, texts and numbers as YAML text, which `read_config` reads back.

    width: characters of a line.
    """
    return yaml.dump(node, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it, so that the path has either the old or the new content, never a part.

    A link at the path is replaced, not followed. Raises OSError.
    """
    aside = path.with_name(f"{path.name}.{token_hex(4)}{PART}")  # others may be writing this file too
    try:
        with aside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_whole(file: int, content: bytes) -> None:
    """Write all bytes to a file descriptor, which may take only a part at a time. Raises OSError."""
    while content:
        content = content[os.write(file, content) :]


def refuse_links(paths: Iterable[Path]) -> None:
    """Raise UserError if one of these paths is a symbolic link, or neither a file nor a folder: writing would go elsewhere."""
    for path in paths:
        if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):
            why = "is a link, or not a regular file, so that writing could go elsewhere"
            raise UserError(f"{path}: {why}; remove it, or choose another folder")


def refuse_linked(folder: Path, root: Path) -> None:
    """Raise UserError if a folder below ``root``, or a folder between them, is a link: writing there would go elsewhere."""
    refuse_links(place for place in (folder, *folder.parents) if root in place.parents)
