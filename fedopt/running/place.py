"""The config of a command, which may be that of a run in a folder; and the folder of a run, which its overrides name."""

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from fedopt.config.composed import Composed, compose, recorded
from fedopt.config.files import GROUPS, Folders, flat
from fedopt.config.words import key_of, parsed
from fedopt.console.say import note
from fedopt.errors import UserError
from fedopt.results.folder import RunFolder

LONGEST, LONGEST_VALUE = 80, 24  # characters of a folder's name, and of one value in it
PLACED = ("output_dir", "resume")  # the keys that say where a run goes or how it starts, and do not name its folder
FIRST = ("algo", "problem", "seed", *PLACED)  # those that the other words in a sweep's names come after


# Names: seed1-K5-eta0.1. They leave out much; which run a folder holds is asked of what is recorded in it


def named(words: Iterable[str], first: Iterable[str] = ()) -> str:
    """Return a folder's name made of overrides, as many as fit. Their order does not matter. first: parts that the name begins
    with.
    """
    name = "-".join(filter(None, first))
    for word in sorted((word for word in words if key_of(word) not in PLACED), key=key_of):
        longer = f"{name}-{_short(word)}" if name else _short(word)
        name = longer if len(longer) <= LONGEST else name
    return name


def _short(word: str) -> str:
    """Return an override as part of a name: the last part of its key, and its value; for a config group only the option."""
    key, _, value = word.lstrip("+~").partition("=")
    value = value.rstrip("/").rpartition("/")[2] if len(value) > LONGEST_VALUE else value
    value = re.sub("[^A-Za-z0-9.+-]+", "_", value).strip("_")
    if len(value) > LONGEST_VALUE:  # between its words: half a number is another
        value = value[: LONGEST_VALUE + 1].rpartition("_")[0] or value[:LONGEST_VALUE]
    if key in GROUPS and value:
        return value
    last = re.sub(r"\W+", "_", re.split("[./]", key)[-1], flags=re.ASCII).strip("_")
    between = "" if last[-1:].isalpha() and value[:1].isdigit() else "_"
    return f"no_{last}" if word.startswith("~") else f"{last}{between}{value}" if value else last


def run_name(composed: Composed, naming: Collection[str] | None) -> str:
    """Return the name of a run's folder within its sweep's folder.

    composed: the run's config. naming: the keys that appear in the name, besides seed; None: all.
    """
    groups = [composed.chosen[group] for group in ("algo", "problem") if naming is None or group in naming]
    words = (word for word in composed.words if key_of(word) not in FIRST)
    shown = (word for word in words if naming is None or key_of(word) in naming)
    return named(shown, ["_".join(groups), f"seed{composed.settings.seed}"])


def _numbered(path: Path, before: str = "-") -> Iterator[Path]:
    """Yield the path, and then the path with 2, 3, ... appended. before: what separates the number from the name."""
    yield path
    yield from (path.with_name(f"{path.name}{before}{n}") for n in count(2))


def run_place(path: Path, old: Path, composed: Composed, taken: MutableMapping[str, Composed]) -> Path:
    """Return the folder of a run: the one that holds it already, else the first free one of ``path``, ``path``-2, and so on.

    path: the folder's first choice. old: where version 0.2 put the run. composed: the run's config.
    taken: folders (in small letters) of runs that are planned but have not begun, with their configs; the answer is added.
    """
    if RunFolder(old).used:
        return old
    for place in _numbered(path):
        other, folder = taken.get(str(place).casefold()), RunFolder(place)
        if _values(other.nodes) == _values(composed.nodes) if other else not folder.used or _holds(folder, composed):
            taken[str(place).casefold()] = composed
            return place
    raise AssertionError


def held(path: Path, composed: Composed) -> Path | None:
    """Return which of `path`, `path`-2, ... holds the run already; None if none does."""
    for place in _numbered(path):
        if not RunFolder(place).used or _holds(RunFolder(place), composed):
            return place if RunFolder(place).used else None
    raise AssertionError


def sweep_place(path: Path, old: Path, shared: Iterable[str], swept: Collection[str]) -> Path:
    """Return the folder of a sweep: the first one of ``path``, ``path``-2, ... that is free or holds runs of the same sweep.

    path, old: as in `run_place`. shared: the overrides that all runs have. swept: the keys that differ between them.
    """
    if old.is_dir():
        return old
    wanted = {word for word in shared if key_of(word) not in FIRST}
    for place in _numbered(path):
        card = next(place.glob("*/run.json"), None)
        given = RunFolder(card.parent).card().get("overrides", []) if card else wanted
        if {word for word in given if key_of(word) not in {*FIRST, *swept}} == wanted:
            return place
    raise AssertionError


