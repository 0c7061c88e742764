"""What a config file that somebody sent may not do."""

from collections.abc import Hashable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedopt.config.files import CONF, GROUPS, config_text
from fedopt.errors import UserError


def refuse_hydra(words: Iterable[str], allowed: tuple[str, ...] = ()) -> None:
    """Raises UserError for an override that sets up Hydra itself, which can be told to call anything.

    allowed: how a key may begin all the same.
    """
    for word in words:
        key = word.lstrip("+~").partition("=")[0]
        calls = "._" in key or "_target_" in word or "custom_search_space" in word
        if key.partition("@")[0].split("/")[0].split(".")[0] == "hydra" and (calls or not key.startswith(allowed)):
            raise UserError(
                f"{key}: is not for users; with -m, hydra/launcher and hydra.launcher.KEY choose how jobs run, hydra/sweeper and "
                "hydra.sweeper.KEY which ones"
            )


def check_folders(folders: Iterable[str | Path]) -> tuple[Hashable, ...]:
    """Which files config folders hold, and their states: equal for folders that nobody changed.

    Raises UserError for a folder that is not there, and for a file in it that has no effect or could run code.
    """
    files: list[Hashable] = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise UserError(f"--config-dir={folder}: there is no such folder")
        for path in folder.rglob("*"):
            if path.is_dir() and path.is_symlink():
                raise UserError(f"{path}: is a link; put the folder itself there")
            if path.suffix == ".yaml" and not path.is_dir():
                state = path.stat()
                _check_file(path, path.relative_to(folder), state.st_mtime_ns, state.st_size)
                files.append((path.absolute(), state.st_mtime_ns, state.st_size))
    return tuple(files)


@lru_cache(maxsize=1000)
def _check_file(path: Path, inside: Path, *state: int) -> None:
    """inside: the path in its config folder."""
    group = inside.parts[0]
    if group != "tuned" and (CONF / inside).exists():
        raise UserError(f"{path}: fedopt has a file of this name, which counts instead; choose another name")
    text, node = "", None
    # As Hydra reads it; what it cannot read it does not obey either, and says so where it is chosen
    with suppress(OSError, ValueError, AssertionError, RecursionError, yaml.YAMLError, OmegaConfBaseException):
        text = config_text(path)
        node = OmegaConf.to_container(OmegaConf.create(text))
    content = node if isinstance(node, dict) else {}
    header = "".join(line for line in text.splitlines() if "@package" in line)
    defaults = str(content.get("defaults"))
    if "hydra" in inside.parts[:-1] or "hydra" in f"{[*content]} {defaults} {header}":
        raise UserError(f"{path}: sets up Hydra, which could run code; remove all that names hydra from it")
    if ".." in defaults:
        raise UserError(f"{path}: its defaults leave the folder; put the file that they name into it")
    whole = group == "experiment" or (group in GROUPS and isinstance(content.get(group), dict))
    if whole and content and not header:
        raise UserError(
            f"{path}: is the first line missing? The file must begin with the line '# @package _global_', since its keys are "
            "those of the whole config"
        )
