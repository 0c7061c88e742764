"""The folder of a run or of a sweep: the one that holds it already, else the first that is free."""

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from fedopt.config import Composed, flat, key_of, outputs
from fedopt.console import note
from fedopt.errors import UserError
from fedopt.results import RunFolder
from fedopt.running.names import FIRST, PLACED, named


def _numbered(path: Path) -> Iterator[Path]:
    """Yield `path`, `path`-2, `path`-3, ..."""
    yield path
    yield from (path.with_name(f"{path.name}-{n}") for n in count(2))


def run_place(path: Path, composed: Composed, taken: MutableMapping[str, Composed]) -> Path:
    """Return the folder of a sweep's run: the one that holds it already, else the first of `path`, `path`-2, ... that is free.

    Args:
        path: The folder that the run's name gives.
        composed: The run's config.
        taken: The folders of this command's runs so far, in lower case, each with the run's config. The returned folder is
            added in place.
    """
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


def sweep_place(path: Path, shared: Iterable[str], swept: Collection[str]) -> Path:
    """Return the folder of a sweep: the one whose runs have the same overrides, else the first that is free.

    Args:
        path: The folder that the sweep's name gives. Further candidates are `path`-2, `path`-3, ...
        shared: The overrides that all its runs have.
        swept: The keys whose values differ.
    """
    wanted = {word for word in shared if key_of(word) not in FIRST}
    for place in _numbered(path):
        card = next(place.glob("*/run.json"), None)
        given = RunFolder(card.parent).card().get("overrides", []) if card else wanted
        if {word for word in given if key_of(word) not in {*FIRST, *swept}} == wanted:
            return place
    raise AssertionError


def _holds(folder: RunFolder, composed: Composed) -> bool:
    """Return whether the run in a folder was asked for by the same overrides, or has the same values."""
    given, asked = (
        {word for word in words if key_of(word) not in PLACED}
        for words in (folder.card().get("overrides", ["?"]), composed.words)
    )
    with suppress(UserError):  # a config that cannot be read
        return given == asked or _values(folder.config()) == _values(composed.nodes)
    return False


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's values that are not null, by dotted key, without those that say where the run goes."""
    return {key: value for key, value in flat(config).items() if key not in PLACED and value is not None}


def place(composed: Composed, quiet: bool = False) -> Path:
    """Return the folder of a single run: output_dir if that is set, else outputs/<algo>_<problem>/<name>, named by the
        overrides.

    If this folder is taken, <name>-2, <name>-3 and so on are tried. With resume=true, return the last of these folders that
    holds this run, if there is one. Unless `quiet`, a note says so if the same run has finished and a new one begins.
    """
    if composed.settings.output_dir:
        return Path(composed.settings.output_dir)
    others = [word for word in composed.words if key_of(word) not in ("algo", "problem")]
    parent = outputs() / f"{composed.chosen['algo']}_{composed.chosen['problem']}"
    begun: Path | None = None  # the last one with this config
    before: Path | None = None
    for path in _numbered(parent / (named(others) or "default")):
        folder = RunFolder(path)
        if not (folder.used or folder.alive):
            break
        before = path
        if composed.settings.resume and _holds(folder, composed):
            begun = path
    if begun:
        return begun
    if before and not quiet and RunFolder(before).status() == "finished" and _holds(RunFolder(before), composed):
        note(
            f"the same run has finished in {before}; a new one begins in {path}; resume=true would keep the finished one"
        )
    return path