def _holds(folder: RunFolder, composed: Composed) -> bool:
    """Whether the run in a folder was asked for by the same overrides, or has the same values."""
    given, asked = (
        {word for word in words if key_of(word) not in PLACED}
        for words in (folder.card().get("overrides", ["?"]), composed.words)
    )
    with suppress(UserError):  # a config that cannot be read
        return given == asked or _values(folder.config()) == _values(composed.nodes)
    return False


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return all values of a config that are set, by dotted key, except for where the run goes."""
    return {key: value for key, value in flat(config).items() if key not in PLACED and value is not None}


# Names before version 0.3: seed=1,algo.K=5. Their folders are found, and go on

OLD_LONGEST, ODD = 120, "[^A-Za-z0-9=._,+-]"  # of a name: characters, and those that are none of a name's


def old_name(overrides: Iterable[str]) -> str:
    """Return the name that version 0.2 gave to a run's folder: its overrides, as many as fit, and a hash if some were left out."""
    kept = sorted((word for word in overrides if key_of(word) not in PLACED), key=key_of)
    text = ",".join(kept) or "default"
    if not re.search(ODD, text) and len(text) <= OLD_LONGEST:
        return text
    shown: list[str] = []
    for word in kept:
        key, equals, value = word.partition("=")
        last = value.rstrip("/").rpartition("/")[2] if len(value) > 24 else value
        part = re.sub(f"(_*({ODD}|,)+_*)+", "_", f"{key}{equals}{last}").replace("=_", "=").rstrip("_")
        part = part if len(part) <= OLD_LONGEST - 9 else key
        if len(",".join([*shown, part])) <= OLD_LONGEST - 9:
            shown.append(part)
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]
    return "-".join(filter(None, [",".join(shown), digest]))


def old_name_in_sweep(algo: str, problem: str, overrides: Iterable[str], seed: Any = None) -> str:
    """Return the name that version 0.2 gave to a sweep's folder, or with a seed to a run's folder in it:
    fedmsa_mco,seed=1,algo.K=5.
    """
    first = f"{algo}_{problem}" if seed is None else f"{algo}_{problem},seed={seed}"
    others = [word for word in overrides if key_of(word) not in FIRST]
    return f"{re.sub(r'[^A-Za-z0-9=._,-]', '_', first)},{old_name(others)}" if others else first


def configured(words: Sequence[str], folders: Folders = ()) -> Composed:
    """Return the config of a command. If the command only resumes a run, return that run's config.

    Args:
        words: The overrides of the command.
        folders: Config folders besides fedopt's.

    Raises:
        UserError: As `compose`; and if there is no run to resume.
    """
    return _going_on(words) or compose(words, folders)


def _going_on(words: Sequence[str]) -> Composed | None:
    """Return the config of the run that a command resumes, changed by its other overrides; None if the command does not
    resume a run.

    A command resumes if it has `resume=true output_dir=DIR` and chooses nothing else.
    """
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


def place(composed: Composed, quiet: bool = False) -> Path:
    """Return output_dir, else a folder that is named by the overrides, with the next number if other runs have that name.

    composed: the run's config. quiet: whether to leave out the note that the same run has finished elsewhere.
    """
    if composed.settings.output_dir:
        return Path(composed.settings.output_dir)
    others = [word for word in composed.words if key_of(word) not in ("algo", "problem")]
    parent = Path("outputs") / f"{composed.chosen['algo']}_{composed.chosen['problem']}"
    begun: dict[Path, None] = {}  # with this config, the last one last
    before: Path | None = None
    for names in _numbered(parent / old_name(others), "."), _numbered(parent / (named(others) or "default")):
        for path in names:
            folder = RunFolder(path)
            if not (folder.used or folder.alive):
                break
            before = path
            if composed.settings.resume and _holds(folder, composed):
                begun.setdefault(path)
    if begun:
        return [*begun][-1]
    if before and not quiet and RunFolder(before).status() == "finished" and _holds(RunFolder(before), composed):
        note(
            f"the same run has finished in {before}; this one begins anew in {path}, and resume=true keeps to that one"
        )
    return path
