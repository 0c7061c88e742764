"""Write files completely or not at all."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import yaml

from fedopt.errors import UserError
from fedopt.files.reading import POWERS

PART = ".part"  # the extension of a file that is being written


class _Dumper(yaml.SafeDumper):
    """Writes YAML with quotes around strings that `Loader` would read as numbers."""


_Dumper.add_implicit_resolver(*POWERS)


def yaml_text(node: object, width: int = 80) -> str:
    """Return nested dicts, lists, strings and numbers as YAML text, which `read_config` can read.

    Args:
        node: The values.
        width: The number of characters per line.
    """
    return yaml.dump(node, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it, so that the path always has either the old or the new content.

    A link at the path is replaced, not followed.

    Args:
        path: The file to write.
        content: Its new content.

    Raises:
        OSError: The file cannot be written.
    """
    # The temporary name is unique, since other processes may write this file too
    aside = path.with_name(f"{path.name}.{token_hex(4)}{PART}")
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
    """Write all bytes to an open file descriptor, with several system calls if necessary.

    Args:
        file: The number of the file descriptor.
        content: The bytes.

    Raises:
        OSError: The bytes cannot be written.
    """
    while content:
        content = content[os.write(file, content) :]


def refuse_links(paths: Iterable[Path]) -> None:
    """Raise UserError if one of the paths is a symbolic link, or neither a file nor a folder.

    Writing to such a path could change another file.
    """
    for path in paths:
        if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):
            why = "is a symbolic link or not a regular file, so that writing could change another file"
            raise UserError(f"{path}: {why}; remove it, or choose another folder")


def refuse_linked(folder: Path, root: Path) -> None:
    """Raise UserError if a folder inside ``root`` is a symbolic link, or if a folder on the path from ``root`` to it is one."""
    refuse_links(place for place in (folder, *folder.parents) if root in place.parents)
