"""Tuned values, from conf/tuned/<algorithm>.yaml.

The file has a node for each problem; its values apply unless the command sets others.

A node holds keys of the parts in `NODES`, and `source`, which says how they were found. `like: NAME` at the top of a file
takes over the nodes of another file. An algorithm without a node for a problem uses that of the algorithm its file builds on.
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
    """Which tuned values apply to a run.

    Args:
        name: <algorithm>/<problem>, the file and its node; empty if none apply.
        pair: '<algorithm> on <problem>' of the run.
        keys: The keys whose tuned value takes effect.
        beside: Overrides that choose a different data set or model than the values were tuned for.
        left_out: Whether preset=none leaves tuned values out.
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
        """Whether a tuned value other than those under `eval` takes effect, or the defaults are the tuned values."""
        return self.defaults or any(not key.startswith("eval.") for key in self.keys)

    def __str__(self) -> str:
        if self.name:
            text = f"tuned values: {self.name}{', the defaults' if self.defaults else ''}"
            other = f" (found without {' '.join(self.beside)}, so they may not suit it; preset=none leaves them out)"
            return text + (other if self.beside else "")
        why = "tuned values are not used (preset=none)" if self.left_out else f"no tuned values for {self.pair}"
        return f"{why}: keys that the command does not set have their defaults"


def tuned_names(folders: Folders = ()) -> list[str]:
    """Return all names <algorithm>/<problem> that have tuned values. folders: config folders besides fedopt's."""
    files = {path.stem for root in (CONF, *folders) for path in Path(root, "tuned").glob("*.yaml")}
    return sorted(f"{file}/{problem}" for file in files for problem in nodes(file, folders))


def nodes(file: str, folders: Folders = ()) -> dict[str, dict[str, Any]]:
    """Return the nodes of a file of tuned values: problem -> part -> key -> value. A missing file gives {}.

    A key in a later folder wins; fedopt's folder is the first. With `like`, the nodes of that other file come first.
    file: the algorithm. folders: config folders besides fedopt's. Raises UserError for a file that cannot be read or has
        other keys.
    """
    by_problem: dict[str, Any] = {}
    for path in (path for root in (CONF, *folders) if (path := Path(root, "tuned", f"{file}.yaml")).exists()):
        try:
            read = content(path)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise UserError(f"{path}: cannot be read ({first_line(error)}); mend it, or use preset=none") from None
        if "like" in read:
            if read["like"] == file:
                raise UserError(f"{path}: like: names this file itself; name another one")
            by_problem |= nodes(str(read.pop("like")), folders)
        for problem, node in read.items():
            if not isinstance(node, dict) or not {*node} <= {*NODES, "source"}:
                raise UserError(f"{path}: {problem}: has other keys than {', '.join(NODES)} and source; remove them")
            before = by_problem.get(str(problem), {})
            parts = {part: {**before.get(part, {}), **(node.get(part) or {})} for part in NODES}
            by_problem[str(problem)] = {part: parts[part] for part in parts if part in {*before, *node}}
    return by_problem


def tuned_values(wanted: str, chosen: Mapping[str, str], folders: Folders) -> tuple[str, dict[str, Any]]:
    """Return the name of the tuned values that apply, and the values by dotted key; ("", {}) if none apply.

    Keys that an experiment's file sets are left out. So are those that the chosen algorithm's file sets, if it builds on the
    algorithm that was tuned.

    Args:
        wanted: The key ``preset``: auto, none, or a name <algorithm>/<problem>.
        chosen: The option of each group.
        folders: Config folders besides fedopt's.

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
    """Tell whether these tuned values are the algorithm's defaults, because a search found nothing better.

    name: <algorithm>/<problem>. folders: config folders besides fedopt's.
    """
    file, _, problem = name.partition("/")
    return nodes(file, folders)[problem].get("algo") == {}


def overlap(key: str, other: str) -> bool:
    """Tell whether two dotted keys are equal, or one lies inside the other."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def other_model(by_command: Mapping[str, Any], chosen: Mapping[str, str], folders: Folders) -> tuple[str, ...]:
    """Return the command's overrides that choose a different model or data set than the file of the problem. Reads files only.

    Args:
        by_command: The command's values, by key.
        chosen: The option of each group.
        folders: Config folders besides fedopt's.
    """
    usual = values_of("dataset", chosen.get("dataset", "none"), folders)
    for option in chain("problem", chosen["problem"], folders):
        usual |= values_of("problem", option, folders)
        for entry in content(file_of("problem", option, folders)).get("defaults", ()):
            usual |= {key.rpartition("/")[2]: name for key, name in entry.items()} if isinstance(entry, dict) else {}
    others = {key: value for key, value in by_command.items() if any(f"{key}.".startswith(f"{m}.") for m in MODEL)}
    return tuple(f"{key}={value}" for key, value in others.items() if usual.get(key) != value)
