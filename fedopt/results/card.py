"""The run card, run.json: everything that is needed to reproduce a run."""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from secrets import token_hex
from types import ModuleType

import numpy as np
import torch

import fedopt
from fedopt.config import Composed, flat, imported
from fedopt.console import note
from fedopt.errors import UserError, is_own
from fedopt.files import Node
from fedopt.machine import processor
from fedopt.problems import Problem
from fedopt.results.folder import RunFolder
from fedopt.results.identity import identity

PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "torchvision", "pandas", "pydantic", "safetensors")
NUMERICAL = ("fedopt", "python", "torch", "numpy")  # the versions on which a run's numbers depend


def how(composed: Composed) -> Node:
    """Return the entries of run.json that describe the command.

    They are the overrides, the chosen options of the config groups, the config folders, the tuned values, the departures (keys
    that make comparisons unequal) and the seed.

    Args:
        composed: The config.
    """
    command = {"overrides": [*composed.overrides], "chosen": {**composed.chosen}, "folders": [*composed.folders]}
    values = {"tuned": asdict(composed.tuned), "departures": composed.departures, "seed": composed.settings.seed}
    return command | values


def run_card(composed: Composed, problem: Problem, data: Mapping[str, object]) -> Node:
    """Return the card of a run that starts.

    The card contains the command, the names of metrics, clients, classes and features, hashes of the data and of the user's
    modules, the versions, the machine, and the commit if the code is a git checkout.

    Args:
        composed: The config.
        problem: The problem.
        data: The hashes of the data, from `Experiment.data`, and the clients' `effective_weights`.
    """
    clients = problem.splits["train"].names
    names = {"clients": clients, "classes": problem.class_names, "features": problem.feature_names}
    return {
        "command": shlex.join(sys.argv),
        "directory": os.getcwd(),
        **how(composed),
        "id": token_hex(4),
        "metrics": [asdict(metric) for metric in problem.metrics],
        **({"client_metric": asdict(problem.client_metric)} if problem.client_metric else {}),
        **{key: list(value) for key, value in names.items() if len(value)},
        **data,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": _versions(),
        "sources": sources(composed.nodes),
        "machine": {
            "platform": platform.platform(),
            "processor": processor(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def say_other_versions(folder: RunFolder) -> None:
    """Print and log a note if a run is resumed with a different commit or different versions than at its start.

    Args:
        folder: The run's folder.
    """
    card, now = folder.card(), {**_versions(), "commit": commit()}
    if "versions" not in card:
        return
    before = {**card["versions"], "commit": card.get("commit")}
    changed = [name for name in (*NUMERICAL, "commit") if before.get(name) != now[name]]
    if what := ", ".join(f"{name} {now[name]} instead of {before.get(name)}" for name in changed):
        note(f"{folder.path}: resumed with {what}; numbers may differ in the last digits")
        folder.log(f"resumed with {what}")


def say_changed(folder: RunFolder, config: Mapping[str, object]) -> None:
    """Print a note if modules of the user have changed since a run started.

    Args:
        folder: The run's folder.
        config: The run's config.
    """
    if before := folder.card().get("sources"):  # if it is empty, the run uses no code of the user
        modules = [name for name, digest in sources(config).items() if digest != before.get(name, digest)]
        if modules:
            what = f"{', '.join(modules)} changed since this run started"
            note(f"{folder.path}: {what}; it continues with the new code; to start again, delete the folder")


def division(problem: Problem) -> str:
    """Return a hash of the partition: the examples of each client, and the classes of the examples.

    Args:
        problem: The problem, whose splits list the examples of each client.
    """
    digest = hashlib.sha256()
    arrays = [array for split in problem.splits.values() for array in (split.rows, split.sizes)]
    for array in [*arrays, problem.labels]:
        digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def facts(config: Node, data: Mapping[str, str | None]) -> Node:
    """Return the values that must be equal on all ranks of a run: the config, and hashes of code, versions and data.

    Args:
        config: The resolved config.
        data: The hashes of the run's data.
    """
    versions = _versions()
    return identity(config) | sources(config) | {name: versions[name] for name in NUMERICAL} | {**data}


def _versions() -> dict[str, str | None]:
    packages = {name: _version(name) for name in PACKAGES}
    return {"fedopt": fedopt.__version__, "python": platform.python_version(), **packages}


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def commit() -> str | None:
    """Return the commit of the git checkout, followed by `+changes` if there are uncommitted changes; None without a checkout.

    It is determined once per process, since imported code does not change.
    """
    root = Path(fedopt.__file__).parents[1]
    if not (root / ".git").exists():
        return None
    words = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def sources(config: Mapping[str, object]) -> dict[str, str]:
    """Return hashes of the user's modules that a config names, and of the user's modules that they import, by module name.

    Modules that cannot be imported are left out.
    """
    paths = (str(value) for key, value in flat(config).items() if key.endswith("_target_") or key == "problem.model")
    modules = [_module(path) for path in paths]
    hashes: dict[str, str] = {}
    while modules:
        module = modules.pop()
        file = getattr(module, "__file__", None) or ""
        if module is not None and module.__name__ not in hashes and is_own(file):
            hashes[module.__name__] = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:10]
            modules += [_origin(value) for value in vars(module).values()]
    return dict(sorted(hashes.items()))


def _module(path: str) -> ModuleType | None:
    """Return the module of a class by the dotted path of the class; None if it cannot be imported.

    No error is raised here, since building the class will raise it.
    """
    with suppress(UserError):
        imported(path, path)
    return sys.modules.get(path.rpartition(".")[0])


def _origin(value: object) -> ModuleType | None:
    """Return the value itself if it is a module, otherwise the module that defines it; None if unknown."""
    name = getattr(value, "__module__", None)
    return value if isinstance(value, ModuleType) else sys.modules.get(name) if isinstance(name, str) else None
