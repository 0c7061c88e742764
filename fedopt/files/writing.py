"""Writing files whole, or not at all."""

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
    """Quotes texts that `Loader` would take for numbers."""


_Dumper.add_implicit_resolver(*POWERS)


def yaml_text(node: Any, width: int = 80) -> str:
    """The text of YAML that `read_config` reads as this node of dicts, lists, texts and numbers."""
    return yaml.dump(node, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)


def write_atomically(path: Path, content: bytes) -> None:
    """Write to the side and rename: the file is the old one or the new one, never half of it, and links are replaced, not followed.
    Raises OSError."""
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
    """To a descriptor, which may take only a part at a time. Raises OSError."""
    while content:
        content = content[os.write(file, content) :]


def refuse_inner_links(folder: Path) -> None:
    """Raises UserError where something in a folder, at any depth, is a link or no plain file: what is written there stays there."""
    for inside, folders, files in os.walk(folder):
        for path in (Path(inside, name) for name in (*folders, *files)):
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise UserError(f"{path}: is a link or no plain file; remove it, or choose another folder")


def refuse_links(paths: Iterable[Path]) -> None:
    """Raises UserError where writing to one of these paths would write elsewhere too: it is a link, or no plain file."""
    for file in paths:
        if file.is_symlink() or (file.exists() and not (file.is_file() and file.stat().st_nlink == 1)):
            raise UserError(f"{file}: is a link or no plain file, and is not written to; choose another output_dir")


def refuse_linked(folder: Path, root: Path) -> None:
    """Raise UserError where a folder below `root`, or one that it is in, is a link: what is written there would go elsewhere."""
    for place in (folder, *folder.parents):
        if place == root:
            return
        if place.is_symlink():
            raise UserError(f"{place}: is a link, and is not written through; put the folder itself there")
