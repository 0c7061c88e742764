"""Where the configs are, and composing them outside the `fedopt` command."""

import os
import re
from collections.abc import Iterable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedopt.errors import UserError

_inside, _beside = Path(__file__).parent / "conf", Path(__file__).parents[1] / "conf"
CONF = _inside if _inside.is_dir() else _beside  # in a wheel, in a checkout
_VALUE = re.compile(r"\w+(\.\w+)*")  # the key of an override that neither adds nor removes


def read_node(path: Path) -> dict[str, Any]:
    """What a config file defines for its group, with the files of the group that it builds on, read without Hydra."""
    read = yaml.safe_load(path.read_text()) or {}
    bases = bases_of(read)
    read.pop("defaults", None)
    node = {key: value for base in bases for key, value in read_node(path.with_name(f"{base}.yaml")).items()}
    own: dict[str, Any] = read.get(path.parent.name) or read
    return node | own


def bases_of(content: dict[str, Any]) -> list[str]:
    """The files of its group that a config file builds on."""
    return [base for base in content.get("defaults", []) if isinstance(base, str) and base != "_self_"]


def composed(overrides: Iterable[str], folders: Iterable[str | Path] = ()) -> DictConfig:
    """The config that `fedopt OVERRIDES` has; folders: config folders of one's own, searched after fedopt's.

    Choosing files takes Hydra long: configs that differ in values alone share it. Raises hydra's and omegaconf's errors.
    """
    words, own = tuple(overrides), tuple(str(folder) for folder in folders)
    values = [word for word in words if _VALUE.fullmatch(key := word.partition("=")[0]) and not _is_group(key, own)]
    try:
        choose = _compose if own else _compose_once  # one's own files may change meanwhile
        config = deepcopy(choose(tuple(word for word in words if word not in values), own))
        for override in OverridesParser.create().parse_overrides(values):
            OmegaConf.update(config, override.key_or_group, override.value())
        return config
    except (HydraException, OmegaConfBaseException):
        return _compose(words, own)  # whose message is the one that is wanted


def _is_group(key: str, folders: Iterable[str]) -> bool:
    return any((folder / key).is_dir() for folder in (CONF, *map(Path, folders)))


def _compose(overrides: tuple[str, ...], folders: tuple[str, ...]) -> DictConfig:
    search = ",".join("file://" + os.path.abspath(folder) for folder in folders)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=[*([f"hydra.searchpath=[{search}]"] if search else []), *overrides])


_compose_once = cache(_compose)


def plain(config: DictConfig) -> dict[str, Any]:
    """Resolved, as dicts, lists and numbers. Raises omegaconf's errors where a value is missing."""
    resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def resolve(config: DictConfig) -> dict[str, Any]:
    """The config as plain values, without the figure that it may belong to.

    Raises UserError when the algorithm is not for this class of problems.
    """
    resolved = plain(config)
    resolved.pop("experiment", None)
    algo, problem = resolved["algo"], resolved["problem"]
    if problem.get("_class_") not in (None, *algo.get("_solves_", [problem.get("_class_")])):
        fitting = [name for name, node in _nodes("problem").items() if node.get("_class_") in algo["_solves_"]]
        methods = [name for name, node in _nodes("algo").items() if problem["_class_"] in node.get("_solves_", [])]
        raise UserError(
            f"algo and problem do not fit: this algorithm solves {', '.join(algo['_solves_'])} problems (problem="
            f"{'|'.join(fitting)}), and this problem is {problem['_class_']} (algo={'|'.join(methods)})"
        )
    return resolved


def _nodes(group: str) -> dict[str, Any]:
    """The nodes that the files of a group define, by name."""
    return {path.stem: read_node(path) for path in sorted((CONF / group).glob("*.yaml"))}


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """The values of nested dicts by dotted key; an empty dict is a value."""
    if not isinstance(node, dict) or not node:
        return {prefix: node}
    start = f"{prefix}." if prefix else ""
    return {key: value for name, inner in node.items() for key, value in flat(inner, f"{start}{name}").items()}
