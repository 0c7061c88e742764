"""Where the configs are, and composing them outside the `fedopt` command."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

_inside, _beside = Path(__file__).parent / "conf", Path(__file__).parents[1] / "conf"
CONF = _inside if _inside.is_dir() else _beside  # in a wheel, in a checkout


def read_node(path: Path) -> dict[str, Any]:
    """What a config file defines for its group, with the files of the group that it builds on, read without Hydra."""
    read = yaml.safe_load(path.read_text()) or {}
    bases = [base for base in read.pop("defaults", []) if isinstance(base, str) and base != "_self_"]
    node = {key: value for base in bases for key, value in read_node(path.with_name(f"{base}.yaml")).items()}
    own: dict[str, Any] = read.get(path.parent.name) or read
    return node | own


def composed(overrides: Iterable[str], folders: Iterable[str | Path] = ()) -> DictConfig:
    """The config that `fedopt OVERRIDES` has; folders: config folders of one's own, searched after fedopt's."""
    search = ",".join("file://" + os.path.abspath(folder) for folder in folders)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=[*([f"hydra.searchpath=[{search}]"] if search else []), *overrides])


def plain(config: DictConfig) -> dict[str, Any]:
    """Resolved, as dicts, lists and numbers. Raises omegaconf's errors where a value is missing."""
    resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}
