"""One line for a mistake in a command or a config file: what is wrong, where, and the nearest valid name."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from hydra.errors import MissingConfigException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError

from fedopt.config.files import GROUPS, options, values_of
from fedopt.config.overrides import key_of
from fedopt.errors import MEANT, MOST_ALIKE, nearest, unknown

KINDS = {  # of keys, by their names in other programs: what the comment beside such a key says of it
    **dict.fromkeys(("lr", "learning_rate", "step_size", "stepsize", "step"), "tuned as a step"),
    **dict.fromkeys(("batch_size", "batch", "batchsize"), "^examples |^local batch|^outer samples of a step"),
    **dict.fromkeys(("epochs", "local_epochs", "local_steps", "steps"), "tuned as a number of local steps"),
}

BRIEF = ("dataset", "partitioner", "logger")  # groups with few options, whose keys differ


def explain(error: Exception, overrides: Sequence[str], keys: Mapping[str, str]) -> str:
    """Return the message for an exception of Hydra or OmegaConf, in terms of the command.

    Args:
        error: The exception.
        overrides: The overrides of the command.
        keys: The config groups and the dotted keys that exist, each with the comment beside it.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        missing = error.missing_cfg_file
        if missing.startswith("experiment/"):  # Hydra's options are those of one folder then
            return unknown("experiment", missing.partition("/")[2], options("experiment"))
        group, _, option = missing.rpartition("/")
        return unknown(group, option, sorted(error.options or []))
    text = " ".join(str(error).split())
    key = getattr(error, "full_key", "") if isinstance(error, ConfigAttributeError | ConfigKeyError) else ""
    if key or (overridden := re.search(r"Could not override '([^']+)'", text)):
        return _unknown_key(str(key or overridden[1]), overrides, keys)  # type: ignore[index]
    return text.partition(" full_key:")[0][:300] or "a value of a config cannot be read; close every ${...}"


def _unknown_key(key: str, overrides: Sequence[str], keys: Mapping[str, str]) -> str:
    """Return the message for a key that the config does not have. overrides, keys: as in `explain`."""
    if key in GROUPS:
        return f"{key}: this problem uses no {key}; +{key}=NAME adds one"
    parent, _, leaf = key.rpartition(".")
    own = any(key_of(override) == parent and override.partition("=")[2] not in options(parent) for override in overrides)
    brief = parent in BRIEF and not own
    if others := [name for name in options(parent) if brief and f"{parent}.{leaf}" in values_of(parent, name)]:
        value = next((override.partition("=")[2] for override in overrides if key_of(override) == key), "")
        named = [name for name in others if value.endswith(f".{name}")] or others
        choose = " or ".join(f"{parent}={name}" for name in named[:MOST_ALIKE])
        return f"{key}: there is no such key in the chosen {parent}; choose {choose}"
    choices = [override for override in overrides if key_of(override) in ("algo", "problem")]
    explained = f"fedopt --help {' '.join(choices or ['algo=NAME', 'problem=NAME'])} explains them"
    typed = next((name for name in map(key_of, overrides) if name.startswith(f"{key}.")), key)  # Hydra names the first part
    return f"{key}: there is no such key{_meant(typed, own, keys)}; {explained}"


def _meant(key: str, own: bool, keys: Mapping[str, str]) -> str:
    """Return a hint on what an unknown key may mean: the nearest key, else the keys beside it.

    own: whether the group's file is the user's, to which a field can be added.
    """
    parent, _, leaf = key.rpartition(".")
    beside = [name.removeprefix(f"{parent}.") for name in keys if parent and name.rpartition(".")[0] == parent]
    if leaf in KINDS and (alike := [name for name, comment in keys.items() if re.search(KINDS[leaf], comment)]):
        return f", did you mean {' or '.join(alike[:MOST_ALIKE])}?"
    if not beside or leaf in MEANT:
        return nearest(key, list(keys))
    if near := get_close_matches(leaf, beside, 1, 0.7):  # 0.6 would take eta_x for beta
        return f", did you mean {parent}.{near[0]}?"
    adding = f"; +{key}=VALUE sets a field that your file leaves out" if own else ""
    return f"; {parent} has {', '.join(beside)}{adding}"
