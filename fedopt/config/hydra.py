"""The use of Hydra: compose the files that the overrides of a command choose."""

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

from fedopt.config.files import CONF, GROUPS, Folders
from fedopt.config.overrides import quoted
from fedopt.errors import UserError, first_line

TURN = RLock()  # Hydra's state and torch's modes belong to the process: runs in its threads take turns


@lru_cache(maxsize=1000)
def chosen_files(
    overrides: tuple[str, ...], folders: tuple[str, ...], state: tuple[Hashable, ...]
) -> tuple[DictConfig, dict[str, str], dict[str, Any]]:
    """Let Hydra merge the files that a command chooses.

    Return the config, the option of each group, and the node of an experiment, {} without one.

    overrides: the overrides that choose files. folders: config folders besides fedopt's. state: the files' times and sizes, so
        that the cache notices a changed file. Raises UserError for files that cannot be read or that configure Hydra.
    """
    try:
        config = _with_hydra(*search_path(folders), *overrides)
    except (HydraException, OmegaConfBaseException, MemoryError):
        raise
    except RecursionError:
        raise UserError(
            f"{', '.join(folders)}: files there refer to each other in their defaults without end; remove "
            f"one of these references"
        ) from None
    except Exception as error:  # a file that is no YAML, a defaults list of numbers, a word like =1
        raise UserError(
            f"the config cannot be read ({' '.join(str(error).split()) or first_line(error)}); mend the "
            f"file or the override"
        ) from None
    if folders and _set_up(config) != _set_up_by_us():
        raise UserError(
            f"{', '.join(folders)}: a file there configures Hydra, which could run code; remove every mention of hydra"
        )
    with open_dict(config):
        choices, experiment = config.pop("hydra").runtime.choices, config.pop("experiment", None)
    published: Any = OmegaConf.to_container(experiment) if isinstance(experiment, DictConfig) else {}
    return config, {group: str(choices[group]) for group in GROUPS if group in choices}, published


def search_path(folders: Folders) -> list[str]:
    """Return the override that makes Hydra search these config folders too; [] without folders."""
    paths = [quoted(f"file://{os.path.abspath(folder)}") for folder in folders]
    return [f"hydra.searchpath=[{','.join(paths)}]"] if paths else []


def _with_hydra(*overrides: str) -> DictConfig:
    """Return the config that these overrides compose to, including Hydra's own node."""
    with _set_aside(GlobalHydra.instance()), hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", overrides=list(overrides), return_hydra_config=True)


@contextmanager
def _set_aside(running: GlobalHydra) -> Iterator[None]:
    """Hide the running Hydra during the context: within a Hydra program of the user's, it would refuse to compose."""
    before, running.hydra = running.hydra, None
    try:
        yield
    finally:
        running.hydra = before


@cache
def _set_up_by_us() -> Any:
    return _set_up(_with_hydra())


def _set_up(config: DictConfig) -> Any:
    """Return how a config configures Hydra, without what only records the call."""
    node: Any = OmegaConf.to_container(config.hydra)
    node["job"].pop("override_dirname")
    return {key: value for key, value in node.items() if key not in ("runtime", "overrides", "searchpath")}
