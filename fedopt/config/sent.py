"""Checks of config files that somebody may have sent."""

import re
from collections.abc import Hashable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from fedopt.config.files import CONF, GROUPS, content, text_of
from fedopt.errors import UserError


def refuse_hydra(overrides: Iterable[str]) -> None:
    """Raise UserError for an override that configures Hydra itself, which can be told to call any function."""
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if re.match(r"[^./]*@?hydra\b", key):
            raise UserError(
                f"{key}: is a setting of Hydra, which cannot be set here; remove it. fedopt -m --jobs N does N runs at a time, "
                "--launcher slurm leaves them to a cluster, and fedopt tune searches for good values"
            )


def check_folders(folders: Iterable[str | Path]) -> tuple[Hashable, ...]:
    """Check the YAML files of config folders, and return their paths, times and sizes. Two results are equal if no file
    changed.

    Raises:
        UserError: A folder is missing, or a file in it has no effect or could run code.
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
    """Raise UserError if a file of a config folder has no effect or could run code.

    inside: its path within the config folder. state: its time and size, for the cache.
    """
    group = inside.parts[0]
    if group != "tuned" and (CONF / inside).exists():
        raise UserError(f"{path}: would have no effect, since fedopt has a file of this name; choose another name")
    node: dict[str, Any] = {}
    with suppress(OSError, ValueError, RecursionError, yaml.YAMLError):  # Hydra says so where the file is chosen
        node = content(path)
    if calls := re.search(r"\$\{[^}]*[:$][^}]*", str(node)):
        only = "in a file, a value may only refer to another key, such as ${seed}"
        raise UserError(f"{path}: {calls[0]}}} would read the environment or run a resolver; {only}")
    whole = group == "experiment" or (group in GROUPS and isinstance(node.get(group), dict))
    if whole and node and "@package" not in text_of(path):
        raise UserError(
            f"{path}: must begin with the line '# @package _global_', since its keys are those of the whole config; add this line"
        )
