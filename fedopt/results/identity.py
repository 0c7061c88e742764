"""Decide whether two runs are the same, by their configs and data.

This is needed when a run is resumed, skipped, shared or compared. The module does not import torch.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path

from fedopt.config import Budget, Evaluation, Participation, about, flat
from fedopt.errors import UserError
from fedopt.files import Node

PLACE = ("output_dir", "resume", "logger", "keep", "preset")  # where a run writes, how it starts, and what it stores
LENGTH = "budget"  # a resumed run may have a larger budget; it is then a different run
PRECISION = ("hardware.dtype", "hardware.autocast", "hardware.tf32")  # the keys of hardware that change the numbers


def numbers(config: Mapping[str, object]) -> Node:
    """Return the config values on which the contents of the rows of metrics.csv depend.

    Values that only set how many rows there are, such as the budget, are left out. With eval.points, the budget is kept, because
    it then determines the rounds of the evaluations.
    """
    values = identity(config)
    return values if values.get("eval.points") else {k: v for k, v in values.items() if k.partition(".")[0] != LENGTH}


def identity(config: Mapping[str, object]) -> Node:
    """Return the values of a resolved config that determine metrics.csv, by dotted key.

    The result omits keys about where a run writes or how it starts, and keys of hardware other than its precision. It also
    omits keys that did not exist in older versions, if their value gives the behaviour of these versions.
    """
    values, others = flat(config), (*PLACE, "hardware")
    for key, before in _later(config).items():
        if key in values and values[key] == before:
            del values[key]
    return {key: value for key, value in values.items() if key in PRECISION or key.partition(".")[0] not in others}


def _later(config: Mapping[str, object]) -> Node:
    """Return the keys that configs of older runs may lack, with the values that reproduce these runs.

    Such keys exist in the nodes budget, eval and participation, and in fedopt's algorithms, problems and data sets.

    Args:
        config: The config of the run.
    """
    settings = [(node, f) for node, cls in (("budget", Budget), ("eval", Evaluation)) for f in fields(cls)]
    later = {f"{node}.{f.name}": f.default for node, f in settings if f.default is not MISSING}
    later |= {f"participation.{f.name}": f.default for f in fields(Participation) if "before" in f.metadata}
    for group in ("algo", "problem", "dataset"):
        path = str(node.get("_target_")) if isinstance(node := config.get(group), Mapping) else ""
        if path.startswith("fedopt."):
            later |= {f"{group}.{key}": before for key, before in about(path)["before"].items()}
    return later


def digits(config: Mapping[str, object], values: Callable[[Mapping[str, object]], Node] = identity) -> str:
    """Return a fingerprint of a config, ten hexadecimal digits.

    Args:
        config: The resolved config.
        values: The function that selects the values of the config that matter: `identity` or `numbers`.
    """
    return hashlib.sha256(json.dumps(values(config), sort_keys=True).encode()).hexdigest()[:10]


def stamp(config: Mapping[str, object]) -> dict[str, str]:
    """Return the two fingerprints of a config that a checkpoint stores.

    ``run`` covers the values that determine the contents of the rows of metrics.csv (`numbers`). ``length`` also covers the
    budget, which determines how many rows there are (`identity`).
    """
    return {"run": digits(config, numbers), "length": digits(config)}


def refuse_other_data(folder: Path, before: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Check that a run was started with the same data and the same partition among clients.

    Args:
        folder: The run's folder, for the message.
        before: The hashes that the run has recorded, by name.
        now: The hashes of the current data, by name.

    Raises:
        UserError: A hash differs.
    """
    if any(before.get(key) != value for key, value in now.items()):
        why = "the run was started with different data or a different partition"
        raise UserError(f"{folder}: {why}; restore them, or start a new run in another output_dir")


def refuse_other(folder: Path, old: Mapping[str, object], new: Mapping[str, object]) -> None:
    """Check that the run in a folder was started with the values of the current config.

    Args:
        folder: The run's folder.
        old: The values of the run, from `numbers` or `identity`.
        new: The values of the current config, from the same function.

    Raises:
        UserError: A value differs.
    """
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            before, now = ("null" if values.get(key) is None else values[key] for values in (old, new))
            other = f"choose another output_dir, or start from its checkpoint with from={folder}"
            raise UserError(f"the run in {folder} has {key}={before}, not {now}; set {key}={before}, or {other}")
