"""The folder of a run: its name, and the run that is in it."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fedopt.config.compose import composed_of, continued
from fedopt.config.files import GROUPS
from fedopt.config.tuned import Asked
from fedopt.config.words import parsed
from fedopt.errors import UserError
from fedopt.results.files import read_json
from fedopt.results.folder import RunFolder

LONGEST, ODD = 120, "[^A-Za-z0-9=._,+-]"  # of a name: characters, and those that are none of a name's


PLACED = ("output_dir", "resume")  # the keys that say where a run goes or how it starts, and do not name its folder


def key_of(override: str) -> str:
    """The key, or the config group, of an override."""
    return override.lstrip("+~").partition("=")[0]


def slug(overrides: Iterable[str]) -> str:
    """A folder name for a run, from its overrides, whose order does not matter.

    Of words that are too long together the first ones that fit stand there whole, of a long path its last part. A hash tells apart
    names from which something was left out."""
    kept = _naming(overrides)
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
    return "-".join(filter(None, [",".join(shown), _hash(text)]))


def slug_before(overrides: Iterable[str]) -> str:
    """What earlier versions made of them, whose runs are gone on with."""
    text = ",".join(_naming(overrides)) or "default"
    shown = re.sub(ODD, "_", text)
    return text if shown == text and len(text) <= LONGEST else f"{shown[: LONGEST - 9]}-{_hash(text)}"


def _naming(overrides: Iterable[str]) -> list[str]:
    return sorted((word for word in overrides if key_of(word) not in PLACED), key=key_of)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]


def name_in_sweep(
    algo: str, problem: str, overrides: Iterable[str], seed: Any = None, slug: Callable[[list[str]], str] = slug
) -> str:
    """A folder name for a sweep, from what all of its runs share, or with a seed for one of them: fedmsa_mco,seed=1,algo.K=5."""
    first = f"{algo}_{problem}" if seed is None else f"{algo}_{problem},seed={seed}"
    others = [word for word in overrides if key_of(word) not in ("algo", "problem", "seed", *PLACED)]
    return f"{re.sub(r'[^A-Za-z0-9=._,-]', '_', first)},{slug(others)}" if others else first


def named(parent: Path, name: Callable[[Callable[[list[str]], str]], str]) -> Path:
    """The folder in `parent` whose name is made with `slug`, or with `slug_before` where only that one is there."""
    path, before = (parent / name(of) for of in (slug, slug_before))
    return before if before.exists() and not path.exists() else path


def configured(words: Sequence[str], folders: Iterable[str | Path] = ()) -> tuple[DictConfig, dict[str, str]]:
    """The config of a command and the options that it is made of, as `composed_of` gives them; of one that only goes on with a run,
    that run's. Raises UserError, also where there is none, and hydra's and omegaconf's errors."""
    return _going_on(words) or composed_of(words, folders)


def _going_on(words: Iterable[str]) -> tuple[DictConfig, dict[str, str]] | None:
    """What `resume=true output_dir=DIR` without further choices goes on with: the config of the run that is in DIR, with the other
    words' values, and the choices that it was made of. None where the words do not say so, or no run is there."""
    said = {override.key_or_group: override for override in parsed(words)}
    if not {"output_dir", "resume"} <= set(said) or said["resume"].value() is not True:
        return None
    folder = RunFolder(Path(str(said["output_dir"].value())))
    there = os.path.lexists(folder.path / "config.yaml")
    known = read_json(folder.path / "run.json").get("chosen") if there else None
    chosen = {**known} if isinstance(known, dict) else {}
    for group in ("algo", "problem"):
        if group not in said or said[group].is_sweep_override():  # which composing refuses
            continue
        if (begun := chosen.get(group, wanted := said[group].value())) != wanted:
            raise UserError(
                f"{folder.path}: the run in it was begun with {group}={begun}, not {wanted}; another output_dir begins a new one"
            )
    if there:
        return None if set(said) & set(GROUPS) else (continued(folder.config(), said), chosen)
    if not set(said) & {"algo", "problem", "experiment"}:
        raise UserError(f"{folder.path}: there is no run in it to go on with; algo= and problem= begin one")
    return None


def place(config: dict[str, Any], asked: Asked) -> Path:
    """output_dir, else a folder named by the overrides; a further run with the same overrides gets the next number."""
    if config["output_dir"]:
        return Path(config["output_dir"])
    others = [word for word in asked.overrides if word.split("=")[0] not in ("algo", "problem")]
    base = named(Path("outputs") / f"{asked.chosen['algo']}_{asked.chosen['problem']}", lambda of: of(others))
    path, last = base, None
    for n in count(2):
        if not RunFolder(path).used:
            break
        path, last = base.with_name(f"{base.name}.{n}"), path
    return last if config["resume"] and last else path
