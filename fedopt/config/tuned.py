"""Tuned values: conf/tuned/<algorithm>.yaml has a node for each problem, whose values apply unless the command sets others.

A node holds keys of `algo`, `budget` and `eval`, and `source`, which says where the values come from. `like: NAME` at the top of a
file names another one, whose nodes it changes. An algorithm without a node for a problem takes that of the file it builds on.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError

from fedopt.config.files import CONF, Folders, chain, content, file_of, flat, keys_set_by
from fedopt.errors import UserError, first_line, unknown

NODES = ("algo", "budget", "eval")
MODEL = ("dataset", "problem.model", "problem.widths")  # steps that suit one of their values need not suit another


@dataclass(frozen=True)
class Tuned:
    """The tuned values of a run.

    name: <algorithm>/<problem>, the file and its node; empty where none apply. pair: what the values are for.
    keys: those whose tuned value takes effect. beside: the command's choices of other data or another model than the tuned ones.
    """

    name: str = ""
    pair: str = ""
    keys: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    left_out: bool = False

    @classmethod
    def read(cls, node: Any) -> "Tuned":
        """As a run card has it; without tuned values where it says nothing that can be read."""
        try:
            return TypeAdapter(cls).validate_python(node)
        except ValidationError:
            return cls()

    @property
    def effective(self) -> bool:
        """True if at least one tuned value takes effect. Keys under `eval` do not count."""
        return any(not key.startswith("eval.") for key in self.keys)

    def __str__(self) -> str:
        if self.name:
            return f"tuned values: {self.name}" + f", tuned without {' '.join(self.beside)}" * bool(self.beside)
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
            merged = OmegaConf.merge(by_problem.get(problem, {}), {key: node[key] for key in node if key != "source"})
            by_problem[str(problem)] = OmegaConf.to_container(merged)
    return by_problem


def tuned_values(
    wanted: str, chosen: Mapping[str, str], set_elsewhere: Collection[str], folders: Folders
) -> tuple[str, Any]:
    """The name of the tuned values of a pair, and the values without those that are set elsewhere.

    wanted: the key `preset`. set_elsewhere: keys that the command or an experiment sets. Raises UserError for an unknown name.
    """
    algo, problem = chosen["algo"], chosen["problem"]
    line = chain("algo", algo, folders)
    if wanted == "auto":
        file = next((name for name in reversed(line) if problem in nodes(name, folders)), "")
        name = f"{file}/{problem}" if file else ""
    else:
        name = wanted if wanted != "none" else ""
        if name and name not in (names := tuned_names(folders)):
            raise UserError(unknown("preset", name, ["auto", "none", *names]))
        file = name.partition("/")[0]
    if not name:
        return "", {}
    derived = (
        line[line.index(file) + 1 :] if file in line else line[1:]
    )  # what these files set is what makes them other methods
    taken = {*set_elsewhere, *(key for option in derived for key in keys_set_by("algo", option, folders))}
    values = {
        f"{n}.{key}": v for n, node in nodes(file, folders)[name.partition("/")[2]].items() for key, v in node.items()
    }
    return name, {key: value for key, value in values.items() if not any(overlap(key, other) for other in taken)}


def overlap(key: str, other: str) -> bool:
    """True if one of two dotted keys is the other or lies inside it."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def other_model(words: Iterable[tuple[str, Any]], chosen: Mapping[str, str], folders: Folders) -> tuple[str, ...]:
    """The words, by key and value, that choose another model or other data than the problem's own file. Reads files only."""
    files = [file_of("problem", option, folders) for option in chain("problem", chosen["problem"], folders)]
    usual: dict[str, Any] = {}
    for read in map(content, files):
        usual |= flat(read) | {
            key.rpartition("/")[2]: v for d in read.get("defaults", ()) if isinstance(d, dict) for key, v in d.items()
        }
    if chosen.get("dataset") not in (None, "none"):
        usual |= {
            f"dataset.{key}": value
            for key, value in flat(content(file_of("dataset", chosen["dataset"], folders))).items()
        }
    others = ((key, value) for key, value in words if any(f"{key}.".startswith(f"{model}.") for model in MODEL))
    return tuple(f"{key}={value}" for key, value in others if usual.get(key) != value)
