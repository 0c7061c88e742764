"""What fedopt asks of Hydra: the files that the words of a command choose, composed."""

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
from fedopt.config.words import quoted
from fedopt.errors import UserError, first_line

TURN = RLock()  # Hydra's state and torch's modes belong to the process: runs in its threads take turns


@lru_cache(maxsize=1000)
def chosen_files(
    words: tuple[str, ...], folders: tuple[str, ...], state: tuple[Hashable, ...]
) -> tuple[DictConfig, dict[str, str], dict[str, Any]]:
    """What Hydra makes of the files that the words choose, the option of each group, and the node of an experiment.

    state: of the folders, by which a file that was changed is read anew.
    """
    try:
        config = _with_hydra(*search_path(folders), *words)
    except (HydraException, OmegaConfBaseException, MemoryError):
        raise
    except RecursionError:
        raise UserError(f"{', '.join(folders)}: files there name each other in their defaults without end") from None
    except Exception as error:  # a file that is no YAML, a defaults list of numbers, a word like =1
        raise UserError(f"the config cannot be read: {' '.join(str(error).split()) or first_line(error)}") from None
    if folders and _set_up(config) != _set_up_by_us():
        raise UserError(f"{', '.join(folders)}: a file there sets up Hydra, which could run code")
    with open_dict(config):
        choices, experiment = config.pop("hydra").runtime.choices, config.pop("experiment", None)
    published: Any = OmegaConf.to_container(experiment) if isinstance(experiment, DictConfig) else {}
    return config, {group: str(choices[group]) for group in GROUPS if group in choices}, published


def search_path(folders: Folders) -> list[str]:
    """The override that has Hydra search config folders besides fedopt's; none where there are none."""
    paths = [quoted(f"file://{os.path.abspath(folder)}") for folder in folders]
    return [f"hydra.searchpath=[{','.join(paths)}]"] if paths else []


def _with_hydra(*words: str) -> DictConfig:
    """The config that these words compose to, with Hydra's own node."""
    with _set_aside(GlobalHydra.instance()), hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", overrides=list(words), return_hydra_config=True)


@contextmanager
def _set_aside(running: GlobalHydra) -> Iterator[None]:
    """In a job of a sweep, which Hydra itself is running."""
    before, running.hydra = running.hydra, None
    try:
        yield
    finally:
        running.hydra = before


@cache
def _set_up_by_us() -> Any:
    return _set_up(_with_hydra())


def _set_up(config: DictConfig) -> Any:
    """What Hydra is told to do, except for what says how it was called."""
    node: Any = OmegaConf.to_container(config.hydra)
    node["job"].pop("override_dirname")
    return {key: value for key, value in node.items() if key not in ("runtime", "overrides", "searchpath")}
