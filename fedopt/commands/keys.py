"""Explain the keys of a config: `fedopt --help` with overrides or the name of a key.

The meaning of a key is its comment in the config files; its type is the type of the class's field (`config.classes`).
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
    flat,
    key_of,
    meanings,
    merge,
    options,
    title,
    tuned_names,
)
from fedopt.console import show, show_folded, show_table
from fedopt.errors import UserError, nearest

# The type by the Python type of the value, for keys without a class
TYPES = {"int": "whole number", "float": "number", "bool": "true | false", "str": "text"}
NOTES = {
    "step size": "a number, at least 0, or a schedule in the round r: {kind: inverse_power, initial: 0.1, power: 0.5, delay: 1} "
    "is initial / (1 + r / delay)^power; also {kind: exponential, initial: 0.1, decay: 0.99} and {kind: piecewise, values: "
    "[0.1, 0.01], boundaries: [100]}",
    "local work": "a number of steps such as 5, a number of epochs such as '5 epochs', or a schedule {kind: growing, tau: 20, "
    "power: 0.5}, which is ceil(tau (r + 1)^power) steps in round r",
    "pattern": "groups of clients that are available in turn, {kind: cyclic, groups: 2, by: random, stay: 1}; clients that "
    "become available and unavailable at random, {kind: markov, on: 0.1, off: 0.3}; or availability by the time of day, "
    "{kind: diurnal, share: 0.3, depth: 0.8, period: 24, groups: null}",
}
PLAIN = ["problem=quadratic_minimax"]  # its file sets none of the keys that every run has
STAND_INS = {"algo": "fedmsa", "problem": "mco"}  # used if a command chooses no algorithm or problem
EVERY = ""  # stands for the keys that every run has, among the config groups


class Key(NamedTuple):
    """The text that `fedopt --help` shows about a config key.

    Attributes:
        default: The value without tuned values, as YAML.
        tuned: The tuned value as YAML; empty if there is none.
        type: The type, as readable text.
        meaning: The comment in the config file.
    """

    default: str
    tuned: str
    type: str
    meaning: str


def keys(overrides: list[str], folders: Folders) -> tuple[dict[str, Key], Mapping[str, str], str]:
    """Return what `fedopt --help` shows about each key of a command's config.

    Args:
        overrides: The overrides of the command. If they choose no algorithm or problem, FedMSA and mco are used.
        folders: The user's config folders.

    Returns:
        A `Key` for each dotted key, the chosen option of each config group, and a line about the tuned values.

    Raises:
        UserError: A key or an option does not exist.
    """
    chosen = {*map(key_of, overrides)}
    missing = [f"{group}={name}" for group, name in STAND_INS.items() if not {group, "experiment"} & chosen]
    overrides = missing + overrides
    composed = merge(overrides, folders)
    usual = merge([*overrides, "preset=none"], folders) if composed.tuned.name else composed
    values = {key: value for key, value in flat(composed.nodes, schedules=True).items() if "._" not in key}
    defaults = {**flat(usual.nodes, schedules=True), "preset": composed.nodes["preset"]}
    comments, types = meanings(composed.chosen, folders), _types(composed.nodes)
    described = {
        key: Key(
            _shown(defaults.get(key)),
            _shown(value) if value != defaults.get(key) else "",
            types.get(key) or TYPES.get(type(value).__name__, ""),
            ROLE.sub("", comments.get(key, "")),
        )
        for key, value in values.items()
    }
    return described, composed.chosen, str(composed.tuned)


def show_keys(overrides: list[str], folders: list[str]) -> None:
    """Print the keys of the config groups from which a command chooses an option.

    If the command chooses both an algorithm and a problem, or an experiment, all keys of the run are printed.

    Args:
        overrides: The overrides; [] prints the keys that every run has.
        folders: The user's config folders.
    """
    described, chosen, tuned = keys(overrides or PLAIN, folders)
    groups = [group for group in GROUPS if group in map(key_of, overrides)]
    of_run = bool(overrides) and (not groups or {"algo", "problem"} <= {*groups} or "experiment" in groups)
    sections = [*GROUPS, EVERY] if of_run else groups or [EVERY]
    shown = {group: {key: row for key, row in described.items() if _group(key) == group} for group in sections}
    for group, rows in shown.items():
        if rows or (group == "experiment" and group in groups):
            head = f"={chosen[group]}: {title(group, chosen[group], folders)}" if group in chosen else ":"
            show("")
            show_folded(f"{group or 'every run'}{head}")
        if rows:
            _print(rows, of_run)
    _note_types(row for rows in shown.values() for row in rows.values())
    if "algo" in sections:
        show("")
        show_folded(tuned if of_run else _tuned_problems(chosen["algo"], folders))


def explain(asked: Iterable[str], overrides: list[str], folders: Folders) -> None:
    """Print the meanings of keys, with their types and default values.

    Args:
        asked: The keys. For a node such as `participation` all of its keys are explained. A key such as algo.beta is
            explained for all algorithms if the overrides choose no algorithm.
        overrides: The overrides of the command.
        folders: The user's config folders.

    Raises:
        UserError: A key does not exist.
    """
    described, chosen = keys(overrides or PLAIN, folders)[0], {*map(key_of, overrides)}
    for key in asked:
        group = _group(key)
        if group and not {group, "experiment"} & chosen:
            _explain_in_all(group, key, folders)
            continue
        rows = {name: row for name, row in described.items() if f"{name}.".startswith(f"{key}.")}
        if not rows:
            raise UserError(f"{key}: there is no such key{nearest(key, [*described])}; fedopt list keys shows all")
        _print(rows, with_tuned=any(row.tuned for row in rows.values()))
        _note_types(rows.values())


def _explain_in_all(group: str, key: str, folders: Folders) -> None:
    """Print what a key means for each option of its config group, since options may use a key differently.

    For the name of the group itself, print how to list its options and their keys.

    Args:
        group: The config group, such as algo.
        key: The dotted key, such as algo.beta.
        folders: The user's config folders.

    Raises:
        UserError: No option has the key.
    """
    if key == group:
        show_folded(f"fedopt list {key} shows the values of {key}; fedopt help {key}=NAME explains the keys of NAME")
        return
    comments = {name: meanings({group: name}, folders) for name in options(group, folders)}
    by_meaning: dict[str, list[str]] = {}
    for name in [name for name in comments if key in comments[name]]:
        by_meaning.setdefault(ROLE.sub("", comments[name][key]), []).append(name)
    if not by_meaning:
        known = {known for keys_of in comments.values() for known in keys_of if _group(known) == group}
        raise UserError(f"{key}: no {group} has this key{nearest(key, sorted(known))}; fedopt list keys shows all keys")
    show_table([f"{key} is", f"with {group}="], [(meaning, ", ".join(names)) for meaning, names in by_meaning.items()])
    first = next(iter(by_meaning.values()))[0]
    show("")
    show_folded(f"for the default value and type: fedopt --help {group}={first} {key}")


def _note_types(rows: Iterable[Key]) -> None:
    """Print an explanation of each type in a table of keys that needs one, such as a step size.

    Args:
        rows: The rows of the table.
    """
    types = " ".join(row.type for row in rows)
    for kind in [kind for kind in NOTES if kind in types]:
        show("")
        show_folded(f"{kind}: {NOTES[kind]}")


def _group(key: str) -> str:
    """Return the config group of a dotted key, such as algo; an empty text for a key outside all groups, which every run has."""
    first = key.partition(".")[0]
    return first if first in GROUPS else EVERY


def _print(rows: Mapping[str, Key], with_tuned: bool) -> None:
    """Print a table of keys.

    Args:
        rows: What to print about each key, by dotted key.
        with_tuned: Whether to show a column of tuned values.
    """
    cells = [(key, row.default, *[row.tuned] * with_tuned, row.type, row.meaning) for key, row in rows.items()]
    show_table(["key", "default", *["tuned"] * with_tuned, "type or values", "meaning"], cells)


def _tuned_problems(algo: str, folders: Folders) -> str:
    """Return a line for the user that names the problems for which an algorithm has tuned values.

    Args:
        algo: The name of the algorithm.
        folders: The user's config folders.
    """
    names = [name.split("/") for name in tuned_names(folders)]
    problems = sorted({problem for file, problem in names if file in chain("algo", algo, folders)})
    return f"tuned values for problem={', '.join(problems)}" if problems else "no tuned values for any problem"


def _shown(value: object) -> str:
    """Return a value of a config as YAML on one line, without quotes."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).split("\n")[0].strip("'")


def _types(nodes: Mapping[str, Any]) -> dict[str, str]:
    """Return the type of each key of a config as readable text, by dotted key. Keys that belong to no class are left out.

    Args:
        nodes: The config, as nested dicts.
    """
    types = dict(about(SETTINGS)["fields"])
    for where, node in {**nodes, **{f"logger.{name}": node for name, node in nodes["logger"].items()}}.items():
        path = str(node.get("_target_", "")) if isinstance(node, dict) else ""
        types |= {f"{where}.{key}": text for key, text in about(path)["fields"].items()} if path else {}
    return types
