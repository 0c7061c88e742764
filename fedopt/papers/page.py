"""The page of `fedopt report`: published experiments with their claims, and all other runs."""

from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedopt.analysis import (
    NO_RUN,
    Comparison,
    Recorded,
    all_runs,
    beside_paper,
    compared,
    default_keys,
    first_metric,
    gathered,
    noting,
    read,
    sections,
)
from fedopt.console import heard, note
from fedopt.drawing import Page, Section, Table
from fedopt.errors import UserError
from fedopt.files import BROKEN, read_bytes, read_table
from fedopt.papers.claims import COLUMNS, LARGEST, REMEDY, RUNS, claims_shown, rows_of, totals
from fedopt.papers.published import load

RESULTS = {"claims.csv", "runs.csv"}  # each folder of results of a published experiment contains one of these files
# The type of each picture, and the first bytes of the file
PICTURES = {"figure.svg": ("image/svg+xml", b"<svg"), "figure.png": ("image/png", b"\x89PNG")}
LARGEST_PICTURE = 2**24  # bytes
X = "comm_rounds"


def page(paths: Sequence[Path]) -> Page:
    """Return a page with the published experiments and all other runs in some folders.

    A page of folders without experiments and runs has no section.

    Args:
        paths: The folders, which are searched at any depth.

    Raises:
        UserError: A folder does not exist.
    """
    shown: list[Section] = []
    problems: dict[tuple[str, ...], list[Recorded]] = {}
    taken: set[Path] = set()  # folders of the runs of experiments
    with heard() as notes:
        runs, skipped = gathered(paths, X)
        for folder in _results(paths):
            shown += _experiment(folder, taken)
        for run in runs:
            if run.folder.resolve() not in taken:
                problems.setdefault(run.problem, []).append(run)
        for members in problems.values():
            shown += sections(compared(members))
        for path in skipped.pop(NO_RUN, []):
            if not _results([Path(path)]):
                note(f"{path}: {NO_RUN}")
    left = {path: why for why, folders in skipped.items() for path in folders}
    if runs or left:
        shown.insert(0, all_runs(runs, left))
    known = {line for section in shown for _, lines in [("", section.notes), *section.views.values()] for line in lines}
    return Page(f"Results of {', '.join(map(str, paths))}", shown, [line for line in notes if line not in known])


def _results(paths: Sequence[Path]) -> list[Path]:
    """Return all folders below ``paths`` that contain results of published experiments, sorted."""
    return sorted({file.parent for path in paths for file in path.rglob("*.csv") if file.name in RESULTS})


def _runs_of(results: Path) -> Path | None:
    """Return the folder that contains the runs of an experiment; None if there is none.

    It is the nearest folder named `runs` in one of the parent folders.

    Args:
        results: The folder of the experiment's results.
    """
    return next((path for parent in results.resolve().parents if (path := parent / "runs").is_dir()), None)


def _experiment(folder: Path, taken: set[Path]) -> list[Section]:
    """Return the page sections of an experiment: one with its results, and one per problem with its runs.

    Args:
        folder: The folder of the experiment's results.
        taken: The folders of runs that belong to an experiment. The folders of this experiment's runs are added in place.
    """
    name = title = "/".join(folder.resolve().parts[-2:])
    with suppress(UserError):  # the experiment may be in another user's config folder
        published = load(name)
        title = f"{name}: {published.paper}, {published.title}"
    tables, facts = [], []
    with noting(file := folder / "claims.csv"):
        if claims := rows_of(file, COLUMNS):
            tables.append(Table("Claims", claims_shown(claims)))
            facts.append(totals(claims))
    with noting(file := folder / "table.csv"):
        if file.exists():
            cells = beside_paper(read_table(file, most=LARGEST, remedy=REMEDY))
            tables.append(Table("The table, with the paper's numbers in brackets", cells))
    listed, place, groups, picture = list[Any](), _runs_of(folder) or folder, dict[str, list[Recorded]](), ""
    with noting(file := folder / "runs.csv"):
        listed = rows_of(file, RUNS)
    for row in listed:
        with suppress(*BROKEN):  # it has not begun
            run = read(place / Path(row["run"]).name, X)
            groups.setdefault(row["line"], []).append(run)
    runs = [run for members in groups.values() for run in members]
    taken |= {run.folder.resolve() for run in runs}
    facts += [f"{len(runs)} of {len(listed)} runs are here."] * (len(runs) < len(listed))
    for file in (folder / name for name in PICTURES if not picture):
        with noting(file), suppress(FileNotFoundError):
            picture = _picture(file)
    of_experiment = [Section(title, facts, picture, tables=tables)]
    with noting(folder / "runs.csv"):
        if metric := first_metric(runs):
            of_experiment += sections(Comparison(default_keys(runs), groups, metric, X), name)
    return of_experiment


def _picture(file: Path) -> str:
    """Return a picture file, figure.svg or figure.png, as a data URI.

    Raises:
        OSError: The file cannot be read.
        UserError: The file is not a picture.
    """
    (kind, mark), content = PICTURES[file.name], read_bytes(file, LARGEST_PICTURE)
    if mark not in content[:1000]:
        raise UserError(f"{file}: is not a picture; draw it again with fedopt reproduce")
    return f"data:{kind};base64,{b64encode(content).decode()}"
