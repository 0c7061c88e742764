"""Tuned values: conf/tuned/<algorithm>.yaml has a node for each problem, whose values apply unless the command sets others.

A node holds the keys of `NODES` with their values, and `source`, which says where these come from. `like: NAME` at the top of a
file names another one, whose nodes it changes. An algorithm without a node for a problem takes that of the file it builds on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fedopt.config.files import CONF, Folders, chain, content, file_of, values_of
from fedopt.errors import UserError, first_line, unknown

NODES = ("algo", "budget", "eval", "problem", "dataset", "partitioner", "participation", "hardware")
MODEL = ("dataset", "problem.model", "problem.widths")  # steps that suit one of their values need not suit another


@dataclass(frozen=True)
class Tuned:
    """The tuned values of a run.

    name: <algorithm>/<problem>, the file and its node; empty where none apply. pair: what the values are for.
    keys: those whose tuned value takes effect. beside: the command's choices of other data or another model than the tuned ones.
    defaults: whether the node has an empty `algo`, since the defaults won the search.
    """

    name: str = ""
    pair: str = ""
    keys: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    left_out: bool = False
    defaults: bool = False

    @property
    def effective(self) -> bool:
        """True if at least one tuned value takes effect, or the defaults are the tuned values. Keys under `eval` do not count."""
        return self.defaults or any(not key.startswith("eval.") for key in self.keys)

    def __str__(self) -> str:
        if self.name:
            more = [f"tuned without {' '.join(self.beside)}"] if self.beside else []
            return ", ".join([f"tuned values: {self.name}", *["the defaults"] * self.defaults, *more])
        why = "preset=none leaves tuned values out" if self.left_out else f"no tuned values for {self.pair}"
        return f"{why}: what the command does not set has its default"


def tuned_names(folders: Folders = ()) -> list[str]:
    """All names <algorithm>/<problem> that have tuned values."""
    files = {path.stem for root in (CONF, *folders) for path in Path(root, "tuned").glob("*.yaml")}
    return sorted(f"{file}/{problem}" for file in files for problem in nodes(file, folders))


def nodes(file: str, folders: Folders = ()) -> dict[str, dict[str, Any]]:
    """The tuned values of a file, by problem; a user's folder wins over fedopt's. Raises UserError for a file of another kind."""
    by_problem: dict[str, Any] = {}
    for path in (path for root in (CONF, *folders) if (path := Path(root, "tuned", f"{file}.yaml")).exists()):
        try:
            read = content(path)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise UserError(f"{path}: cannot be read: {first_line(error)}") from None
        if "like" in read:
            if read["like"] == file:
                raise UserError(f"{path}: like: names the file itself")
            by_problem |= nodes(str(read.pop("like")), folders)
        for problem, node in read.items():
            if not isinstance(node, dict) or not {*node} <= {*NODES, "source"}:
                raise UserError(f"{path}: {problem}: has the keys {', '.join(NODES)} and source")
            before = by_problem.get(str(problem), {})
            parts = {part: {**before.get(part, {}), **(node.get(part) or {})} for part in NODES}
            by_problem[str(problem)] = {part: parts[part] for part in parts if part in {*before, *node}}
    return by_problem


def tuned_values(wanted: str, chosen: Mapping[str, str], folders: Folders) -> tuple[str, dict[str, Any]]:
    """The name of the tuned values of a pair, and the values by dotted key, without those that an experiment's file sets.

    wanted: the key `preset`. Raises UserError for an unknown name.
    """
    line, problem = chain("algo", chosen["algo"], folders), chosen["problem"]
    if wanted == "none":
        return "", {}
    if wanted == "auto":
        file = next((name for name in reversed(line) if problem in nodes(name, folders)), "")
    elif wanted in (names := tuned_names(folders)):
        file, _, problem = wanted.partition("/")
    else:
        raise UserError(unknown("preset", wanted, ["auto", "none", *names]))
    if not file:
        return "", {}
    # What the files of a variant set makes it another method
    setting = [("algo", option) for option in (line[line.index(file) + 1 :] if file in line else line[1:])]
    setting += [("experiment", option) for option in chain("experiment", chosen.get("experiment", "none"), folders)]
    taken = {key for group, option in setting for key in values_of(group, option, folders)}
    node = nodes(file, folders)[problem]
    values = {f"{part}.{key}": value for part in node for key, value in node[part].items()}
    return f"{file}/{problem}", {
        key: value for key, value in values.items() if not any(overlap(key, other) for other in taken)
    }


def keeps_defaults(name: str, folders: Folders = ()) -> bool:
    """Whether tuned values, by their name, are the algorithm's defaults: a search has found no better ones."""
    file, _, problem = name.partition("/")
    return nodes(file, folders)[problem].get("algo") == {}


def overlap(key: str, other: str) -> bool:
    """True if one of two dotted keys is the other or lies inside it."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def other_model(by_command: Mapping[str, Any], chosen: Mapping[str, str], folders: Folders) -> tuple[str, ...]:
    """The values of a command that are another model or other data than the problem's own file has. Reads files only."""
    usual = values_of("dataset", chosen.get("dataset", "none"), folders)
    for option in chain("problem", chosen["problem"], folders):
        usual |= values_of("problem", option, folders)
        for entry in content(file_of("problem", option, folders)).get("defaults", ()):
            usual |= {key.rpartition("/")[2]: name for key, name in entry.items()} if isinstance(entry, dict) else {}
    others = {key: value for key, value in by_command.items() if any(f"{key}.".startswith(f"{m}.") for m in MODEL)}
    return tuple(f"{key}={value}" for key, value in others.items() if usual.get(key) != value)
