"""The folder of a run or of a sweep: the one that holds it already, else the first that is free."""

from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from fedopt.config import Composed, flat, key_of, outputs
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
    place = next(place for place in _numbered(path) if _may_have(composed, place, taken.get(str(place).casefold())))
    taken[str(place).casefold()] = composed
    return place


def _may_have(composed: Composed, path: Path, other: Composed | None) -> bool:
    """Return whether a folder is free for a run or holds it already. other: the config of this command's run there, if any."""
    if other is not None:
        return _values(other.nodes) == _values(composed.nodes)
    return not RunFolder(path).used or _same_run(path, composed)


def sweep_place(path: Path, shared: Iterable[str], swept: Collection[str]) -> Path:
    """Return the folder of a sweep: the one whose runs have the same overrides, else the first that is free.

    Args:
        path: The folder that the sweep's name gives. Further candidates are `path`-2, `path`-3, ...
        shared: The overrides that all its runs have.
        swept: The keys whose values differ.
    """
    wanted = {override for override in shared if key_of(override) not in FIRST}

    def fits(place: Path) -> bool:
        card = next(place.glob("*/run.json"), None)
        overrides = RunFolder(card.parent).card().get("overrides", []) if card else wanted
        return {override for override in overrides if key_of(override) not in {*FIRST, *swept}} == wanted

    return next(filter(fits, _numbered(path)))


def _same_run(path: Path, composed: Composed) -> bool:
    """Return whether the run in a folder was asked for by the same overrides, or has the same values."""
    recorded, asked = (
        {override for override in overrides if key_of(override) not in PLACED}
        for overrides in (RunFolder(path).card().get("overrides", ["?"]), composed.overrides)
    )
    with suppress(UserError):  # a config that cannot be read
        return recorded == asked or _values(RunFolder(path).config()) == _values(composed.nodes)
    return False


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's values that are not null, by dotted key, without the keys that choose its folder."""
    return {key: value for key, value in flat(config).items() if key not in PLACED and value is not None}


def place(composed: Composed) -> Path:
    """Return the folder of a single run: output_dir if that is set, else outputs/<algo>_<problem>/<name>, named by the
        overrides.

    If this folder is taken, <name>-2, <name>-3 and so on are tried. With resume=true, return the last of these folders that
    holds this run, if there is one.
    """
    if composed.settings.output_dir:
        return Path(composed.settings.output_dir)
    others = [override for override in composed.overrides if key_of(override) not in ("algo", "problem")]
    parent = outputs() / f"{composed.chosen['algo']}_{composed.chosen['problem']}"
    paths = _numbered(parent / (named(others) or "default"))
    path, before = next(paths), list[Path]()
    while RunFolder(path).used or RunFolder(path).alive:
        before.append(path)
        path = next(paths)
    if composed.settings.resume and (begun := [other for other in before if _same_run(other, composed)]):
        return begun[-1]
    return path
