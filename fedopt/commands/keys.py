"""The keys of a config: `fedopt --help` with overrides or the name of a key.

A key's meaning is the comment beside it in the config files; its type is that of the class's field (`config.classes`).
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import yaml

from fedopt.config import (
    GROUPS,
    ROLE,
    SETTINGS,
    Folders,
    about,
    chain,
    key_of,
    meanings,
    merge,
    options,
    title,
    tuned_names,
)
from fedopt.console import show, show_folded, show_table
from fedopt.errors import UserError, nearest

# Of a value, where no class says more
TYPES = {"int": "whole number", "float": "number", "bool": "true | false", "str": "text"}
NOTES = {
    "step size": "a number from 0, or a schedule by the round r: {kind: inverse_power, initial: 0.1, power: 0.5, delay: 1} is "
    "initial / (1 + r / delay)^power; also {kind: exponential, initial: 0.1, decay: 0.99} and {kind: piecewise, values: [0.1, "
    "0.01], boundaries: [100]}",
    "local work": "a number of steps such as 5, or of epochs such as '5 epochs', or {kind: growing, tau: 20, power: 0.5}, "
    "ceil(tau (r + 1)^power) steps in round r",
    "pattern": "groups of clients that are available in turn, {kind: cyclic, groups: 2, by: random, stay: 1}; clients that come "
    "and go with probabilities, {kind: markov, on: 0.1, off: 0.3}; or by the time of day, {kind: diurnal, share: 0.3, depth: 0.8, "
    "period: 24, groups: null}",
}
PLAIN = ["problem=quadratic_minimax"]  # its file sets none of the keys that every run has
STAND_INS = {"algo": "fedmsa", "problem": "mco"}  # for what a command does not choose
EVERY = ""  # the part of the keys that every run has, beside the groups


class Key(NamedTuple):
    """What the help shows about a config key.

    default: its value without tuned values, as YAML. tuned: its tuned value, as YAML; empty if it has none. type, meaning: in
        words.
    """

    default: str
    tuned: str
    type: str
    meaning: str


def keys(overrides: list[str], folders: Folders) -> tuple[dict[str, Key], Mapping[str, str], str]:
    """Return (key -> what the help shows, config group -> chosen option, a line on tuned values) for a command's config.

    Args:
        overrides: The overrides of the command. If it chooses no algorithm or problem, FedMSA and mco are used.
        folders: The user's config folders.

    Raises:
        UserError: As `merge` does.
    """
    chosen = {*map(key_of, overrides)}
    overrides = [f"{group}={name}" for group, name in STAND_INS.items() if not {group, "experiment"} & chosen] + overrides
    composed = merge(overrides, folders)
    usual = merge([*overrides, "preset=none"], folders) if composed.tuned.name else composed
    values, defaults = _leaves(composed.nodes), {**_leaves(usual.nodes), "preset": composed.nodes["preset"]}
    said, types = meanings(composed.chosen, folders), _types(composed.nodes)
    described = {
        key: Key(
            _shown(defaults.get(key)),
            _shown(value) if value != defaults.get(key) else "",
            types.get(key) or TYPES.get(type(value).__name__, ""),
            ROLE.sub("", said.get(key, "")),
        )
        for key, value in values.items()
    }
    return described, composed.chosen, str(composed.tuned)


def show_keys(overrides: list[str], folders: list[str]) -> None:
    """Print the keys of the config groups that a command chooses; with an algorithm and a problem, those of the complete run.

    overrides: the overrides; [] prints the keys that every run has. folders: the user's config folders.
    """
    described, chosen, tuned = keys(overrides or PLAIN, folders)
    groups = [group for group in GROUPS if group in map(key_of, overrides)]
    of_run = bool(overrides) and (not groups or {"algo", "problem"} <= {*groups} or "experiment" in groups)
    parts = [*GROUPS, EVERY] if of_run else groups or [EVERY]
    shown = {part: {key: row for key, row in described.items() if _part(key) == part} for part in parts}
    for part, rows in shown.items():
        if rows or (part == "experiment" and part in groups):
            head = f"={chosen[part]}: {title(part, chosen[part], folders)}" if part in chosen else ":"
            show("")
            show_folded(f"{part or 'every run'}{head}")
        if rows:
            _print(rows, of_run)
    _note_types(row for rows in shown.values() for row in rows.values())
    if "algo" in parts:
        show("")
        show_folded(tuned if of_run else _tuned_problems(chosen["algo"], folders))


def explain(asked: Iterable[str], overrides: list[str], folders: Folders) -> None:
    """Print the meanings of keys, or of all keys below a node such as `participation`.

    Args:
        asked: The keys. Those of a config group from which the overrides choose nothing, such as algo.beta, are explained for all
            of its options.
        overrides: The overrides of the command.
        folders: The user's config folders.

    Raises:
        UserError: A key does not exist.
    """
    described, chosen = keys(overrides or PLAIN, folders)[0], {*map(key_of, overrides)}
    for key in asked:
        group = _part(key)
        if group and not {group, "experiment"} & chosen:
            _explain_in_all(group, key, folders)
            continue
        rows = {name: row for name, row in described.items() if f"{name}.".startswith(f"{key}.")}
        if not rows:
            raise UserError(f"{key}: there is no such key{nearest(key, [*described])}; fedopt list keys shows all")
        _print(rows, with_tuned=any(row.tuned for row in rows.values()))
        _note_types(rows.values())


def _explain_in_all(group: str, key: str, folders: Folders) -> None:
    """Print each meaning of a key of a config group, with the options that have it. Raises UserError if none has it."""
    said = {name: meanings({group: name}, folders) for name in options(group, folders)}
    having: dict[str, list[str]] = {}
    for name in [name for name in said if key in said[name]]:
        having.setdefault(ROLE.sub("", said[name][key]), []).append(name)
    if not having:
        known = {known for keys_of in said.values() for known in keys_of if _part(known) == group}
        raise UserError(f"{key}: no {group} has this key{nearest(key, sorted(known))}")
    show_table([f"{key} is", f"with {group}="], [(meaning, ", ".join(names)) for meaning, names in having.items()])
    first = next(iter(having.values()))[0]
    show("")
    show_folded(f"its default value and type: fedopt --help {group}={first} {key}")


def _note_types(rows: Iterable[Key]) -> None:
    """Print what the types that need more words mean, such as a step size."""
    types = " ".join(row.type for row in rows)
    for kind in [kind for kind in NOTES if kind in types]:
        show("")
        show_folded(f"{kind}: {NOTES[kind]}")


def _part(key: str) -> str:
    """Return the config group of a key; '' for a key that every run has."""
    first = key.partition(".")[0]
    return first if first in GROUPS else EVERY


def _print(rows: Mapping[str, Key], with_tuned: bool) -> None:
    """Print keys. rows: key -> what to show. with_tuned: whether to show tuned values."""
    tuned = ["tuned"] if with_tuned else []
    cells = [
        (key, row.default, *([row.tuned] if with_tuned else []), row.type, row.meaning) for key, row in rows.items()
    ]
    show_table(["key", "default", *tuned, "type or values", "meaning"], cells)


def _tuned_problems(algo: str, folders: Folders) -> str:
    """Return a line that names the problems for which an algorithm has tuned values."""
    names = [name.split("/") for name in tuned_names(folders)]
    problems = sorted({problem for file, problem in names if file in chain("algo", algo, folders)})
    return f"tuned values for problem={', '.join(problems)}" if problems else "no tuned values for any problem"


def _leaves(node: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
    """Return dotted key -> value of a config. Keys that begin with an underscore are left out; a schedule counts as one value.

    inside: the node's own key and a dot.
    """
    leaves: dict[str, Any] = {}
    for name, value in node.items():
        if isinstance(value, dict) and value and "kind" not in value:
            leaves |= _leaves(value, f"{inside}{name}.")
        elif name[0] != "_":
            leaves[f"{inside}{name}"] = value
    return leaves


def _shown(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).split("\n")[0].strip("'")


def _types(nodes: Mapping[str, Any]) -> dict[str, str]:
    types = dict(about(SETTINGS)["fields"])
    for where, node in {**nodes, **{f"logger.{name}": node for name, node in nodes["logger"].items()}}.items():
        path = str(node.get("_target_", "")) if isinstance(node, dict) else ""
        types |= {f"{where}.{key}": overrides for key, overrides in about(path)["fields"].items()} if path else {}
    return types
