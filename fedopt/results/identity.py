"""What makes two runs the same run: asked when a run is resumed, skipped, shared or compared. Imports no torch."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedopt.config.files import flat
from fedopt.errors import UserError

PLACE = ("output_dir", "resume", "logger", "keep", "preset")  # where a run goes, how it starts, and what it leaves
LENGTH = "budget"  # a run may be made longer, and is another one then
# Keys that older runs lack, and the values with which they change nothing
LATER = {
    "eval.points": None,
    "budget.oracle_calls": None,
    "budget.until": "first",
    "algo.neumann": "sum",
    "algo.sampling": "uniform",
    "algo.correction": "sample",
    "algo.order": "code",
    "algo.restart": False,
    "algo.at": "new",
    "problem.penalty": None,
    "problem.alike": False,
}
PRECISION = ("hardware.dtype", "hardware.autocast", "hardware.tf32")  # numbers depend on these of the machine


def numbers(config: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted keys and values of a resolved config that the rows of metrics.csv depend on, except for their number.

    With eval.points, the budget is one: it says when to evaluate.
    """
    values = identity(config)
    return (
        values if values.get("eval.points") else {key: values[key] for key in values if key.partition(".")[0] != LENGTH}
    )


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted keys and values that all runs with the same metrics.csv share: `numbers`, and the budget."""
    values = {key: value for key, value in flat(config).items() if key not in LATER or value != LATER[key]}
    others = (*PLACE, "hardware")
    return {key: value for key, value in values.items() if key in PRECISION or key.partition(".")[0] not in others}


def digits(config: Mapping[str, Any], values: Callable[[Mapping[str, Any]], dict[str, Any]] = identity) -> str:
    """Ten hexadecimal digits that runs of the same identity, or of the same `numbers`, share."""
    return hashlib.sha256(json.dumps(values(config), sort_keys=True).encode()).hexdigest()[:10]


def stamp(config: dict[str, Any]) -> dict[str, str]:
    """A checkpoint's words on its config: `run`, the digits of what its rows depend on; `length`, those with the budget."""
    return {"run": digits(config, numbers), "length": digits(config)}


def refuse_other_data(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises UserError where the run in a folder began with other data, or with another division of them among clients.

    before: what the run has noted; now: what to compare of it.
    """
    if missing := [key for key in now if key not in before]:
        raise UserError(f"{folder}: the run has not noted its {missing[0]}; begin anew in another output_dir")
    if any(before[key] != value for key, value in now.items()):
        why = "the run began with other data, or another division of them"
        raise UserError(f"{folder}: {why}; bring these back, or begin anew in another output_dir")


def refuse_other(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raises UserError where the run in a folder was begun with other values than those that are now asked for.

    old, new: what `numbers` or `identity` give.
    """
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            begun, wanted = ("null" if values.get(key) is None else values[key] for values in (old, new))
            other = f"another output_dir, or from={folder} to begin at its checkpoint"
            raise UserError(f"the run in {folder} was begun with {key}={begun}, not {wanted}: give {begun}, or {other}")
