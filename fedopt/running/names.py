"""Names of folders, made of overrides: seed1-K5-eta0.1.

A name does not identify a run, since it omits much: `place` compares the files in the folder.
"""

import re
from collections.abc import Collection, Iterable

from fedopt.config import GROUPS, Composed, key_of

LONGEST, LONGEST_VALUE = 80, 24  # characters of a folder's name, and of one value in it
PLACED = ("output_dir", "resume")  # the keys that say where a run goes or how it starts, and do not name its folder
FIRST = ("algo", "problem", "seed", *PLACED)  # in a sweep's names, the other overrides come after these


def named(overrides: Iterable[str], first: Iterable[str] = ()) -> str:
    """Return a folder's name made of overrides; their order does not matter.

    Args:
        overrides: The overrides. Overrides that make the name too long are left out.
        first: Parts that the name begins with.
    """
    name = "-".join(filter(None, first))
    for override in sorted((override for override in overrides if key_of(override) not in PLACED), key=key_of):
        longer = f"{name}-{_short(override)}" if name else _short(override)
        name = longer if len(longer) <= LONGEST else name
    return name


def _short(override: str) -> str:
    """Return an override as part of a name: the end of its key and its value, such as eta0.1 for algo.eta=0.1.

    For an option of a config group it is the option alone, and for an override that removes a key, no_KEY.
    """
    key, _, value = override.lstrip("+~").partition("=")
    value = value.rstrip("/").rpartition("/")[2] if len(value) > LONGEST_VALUE else value
    value = re.sub("[^A-Za-z0-9.+-]+", "_", value).strip("_")
    if len(value) > LONGEST_VALUE:  # at a word break: half a number is another number
        value = value[: LONGEST_VALUE + 1].rpartition("_")[0] or value[:LONGEST_VALUE]
    if key in GROUPS and value:
        return value
    last = re.sub(r"\W+", "_", re.split("[./]", key)[-1], flags=re.ASCII).strip("_")
    between = "" if last[-1:].isalpha() and value[:1].isdigit() else "_"
    return f"no_{last}" if override.startswith("~") else f"{last}{between}{value}" if value else last


def run_name(composed: Composed, naming: Collection[str] | None) -> str:
    """Return the name of a run's folder inside the folder of its sweep.

    Args:
        composed: The run's config.
        naming: The keys that appear in the name, besides ``seed``, which always does. None: all keys.
    """
    groups = [composed.chosen[group] for group in ("algo", "problem") if naming is None or group in naming]
    overrides = (override for override in composed.overrides if key_of(override) not in FIRST)
    shown = (override for override in overrides if naming is None or key_of(override) in naming)
    return named(shown, ["_".join(groups), f"seed{composed.settings.seed}"])
