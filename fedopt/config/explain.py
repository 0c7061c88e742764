"""One line for a mistake in the words of a command or in a config file: what, where, and the nearest valid name."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from hydra.errors import MissingConfigException, OverrideParseException

from fedopt.config.files import GROUPS, options
from fedopt.config.words import key_of
from fedopt.errors import first_line, nearest, unknown


def explain(error: Exception, words: Sequence[str], keys: Sequence[str]) -> str:
    """What Hydra or OmegaConf says, in the words of the command. keys: the groups and the dotted keys that there are."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        missing = error.missing_cfg_file
        nested = missing.startswith("experiment/")  # Hydra's options are those of one folder then
        group, _, option = missing.partition("/") if nested else missing.rpartition("/")
        return unknown(group, option, options(group) if nested else sorted(error.options or []) or options(group))
    text = " ".join(str(error).split())
    key = getattr(error, "full_key", None) if "is not in struct" in text or "Key '" in text else None
    if key or (overridden := re.search(r"Could not override '([^']+)'", text)):
        return _unknown_key(str(key or overridden[1]), words, keys)  # type: ignore[index]
    if merging := re.search(r"Error merging override (.*)", text):
        return f"{merging[1]}: this key holds no such value"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not an override; write key=value, with quotes around values that hold blanks, commas or braces"
    line = first_line(error)
    return text.partition(" full_key:")[0][:300] if line.endswith(":") else line  # what is wrong comes after it


def _unknown_key(key: str, words: Sequence[str], keys: Sequence[str]) -> str:
    """For a key that the config does not have."""
    if key in GROUPS:
        return f"{key}: neither the algorithm's nor the problem's file names one; +{key}=NAME adds one"
    if node := next((word for word in words if key_of(word) not in GROUPS and key.startswith(f"{key_of(word)}.")), ""):
        return f"{node}: is set by its keys, such as {key}=VALUE"
    if key in keys:
        return f"{key}: not every choice of the sweep has this key"
    group, _, name = key.partition(".")
    chosen = next((w for w in words if key_of(w) == group in GROUPS and w.partition("=")[2] not in options(group)), "")
    if (
        chosen
        and "," not in chosen
        and not get_close_matches(name, [known.removeprefix(f"{group}.") for known in keys])
    ):
        given = next((word for word in words if word.startswith(f"{key}=")), f"{key}=VALUE")
        return (
            f"{key}: the file of {chosen} has no such key; +{given} sets a field of its class that the file leaves out"
        )
    choices = [word for word in words if key_of(word) in ("algo", "problem") and "," not in word]
    explained = f"fedopt --help {' '.join(choices or ['algo=NAME', 'problem=NAME'])} explains them"
    return f"{key}: there is no such key{_meant(key.lstrip('+~'), keys)}; {explained}"


def _meant(word: str, keys: Sequence[str]) -> str:
    """As `nearest`, or the keys beside a key that resembles none of them.

    A word without dots is a group or the last part of a key.
    """
    parent, _, leaf = word.rpartition(".")
    beside = [name.removeprefix(f"{parent}.") for name in keys if parent and name.rpartition(".")[0] == parent]
    if beside:
        near = get_close_matches(leaf, beside, 1, 0.7)  # 0.6 would take eta_x for beta
        return f", did you mean {parent}.{near[0]}?" if near else f"; {parent} has {', '.join(beside)}"
    if parent:
        return nearest(word, list(keys))
    leaves = {name.rpartition(".")[2]: name for name in keys}
    # algorithm is meant as a group rather than as a key
    near = get_close_matches(word, leaves, 1) or get_close_matches(word, [g for g in GROUPS if len(word) > 4], 1, 0.5)
    return f", did you mean {leaves[near[0]]}?" if near else ""
