"""Names of folders, which consist of overrides, such as seed1-K5-eta0.1.

A name does not identify a run, since it omits some values. Therefore `place` compares the files in the folder.
"""

import re
from collections.abc import Collection, Iterable

from fedopt.config import GROUPS, Composed, key_of

LONGEST, LONGEST_VALUE = 80, 24  # largest number of characters of a name, and of one value in it
PLACED = ("output_dir", "resume")  # the keys that say where a run goes or how it starts, and do not name its folder
FIRST = ("algo", "problem", "seed", *PLACED)  # in a sweep's names, the other overrides come after these


def named(overrides: Iterable[str], first: Iterable[str] = ()) -> str:
    """Return a folder name made of overrides, sorted by key.

    Args:
        overrides: The overrides. ``output_dir``, ``resume``, and overrides that would make the name too long are left out.
        first: The parts at the beginning of the name.
    """
    name = "-".join(filter(None, first))
    for override in sorted((override for override in overrides if key_of(override) not in PLACED), key=key_of):
        longer = f"{name}-{_short(override)}" if name else _short(override)
        name = longer if len(longer) <= LONGEST else name
    return name


def _short(override: str) -> str:
    """Return the part of a name for one override: the last part of its key and its value, such as eta0.1 for algo.eta=0.1.

    For an option of a config group, this is only the option. For an override that removes a key, it is no_KEY.
    """
    key, _, value = override.lstrip("+~").partition("=")
    value = value.rstrip("/").rpartition("/")[2] if len(value) > LONGEST_VALUE else value
    value = re.sub("[^A-Za-z0-9.+-]+", "_", value).strip("_")
    if len(value) > LONGEST_VALUE:  # cut between words, since half a number is a different number
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
        naming: The keys that appear in the name, in addition to ``seed``, which always appears. None: all keys that
            overrides set.
    """
    groups = [composed.chosen[group] for group in ("algo", "problem") if naming is None or group in naming]
    overrides = (override for override in composed.overrides if key_of(override) not in FIRST)
    shown = (override for override in overrides if naming is None or key_of(override) in naming)
    return named(shown, ["_".join(groups), f"seed{composed.settings.seed}"])
