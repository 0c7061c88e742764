"""Checks of config files that somebody may have sent."""

import re
from collections.abc import Hashable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import yaml
from omegaconf._utils import get_yaml_loader

from fedopt.config.files import CONF, GROUPS
from fedopt.errors import UserError
from fedopt.files import config_text


def refuse_hydra(overrides: Iterable[str]) -> None:
    """Raise UserError for an override that configures Hydra itself, which can be told to call any function."""
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if re.match(r"[^./]*@?hydra\b", key):
            raise UserError(
                f"{key}: is a setting of Hydra, which cannot be set here; remove it. fedopt -m --jobs N does N runs at a time, "
                "--launcher slurm leaves them to a cluster, and fedopt-tune searches for good values"
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
    text, node = "", None
    # As Hydra reads it; what it cannot read it does not obey either, and says so where it is chosen
    with suppress(OSError, ValueError, AssertionError, RecursionError, yaml.YAMLError):
        text = config_text(path)
        node = yaml.load(text, get_yaml_loader())
    content = node if isinstance(node, dict) else {}
    if calls := re.search(r"\$\{[^}]*[:$][^}]*", str(content)):
        only = "in a file, a value may only refer to another key, such as ${seed}"
        raise UserError(f"{path}: {calls[0]}}} would read the environment or run a resolver; {only}")
    header = "".join(line for line in text.splitlines() if "@package" in line)
    if "hydra" in inside.parts[:-1] or "hydra" in f"{[*content]} {content.get('defaults')} {header}":
        raise UserError(f"{path}: configures Hydra, which could run code; remove every mention of hydra from it")
    whole = group == "experiment" or (group in GROUPS and isinstance(content.get(group), dict))
    if whole and content and not header:
        raise UserError(
            f"{path}: must begin with the line '# @package _global_', since its keys are those of the whole config; add this line"
        )
