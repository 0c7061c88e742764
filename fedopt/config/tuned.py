"""Tuned values from conf/tuned/<algorithm>.yaml.

Such a file has a node for each problem. Its values apply unless the command sets other values. A node contains keys of the
nodes in `NODES`, and `source`, which describes how the values were found. The line `like: NAME` at the top of a file includes
the nodes of another file. An algorithm without a node for a problem uses the node of the algorithm that it builds on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from fedopt.config.files import CONF, Folders, chain, content, file_of, values_of
from fedopt.errors import UserError, first_line, unknown
from fedopt.files import Node

NODES = ("algo", "budget", "eval", "problem", "dataset", "partitioner", "participation", "hardware")
MODEL = ("dataset", "problem.model", "problem.widths")  # tuned step sizes may not suit another data set or model


@dataclass(frozen=True)
class Tuned:
    """The tuned values that apply to a run.

    Args:
        name: <algorithm>/<problem>, the file and its node; empty if no tuned values apply.
        pair: The algorithm and problem of the run, as the text '<algorithm> on <problem>'.
        keys: The keys whose tuned value takes effect.
        beside: The overrides that choose a data set or model for which the values were not tuned.
        left_out: Whether preset=none disables tuned values.
        defaults: Whether the search found nothing better than the defaults.
    """

    name: str = ""
    pair: str = ""
    keys: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    left_out: bool = False
    defaults: bool = False

    @property
    def effective(self) -> bool:
        """Whether the algorithm has tuned values: one outside `eval` takes effect, or tuning confirmed the defaults."""
        return self.defaults or any(not key.startswith("eval.") for key in self.keys)

    def __str__(self) -> str:
        if self.name:
            text = f"tuned values: {self.name}{' (equal to the defaults)' if self.defaults else ''}"
            other = f" (tuned without {' '.join(self.beside)}, so they may not fit; preset=none disables them)"
            return text + (other if self.beside else "")
        why = "tuned values are disabled (preset=none)" if self.left_out else f"no tuned values for {self.pair}"
        return f"{why}: keys that the command does not set have their default values"


def tuned_names(folders: Folders = ()) -> list[str]:
    """Return all names <algorithm>/<problem> for which there are tuned values, in fedopt's and the user's config folders."""
    files = {path.stem for root in (CONF, *folders) for path in Path(root, "tuned").glob("*.yaml")}
    return sorted(f"{file}/{problem}" for file in files for problem in nodes(file, folders))


def nodes(file: str, folders: Folders = ()) -> dict[str, Node]:
    """Return an algorithm's tuned values as nested dicts, problem -> config node -> key -> value; {} if there are none.

    Keys in the user's folders override the keys in fedopt's folder. With `like`, the keys of a file override the keys of the
    included file.

    Args:
        file: The name of the algorithm.
        folders: The user's config folders.

    Raises:
        UserError: A file cannot be read or contains unknown keys.
    """
    by_problem: dict[str, Node] = {}
    for path in (path for root in (CONF, *folders) if (path := Path(root, "tuned", f"{file}.yaml")).exists()):
        try:
            tuned = content(path)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise UserError(f"{path}: cannot be read ({first_line(error)}); correct it, or use preset=none") from None
        if "like" in tuned:
            if tuned["like"] == file:
                raise UserError(f"{path}: like={file} names this file itself; name another file")
            by_problem |= nodes(str(tuned.pop("like")), folders)
        for problem, node in tuned.items():
            if not isinstance(node, dict) or not {*node} <= {*NODES, "source"}:
                raise UserError(f"{path}: {problem}: must have no keys but {', '.join(NODES)} and source")
            before = by_problem.get(str(problem), {})
            merged = {name: {**before.get(name, {}), **(node.get(name) or {})} for name in NODES}
            by_problem[str(problem)] = {name: merged[name] for name in merged if name in {*before, *node}}
    return by_problem


def tuned_values(wanted: str, chosen: Mapping[str, str], folders: Folders) -> tuple[str, Node]:
    """Return the tuned values that apply to the chosen algorithm and problem.

    Keys that an experiment's file sets are left out. If the chosen algorithm builds on the algorithm that was tuned, the keys
    that its file sets are left out too.

    Args:
        wanted: The value of the key ``preset``: auto, none, or a name <algorithm>/<problem>.
        chosen: The chosen option of each config group.
        folders: The user's config folders.

    Returns:
        The name of the tuned values and the values by dotted key; ("", {}) if none apply.

    Raises:
        UserError: ``wanted`` is not a known name.
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
    # A variant's file turns the tuned algorithm into another method, so the values that it sets are not replaced
    setting = [("algo", option) for option in (line[line.index(file) + 1 :] if file in line else line[1:])]
    setting += [("experiment", option) for option in chain("experiment", chosen.get("experiment", "none"), folders)]
    taken = {key for group, option in setting for key in values_of(group, option, folders)}
    values = {f"{name}.{key}": v for name, node in nodes(file, folders)[problem].items() for key, v in node.items()}
    untouched = {key: value for key, value in values.items() if not any(overlap(key, other) for other in taken)}
    return f"{file}/{problem}", untouched


def overlap(key: str, other: str) -> bool:
    """Return whether two dotted keys are equal, or one contains the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def other_model(by_command: Mapping[str, object], chosen: Mapping[str, str], folders: Folders) -> tuple[str, ...]:
    """Return the overrides of a command that replace the problem's usual model or data set, such as ``dataset=digits``.

    Args:
        by_command: The command's values, by key.
        chosen: The chosen option of each config group.
        folders: The user's config folders.
    """
    usual = values_of("dataset", chosen.get("dataset", "none"), folders)
    for option in chain("problem", chosen["problem"], folders):
        usual |= values_of("problem", option, folders)
        for entry in content(file_of("problem", option, folders)).get("defaults", ()):
            usual |= {key.rpartition("/")[2]: name for key, name in entry.items()} if isinstance(entry, dict) else {}
    others = {key: value for key, value in by_command.items() if any(f"{key}.".startswith(f"{m}.") for m in MODEL)}
    return tuple(f"{key}={value}" for key, value in others.items() if usual.get(key) != value)
