"""Choose the folder of a run or of a sweep: the folder that already contains it, otherwise the first free one."""

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
    """Return the folder of a run in a sweep: the folder that already contains it, otherwise the first free one.

    Args:
        path: The folder with the run's name. Further candidates are `path`-2, `path`-3, ...
        composed: The run's config.
        taken: The folders (in lower case) of the runs of this command so far, each with the run's config. The returned folder is
            added in place.
    """
    place = next(place for place in _numbered(path) if _may_have(composed, place, taken.get(str(place).casefold())))
    taken[str(place).casefold()] = composed
    return place


def _may_have(composed: Composed, path: Path, other: Composed | None) -> bool:
    """Return whether a run can use a folder, because the folder is free or already contains the run.

    Args:
        composed: The run's config.
        path: The folder.
        other: The config of another run of this command that uses the folder. None: no run of this command uses it.
    """
    if other is not None:
        return _values(other.nodes) == _values(composed.nodes)
    return not RunFolder(path).used or _same_run(path, composed)


def sweep_place(path: Path, shared: Iterable[str], swept: Collection[str]) -> Path:
    """Return the folder of a sweep: the folder whose runs have the same overrides, otherwise the first free one.

    Args:
        path: The folder with the sweep's name. Further candidates are `path`-2, `path`-3, ...
        shared: The overrides that all runs of the sweep have in common.
        swept: The keys whose values differ between the runs.
    """
    wanted = {override for override in shared if key_of(override) not in FIRST}

    def fits(place: Path) -> bool:
        card = next(place.glob("*/run.json"), None)
        overrides = RunFolder(card.parent).card().get("overrides", []) if card else wanted
        return {override for override in overrides if key_of(override) not in {*FIRST, *swept}} == wanted

    return next(filter(fits, _numbered(path)))


def _same_run(path: Path, composed: Composed) -> bool:
    """Return whether the run in a folder was started with the same overrides, or has the same config values.

    Args:
        path: The folder.
        composed: The config of the run that starts.
    """
    recorded, asked = (
        {override for override in overrides if key_of(override) not in PLACED}
        for overrides in (RunFolder(path).card().get("overrides", ["?"]), composed.overrides)
    )
    with suppress(UserError):  # a config that cannot be read
        return recorded == asked or _values(RunFolder(path).config()) == _values(composed.nodes)
    return False


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config that are not null, by dotted key, without output_dir and resume."""
    return {key: value for key, value in flat(config).items() if key not in PLACED and value is not None}


def place(composed: Composed) -> Path:
    """Return the folder of a single run.

    This is ``output_dir`` if it is set, otherwise outputs/<algo>_<problem>/<name>, where the name consists of the overrides. If
    this folder is used, <name>-2, <name>-3 and so on are tried. With resume=true, the last of these folders that contains this run
    is returned, if there is one.

    Args:
        composed: The run's config.
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
