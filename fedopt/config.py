"""Where the configs are, and composing them outside the `fedopt` command."""

import os
import re
from collections.abc import Iterable, Mapping
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

from fedopt.errors import UserError, unknown
from fedopt.settings import Settings, build

_inside, _beside = Path(__file__).parent / "conf", Path(__file__).parents[1] / "conf"
CONF = _inside if _inside.is_dir() else _beside  # in a wheel, in a checkout
_VALUE = re.compile(r"\w+(\.\w+)*")  # the key of an override that neither adds nor removes


def options(group: str, folders: Iterable[str | Path] = ()) -> list[str]:
    """What can be chosen from a config group. folders: config folders besides fedopt's."""
    roots = [Path(folder) / group for folder in (CONF, *folders)]
    found = {path.relative_to(root).with_suffix("") for root in roots for path in root.rglob("*.yaml")}
    return sorted(path.as_posix() for path in found)


def composed(overrides: Iterable[str], folders: Iterable[str | Path] = ()) -> DictConfig:
    """The config that `fedopt OVERRIDES` has; folders: config folders of one's own, searched after fedopt's.

    Choosing files takes Hydra long: configs that differ in values alone share it. Raises UserError for a preset that does not
    exist, and hydra's and omegaconf's errors.
    """
    words, own = tuple(overrides), tuple(str(folder) for folder in folders)
    check_preset(words, own)
    keys = [word.partition("=")[0] for word in words]
    groups = {key for key in keys if any((root / key).is_dir() for root in (CONF, *map(Path, own)))}
    values = [word for key, word in zip(keys, words, strict=True) if _VALUE.fullmatch(key) and key not in groups]
    try:
        choose = _compose if own else _compose_once  # one's own files may change meanwhile
        config = deepcopy(choose(tuple(word for word in words if word not in values), own))
        for override in OverridesParser.create().parse_overrides(values):
            OmegaConf.update(config, override.key_or_group, override.value())
        return config
    except (HydraException, OmegaConfBaseException):
        return _compose(words, own)  # whose message is the one that is wanted


def check_preset(words: Iterable[str], folders: Iterable[str | Path] = ()) -> None:
    """Raises UserError where a word of a command names a preset that does not exist.

    Presets are optional in the defaults lists of algorithms, and so Hydra itself passes over a missing one.
    """
    for word in words:
        key, _, name = word.partition("=")
        if key == "preset" and name != "none" and name not in (known := options("preset", folders)):
            raise UserError(unknown("preset", name, ["none", *known]))


def _compose(overrides: tuple[str, ...], folders: tuple[str, ...]) -> DictConfig:
    search = ",".join("file://" + os.path.abspath(folder) for folder in folders)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=[*([f"hydra.searchpath=[{search}]"] if search else []), *overrides])


_compose_once = cache(_compose)


def plain(config: DictConfig) -> dict[str, Any]:
    """The config as dicts, lists, texts and numbers, without the published experiment that it may belong to.

    Raises omegaconf's errors where a value is missing.
    """
    resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items() if key != "experiment"}


def flat(node: Mapping[Any, Any]) -> dict[str, Any]:
    """The values of a nested dict by their dotted keys. Lists and empty dicts are values."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        inner = flat(value) if isinstance(value, dict) else {}
        found |= {f"{key}.{name}": leaf for name, leaf in inner.items()} or {str(key): value}
    return found


def resolve(config: DictConfig) -> dict[str, Any]:
    """The config as plain values, as `plain` gives them, after all checks that need neither data nor torch.

    Raises UserError for an unknown key, for a value of a wrong type or out of range among those that every run has, and when the
    algorithm is not for this class of problems.
    """
    resolved = plain(config)
    build(Settings, resolved)
    algo, problem = resolved["algo"], resolved["problem"]
    if problem.get("_class_") not in (None, *algo.get("_solves_", [problem.get("_class_")])):
        fitting = [name for name in options("problem") if _declared("problem", name, "_class_") in algo["_solves_"]]
        methods = [name for name in options("algo") if problem["_class_"] in _declared("algo", name, "_solves_")]
        raise UserError(
            f"algo and problem do not fit: this algorithm solves {', '.join(algo['_solves_'])} problems (problem="
            f"{'|'.join(fitting)}), and this problem is {problem['_class_']} (algo={'|'.join(methods)})"
        )
    return resolved


def _declared(group: str, name: str, key: str) -> Any:
    """What one of fedopt's files, or else the file that it builds on, gives as this key of its group's node.

    Composing every file of a group takes Hydra two seconds, which is too long for a message.
    """
    content = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    if key in (node := content.get(group, {})):
        return node[key]
    base = next(entry for entry in content["defaults"] if isinstance(entry, str) and entry != "_self_")
    return _declared(group, base, key)
