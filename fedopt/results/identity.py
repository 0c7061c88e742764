"""Whether two runs are the same run, by their configs and data. Asked when a run is resumed, skipped, shared or compared.

Imports no torch.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from fedopt.config import Budget, Evaluation, Participation, about, flat
from fedopt.errors import UserError

PLACE = ("output_dir", "resume", "logger", "keep", "preset")  # where a run goes, how it starts, and what it leaves
LENGTH = "budget"  # a run may be made longer, and is another one then
PRECISION = ("hardware.dtype", "hardware.autocast", "hardware.tf32")  # numbers depend on these of the machine


def numbers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys and values of a resolved config that determine the rows of metrics.csv, but not how many rows there are.

    The budget is included only with eval.points, when it decides at which rounds metrics are taken.
    """
    values = identity(config)
    return (
        values if values.get("eval.points") else {key: values[key] for key in values if key.partition(".")[0] != LENGTH}
    )


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys and values of a resolved config that determine metrics.csv: those of `numbers`, and the budget.

    Left out are keys that say where a run goes or how it starts, and those of hardware except precision. Also left out are
    keys that older runs lack, if their value reproduces those runs.
    """
    values, others = flat(config), (*PLACE, "hardware")
    for key, before in _later(config).items():
        if key in values and values[key] == before:
            del values[key]
    return {key: value for key, value in values.items() if key in PRECISION or key.partition(".")[0] not in others}


def _later(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that configs of older runs may lack. Each has the value with which a new run does what older runs did.

    Only parts that every run has, and fedopt's algorithms, problems and data sets, have such keys.
    """
    parts = {"budget": Budget, "eval": Evaluation}
    later = {
        f"{part}.{f.name}": f.default for part, cls in parts.items() for f in fields(cls) if f.default is not MISSING
    }
    later |= {f"participation.{f.name}": f.default for f in fields(Participation) if "before" in f.metadata}
    for group in ("algo", "problem", "dataset"):
        path = str(config[group].get("_target_")) if isinstance(config.get(group), Mapping) else ""
        if path.startswith("fedopt."):
            later |= {f"{group}.{key}": before for key, before in about(path)["before"].items()}
    return later


def digits(config: Mapping[str, Any], values: Callable[[Mapping[str, Any]], dict[str, Any]] = identity) -> str:
    """Return a fingerprint of a config, ten hexadecimal digits.

    Args:
        config: The resolved config.
        values: Which keys count: `identity` or `numbers`.
    """
    return hashlib.sha256(json.dumps(values(config), sort_keys=True).encode()).hexdigest()[:10]


def stamp(config: dict[str, Any]) -> dict[str, str]:
    """Return what a checkpoint notes of its config: ``run``, the fingerprint of `numbers`, and ``length``, that of `identity`."""
    return {"run": digits(config, numbers), "length": digits(config)}


def refuse_other_data(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UserError if a run began with different data or a different partition among clients.

    Args:
        folder: The run's folder, for the message.
        before: The hashes that the run has recorded, by name.
        now: The hashes of the present data, by name.
    """
    if any(before.get(key) != value for key, value in now.items()):
        why = "the run began with different data, or a different partition"
        raise UserError(f"{folder}: {why}; restore them, or begin again in another output_dir")


def refuse_other(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise UserError if the run in a folder began with values that differ from those of the present config.

    Args:
        folder: The run's folder.
        old: Its keys and values, from `numbers` or `identity`.
        new: The keys and values of the present config, from the same function.
    """
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            begun, wanted = ("null" if values.get(key) is None else values[key] for values in (old, new))
            other = f"choose another output_dir, or begin at its checkpoint with from={folder}"
            raise UserError(f"the run in {folder} was begun with {key}={begun}, not {wanted}; give {begun}, or {other}")
