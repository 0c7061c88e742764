"""One-line messages for errors in a command or a config file: what is wrong, where, and the nearest valid name."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from hydra.errors import MissingConfigException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError

from fedopt.config.files import GROUPS, options, values_of
from fedopt.config.overrides import key_of
from fedopt.deprecated import removed
from fedopt.errors import MEANT, MOST_ALIKE, nearest, unknown

KINDS = {  # name of a key in other programs -> pattern in the comment of fedopt's key
    **dict.fromkeys(("lr", "learning_rate", "step_size", "stepsize", "step"), "tuned as a step size"),
    **dict.fromkeys(("batch_size", "batch", "batchsize"), "^examples |^outer samples "),
    **dict.fromkeys(("epochs", "local_epochs", "local_steps", "steps"), "tuned as a number of local steps"),
}

BRIEF = ("dataset", "partitioner", "logger")  # groups with few options, each with different keys


def explain(error: Exception, overrides: Sequence[str], keys: Mapping[str, str]) -> str:
    """Return a one-line message about the command for an exception that Hydra or OmegaConf has raised.

    Args:
        error: The exception.
        overrides: The overrides of the command.
        keys: The existing config groups and dotted keys, each with its comment in the config files.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        missing = error.missing_cfg_file
        if missing.startswith("experiment/"):  # here Hydra lists the options of one subfolder only
            return unknown("experiment", missing.partition("/")[2], options("experiment"))
        group, _, option = missing.rpartition("/")
        return unknown(group, option, sorted(error.options or []))
    text = " ".join(str(error).split())
    key = getattr(error, "full_key", "") if isinstance(error, ConfigAttributeError | ConfigKeyError) else ""
    if key or (overridden := re.search(r"Could not override '([^']+)'", text)):
        return _unknown_key(str(key or overridden[1]), overrides, keys)  # type: ignore[index]
    return text.partition(" full_key:")[0][:300] or "a value of the config cannot be read; close every ${...}"


def _unknown_key(key: str, overrides: Sequence[str], keys: Mapping[str, str]) -> str:
    """Return the message for a key that the config does not have.

    Args:
        key: The unknown key.
        overrides: The overrides of the command.
        keys: The existing config groups and dotted keys, each with its comment in the config files.
    """
    if key in GROUPS:
        return f"{key}: this problem uses no {key}; add one with +{key}=NAME"
    parent = key.rpartition(".")[0]
    names = [override.partition("=")[2] for override in overrides if key_of(override) == parent]
    custom = any(name not in options(parent) for name in names)
    brief = parent in BRIEF and not custom
    if others := [f"{parent}={name}" for name in options(parent) if brief and key in values_of(parent, name)]:
        return f"{key}: there is no such key in the chosen {parent}; choose {' or '.join(others[:MOST_ALIKE])}"
    choices = [override for override in overrides if key_of(override) in ("algo", "problem")]
    explained = f"fedopt --help {' '.join(choices or ['algo=NAME', 'problem=NAME'])} explains the keys"
    # Hydra reports only the first part of the key
    typed = next((name for name in map(key_of, overrides) if name.startswith(f"{key}.")), key)
    return removed(typed) or f"{key}: there is no such key{_meant(typed, custom, keys)}; {explained}"


def _meant(key: str, custom: bool, keys: Mapping[str, str]) -> str:
    """Return a hint for an unknown key, as the end of a message: the nearest key, or all keys of the same node.

    Args:
        key: The unknown key.
        custom: Whether the chosen option is a file of the user, in which keys of the class may be missing.
        keys: The existing keys with their comments.
    """
    parent, _, leaf = key.rpartition(".")
    siblings = [name.removeprefix(f"{parent}.") for name in keys if parent and name.rpartition(".")[0] == parent]
    if leaf in KINDS and (alike := [name for name, comment in keys.items() if re.search(KINDS[leaf], comment)]):
        return f", did you mean {' or '.join(alike[:MOST_ALIKE])}?"
    if not siblings or leaf in MEANT:
        return nearest(key, list(keys))
    if near := get_close_matches(leaf, siblings, 1, 0.7):  # 0.6 would match eta_x with beta
        return f", did you mean {parent}.{near[0]}?"
    adding = f"; set a field that your file leaves out with +{key}=VALUE" if custom else ""
    return f"; {parent} has the keys {', '.join(siblings)}{adding}"
