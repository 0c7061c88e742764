"""Safety checks of config files and overrides that may come from somebody else."""

import re
from collections.abc import Hashable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import yaml

from fedopt.config.files import CONF, GROUPS, content, text_of
from fedopt.errors import UserError
from fedopt.files import Node


def refuse_hydra(overrides: Iterable[str]) -> None:
    """Raise UserError for an override that configures Hydra itself, since it could make Hydra call any function."""
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if re.match(r"[^./]*@?hydra\b", key):
            options = "fedopt -m --jobs N for parallel runs, fedopt tune for searches, or output_dir=DIR for the folder"
            raise UserError(f"{key}: settings of Hydra cannot be changed; remove it, and use {options}")


def check_folders(folders: Iterable[str | Path]) -> tuple[Hashable, ...]:
    """Check the YAML files in config folders, and return a key for caches that changes if one of the files changes.

    Args:
        folders: The config folders.

    Returns:
        The paths, times and sizes of the files.

    Raises:
        UserError: A folder is missing, or a file has no effect or could run code.
    """
    files: list[Hashable] = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"--config-dir={folder}: there is no such folder; give an existing one")
        for path in [path for path in folder.rglob("*.y*ml") if not path.is_dir()]:
            state = path.stat()
            _check_file(path, path.relative_to(folder), state.st_mtime_ns, state.st_size)
            files.append((path.absolute(), state.st_mtime_ns, state.st_size))
    return tuple(files)


@lru_cache(maxsize=1000)
def _check_file(path: Path, inside: Path, *state: int) -> None:
    """Check a file of a config folder.

    Args:
        path: The file.
        inside: The path of the file within the config folder.
        state: The time and size of the file, for the cache.

    Raises:
        UserError: The file has no effect or could run code.
    """
    group = inside.parts[0]
    if group != "tuned" and (CONF / inside).exists():
        raise UserError(f"{path}: would have no effect, since fedopt has a file of this name; choose another name")
    node: Node = {}
    with suppress(OSError, ValueError, RecursionError, yaml.YAMLError):  # Hydra reports the error if the file is chosen
        node = content(path)
    if calls := re.search(r"\$\{[^}]*[:$][^}]*", str(node)):
        raise UserError(f"{path}: {calls[0]}}} would read the environment or run a resolver; write its value instead")
    whole = group == "experiment" or (group in GROUPS and isinstance(node.get(group), dict))
    if whole and node and "@package" not in text_of(path):
        raise UserError(f"{path}: its keys belong to the top level; add '# @package _global_' as the first line")
