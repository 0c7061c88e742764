"""Checks of config files that somebody may have sent."""

import re
from collections.abc import Hashable, Iterable
from contextlib import suppress
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from fedopt.config.files import CONF, GROUPS
from fedopt.config.project import outputs
from fedopt.errors import UserError
from fedopt.files import config_text

MOST_REFERRED = 10_000  # that a key's references may stand for; those of all keys for ten times as many
_REFERENCE = re.compile(r"\$\{([^{}:]+)\}")


def refuse_hydra(words: Iterable[str]) -> None:
    """Raise UserError for an override that configures Hydra itself, which can be told to call any function."""
    for word in words:
        key = word.lstrip("+~").partition("=")[0]
        if re.match(r"hydra[./](launcher|sweeper)\b", key):
            raise UserError(
                f"{key}: fedopt does not use Hydra's launchers and sweepers; remove it. fedopt -m --jobs N does N runs at a "
                "time, --launcher slurm leaves them to a cluster, and fedopt-tune searches for good values"
            )
        if key.partition("@")[0].split("/")[0].split(".")[0] == "hydra":
            raise UserError(f"{key}: is a setting of Hydra that cannot be set here; remove it")


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
        for path in folder.rglob("*"):
            if path.is_dir() and path.is_symlink():
                raise UserError(f"{path}: is a link, which is not followed; put the folder itself there")
            if path.suffix in (".yaml", ".yml") and not path.is_dir():
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
    defaults = str(content.get("defaults"))
    if "hydra" in inside.parts[:-1] or "hydra" in f"{[*content]} {defaults} {header}":
        raise UserError(f"{path}: configures Hydra, which could run code; remove every mention of hydra from it")
    if ".." in defaults:
        raise UserError(f"{path}: its defaults leave this config folder by ..; put the file that they name into it")
    whole = group == "experiment" or (group in GROUPS and isinstance(content.get(group), dict))
    if whole and content and not header:
        raise UserError(
            f"{path}: must begin with the line '# @package _global_', since its keys are those of the whole config; add this line"
        )


def refuse_outside(output_dir: str, folders: Iterable[str | Path]) -> None:
    """Raise UserError if a file of these config folders sets an output_dir outside outputs/."""
    if not (Path.cwd() / output_dir).resolve().is_relative_to(outputs().resolve()):
        where, how = ", ".join(map(str, folders)), f"if you want that, give output_dir={output_dir} in the command"
        raise UserError(f"{where}: a file there sets output_dir={output_dir}, which is outside outputs/; {how}")


def refuse_expanding(nodes: Any) -> None:
    """Raise UserError if references such as ${seed} expand to more than a config may hold.

    nodes: the config before they are replaced.
    """
    values, sizes = dict(_all(nodes, "")), dict[str, float]()

    def size(key: str) -> float:
        """Return how many characters a key expands to; infinity if it refers to itself."""
        if key not in sizes:
            sizes[key] = inf
            value = values.get(key)
            if isinstance(value, dict | list):
                inner = value if isinstance(value, dict) else range(len(value))
                sizes[key] = 1 + sum(size(f"{key}.{part}".lstrip(".")) for part in inner)
            else:
                text = value if isinstance(value, str) else "1"
                sizes[key] = len(text) + sum(size(_referred(key, name)) for name in _REFERENCE.findall(text))
        return sizes[key]

    if large := [key or "a config" for key in values if size(key) > MOST_REFERRED * (1 if key else 10)]:
        if size(large[-1]) == inf:
            raise UserError(f"{large[-1]}: its reference leads back to itself; give a value")
        raise UserError(f"{large[-1]}: its references expand to more than {MOST_REFERRED:,} characters; shorten them")


def _all(node: Any, key: str) -> Iterable[tuple[str, Any]]:
    yield key, node
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in inner:
        yield from _all(value, f"{key}.{name}".lstrip("."))


def _referred(key: str, reference: str) -> str:
    """Return the key that a reference at ``key`` means.

    A leading dot stands for the node that the key is in, two for the node above.
    """
    dots = len(reference) - len(reference.lstrip("."))
    base = key.split(".")[:-dots] if dots else []
    return ".".join([*base, *re.split(r"[.\[\]]+", reference.strip(".[]"))])
