"""The config of a command, which may be that of a run in a folder; and the folder of a run, which its overrides name."""

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from fedopt.config.compose import Composed, compose, recorded
from fedopt.config.files import GROUPS, Folders
from fedopt.config.words import key_of, parsed
from fedopt.errors import UserError
from fedopt.results.folder import RunFolder

LONGEST, ODD = 120, "[^A-Za-z0-9=._,+-]"  # of a name: characters, and those that are none of a name's
PLACED = ("output_dir", "resume")  # the keys that say where a run goes or how it starts, and do not name its folder


def slug(overrides: Iterable[str]) -> str:
    """A folder name for a run, from its overrides, whose order does not matter.

    If the words are too long together, the first ones that fit stand there whole; of a long path its last part. A hash tells apart
    names from which something was left out.
    """
    kept = sorted((word for word in overrides if key_of(word) not in PLACED), key=key_of)
    text = ",".join(kept) or "default"
    if not re.search(ODD, text) and len(text) <= LONGEST:
        return text
    shown: list[str] = []
    for word in kept:
        key, equals, value = word.partition("=")
        last = value.rstrip("/").rpartition("/")[2] if len(value) > 24 else value
        part = re.sub(f"(_*({ODD}|,)+_*)+", "_", f"{key}{equals}{last}").replace("=_", "=").rstrip("_")
        part = part if len(part) <= LONGEST - 9 else key
        if len(",".join([*shown, part])) <= LONGEST - 9:
            shown.append(part)
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]
    return "-".join(filter(None, [",".join(shown), digest]))


def name_in_sweep(algo: str, problem: str, overrides: Iterable[str], seed: Any = None) -> str:
    """A folder name for a sweep, from what all of its runs share, or with a seed for one of them: fedmsa_mco,seed=1,algo.K=5."""
    first = f"{algo}_{problem}" if seed is None else f"{algo}_{problem},seed={seed}"
    others = [word for word in overrides if key_of(word) not in ("algo", "problem", "seed", *PLACED)]
    return f"{re.sub(r'[^A-Za-z0-9=._,-]', '_', first)},{slug(others)}" if others else first


def configured(words: Sequence[str], folders: Folders = ()) -> Composed:
    """The config of a command; of one that only goes on with a run, that run's. Raises UserError, also where there is none."""
    return _going_on(words) or compose(words, folders)


def _going_on(words: Sequence[str]) -> Composed | None:
    """What `resume=true output_dir=DIR` without further choices goes on with: the config of the run that is in DIR, with the other
    words' values, and the choices that it was made of. None where the words do not say so, or no run is there."""
    if not {"output_dir", "resume"} <= {key_of(word) for word in words}:
        return None
    given = {override.key_or_group: override for override in parsed(words)}
    if given["resume"].value() is not True:
        return None
    folder = RunFolder(Path(str(given["output_dir"].value())))
    there = os.path.lexists(folder.path / "config.yaml")
    card = folder.card() if there else {}
    chosen = card.get("chosen", {})
    for group in {"algo", "problem"} & {*given}:
        begun, wanted = chosen.get(group), given[group].value()
        if begun and not given[group].is_sweep_override() and begun != wanted:
            why = f"the run in it was begun with {group}={begun}, not {wanted}"
            raise UserError(f"{folder.path}: {why}; another output_dir begins a new one")
    if there:
        return None if {*given} & {*GROUPS} else recorded(folder.config(), words, chosen, card.get("tuned"))
    if not {*given} & {"algo", "problem", "experiment"}:
        raise UserError(f"{folder.path}: there is no run in it to go on with; algo= and problem= begin one")
    return None


def place(composed: Composed) -> Path:
    """output_dir, else a folder named by the overrides; a further run with the same overrides gets the next number."""
    if composed.settings.output_dir:
        return Path(composed.settings.output_dir)
    others = [word for word in composed.words if key_of(word) not in ("algo", "problem")]
    base = Path("outputs") / f"{composed.chosen['algo']}_{composed.chosen['problem']}" / slug(others)
    path, last = base, None
    for n in count(2):
        if not (RunFolder(path).used or RunFolder(path).alive):
            break
        path, last = base.with_name(f"{base.name}.{n}"), path
    return last if composed.settings.resume and last else path
