"""Use Hydra to merge the config files that the overrides of a command choose."""

import os
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from threading import RLock
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fedopt.config.files import CONF, GROUPS
from fedopt.config.overrides import quoted
from fedopt.errors import UserError, first_line
from fedopt.files import Node

TURN = RLock()  # Hydra's state and torch's modes are global, so the runs of several threads wait for each other


@lru_cache(maxsize=1000)
def chosen_files(
    overrides: tuple[str, ...], folders: tuple[str, ...], state: tuple[Hashable, ...]
) -> tuple[DictConfig, dict[str, str], Node]:
    """Merge the config files that a command chooses, with Hydra.

    Args:
        overrides: The overrides that choose files, or add or remove keys.
        folders: The user's config folders.
        state: The times and sizes of the files. A change invalidates the cached result.

    Returns:
        The config, the chosen option of each config group, and the config of the experiment ({} if there is none).

    Raises:
        UserError: A file cannot be read, or it configures Hydra.
    """
    try:
        paths = ",".join(quoted(f"file://{os.path.abspath(folder)}") for folder in folders)
        config = _with_hydra(f"hydra.searchpath=[{paths}]", *overrides)
    except (HydraException, OmegaConfBaseException, MemoryError):
        raise
    except RecursionError:
        raise UserError(f"{', '.join(folders)}: defaults lists form a cycle; remove one of these references") from None
    except Exception as error:  # for example invalid YAML, or numbers in a defaults list
        why = " ".join(str(error).split()) or first_line(error)
        raise UserError(f"the config cannot be read ({why}); correct the file or the override") from None
    if folders and _hydra_node(config) != _usual_hydra_node():
        raise UserError(f"{', '.join(folders)}: a file configures Hydra, which could run code; remove its hydra keys")
    with open_dict(config):
        choices, experiment = config.pop("hydra").runtime.choices, config.pop("experiment", None)
    published: Any = OmegaConf.to_container(experiment) if isinstance(experiment, DictConfig) else {}
    return config, {group: str(choices[group]) for group in GROUPS if group in choices}, published


def _with_hydra(*overrides: str) -> DictConfig:
    """Return the config that Hydra composes from some overrides, including the node ``hydra``, which configures Hydra itself."""
    with _set_aside(GlobalHydra.instance()), hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", overrides=list(overrides), return_hydra_config=True)


@contextmanager
def _set_aside(running: GlobalHydra) -> Iterator[None]:
    """Return a context in which Hydra seems not to be running, so that fedopt also works inside a Hydra program of the user.

    Args:
        running: Hydra's global state, which is restored afterwards.
    """
    before, running.hydra = running.hydra, None
    try:
        yield
    finally:
        running.hydra = before


@cache
def _usual_hydra_node() -> Node:
    """Return the configuration of Hydra (see `_hydra_node`) without config files of the user."""
    return _hydra_node(_with_hydra())


def _hydra_node(config: DictConfig) -> Node:
    """Return the configuration of Hydra in a config, without the entries that describe the present command."""
    node: Any = OmegaConf.to_container(config.hydra)
    node["job"].pop("override_dirname")
    return {key: value for key, value in node.items() if key not in ("runtime", "overrides", "searchpath")}
