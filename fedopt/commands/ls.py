"""The commands `fedopt ls`, which lists the runs in folders, and `fedopt rm`, which deletes runs.

They read run.json and summary.json. config.yaml is read only if one of its keys is needed.
"""

import argparse
import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from fedopt.commands.answer import Parser
from fedopt.config import flat, outputs
from fedopt.console import as_number, columns, counted, note, order, printable, show, show_table
from fedopt.errors import UserError, joined, nearest
from fedopt.jobs import queued
from fedopt.results import FILES, LOST, OVER, TEXTS, RunFolder, numbers_of

Row = dict[str, Any]
COLUMNS = ("status", "algo", "problem", "seed", "metric", "value", "time", "date", "size", "folder")
SHOWN = ("status", "algo", "problem", "seed", "metric", "value", "date", "folder")
NUMBERS = ("seed", "value")  # aligned right
SEARCH = "search.json"  # marks the folder of a search


def ls(arguments: list[str]) -> None:
    """Print a table of runs, a command that compares them, and a command that resumes an interrupted run.

    Args:
        arguments: The arguments after `fedopt ls`.

    Raises:
        UserError: A folder, a column or a key does not exist.
    """
    parser = _parser("ls", "List the runs in folders, at any depth. A search is one row; its folder lists the trials.")
    parser.add_argument("--sort", metavar="KEY", help=f"{', '.join(COLUMNS)}, or a config key (default: folder)")
    parser.add_argument("--reverse", "-r", action="store_true", help="sort in descending order")
    parser.add_argument("--json", action="store_true", help="print JSON, with all columns")
    args = parser.parse_intermixed_args(arguments)
    runs, rows = _chosen(args, args.sort)
    by = args.sort or "folder"
    rows.sort(key=lambda row: (_value(row, by) is None, order(str(_value(row, by)))), reverse=args.reverse)
    if args.json:
        show(json.dumps([{name: row[name] for name in (*COLUMNS, "error")} for row in rows], default=str, indent=2))
    elif rows:
        _print(rows)
        _advise(rows, args)
    else:
        places = ", ".join(args.paths)
        found = f"no runs with {' '.join(args.filters)} in {places}, which contains {counted(len(runs), 'run')}"
        show(found if runs else f"no runs in {places}; start one with fedopt algo=fedmsa problem=mco")


def rm(arguments: list[str]) -> None:
    """Delete runs after asking for confirmation: those that the arguments choose, or all failed runs if there are no arguments.

    Runs in progress are kept.

    Args:
        arguments: The arguments after `fedopt rm`.

    Raises:
        UserError: The command cannot ask because stdin is not a terminal; or a folder, a column or a key does not exist.
    """
    parser = _parser("rm", "Delete the chosen runs after asking. If none are chosen, delete the failed runs.")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    args = parser.parse_intermixed_args(arguments)
    args.selection = args.selection or ["status=failed"]
    rows = [row for row in _chosen(args)[1] if row["status"] != "search"]  # a search would run deleted trials again
    if busy := [row for row in rows if row["status"] in ("running", "queued")]:
        note(f"{counted(len(busy), 'run')} in progress, not deleted: {joined([str(row['folder']) for row in busy], 3)}")
        rows = [row for row in rows if row not in busy]
    if rows:
        _print(rows)
    if rows and not args.yes:
        if not sys.stdin.isatty():
            raise UserError("fedopt rm: cannot ask for confirmation without a terminal; add --yes to delete these runs")
        asked = f"delete {counted(len(rows), 'run')} ({decimal(sum(row['size'] for row in rows))})? [y/N] "
        rows = rows if input(asked).strip().lower() in ("y", "yes") else []
    show(f"deleted {counted(sum(_delete(row['folder']) for row in rows), 'run')}")


def _delete(path: Path) -> bool:
    """Delete the files of a run, and its folder and the parent folder if they are empty afterwards.

    Args:
        path: The run's folder.

    Returns:
        Whether the run was deleted. If another process uses it, it is kept and a note is printed.
    """
    folder = RunFolder(path)
    with closing(folder):
        try:
            folder.open()  # no run can start here meanwhile
        except UserError as error:
            note(str(error))
            return False
        for name in FILES:
            (path / name).unlink(missing_ok=True)
    with suppress(OSError):  # the folder contains other files or runs, which are kept
        path.rmdir()
        path.parent.rmdir()
    return True


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return a parser of folders and filters for one of the commands.

    Args:
        name: The command, ``ls`` or ``rm``.
        description: What the command does, for its help.
    """
    parser = Parser(prog=f"fedopt {name}", description=description)
    what = "a folder (default: outputs), or a filter KEY=VALUE,... with a column or a config key, such as algo=fed* or "
    what += "'date=2026-05-*'"
    parser.add_argument("selection", nargs="*", metavar="FOLDER|KEY=VALUE", help=what)
    return parser


def _chosen(args: argparse.Namespace, sort: str | None = None) -> tuple[list[Row], list[Row]]:
    """Return all runs in the folders of a command, and those that its filters select.

    Args:
        args: The arguments. This function adds the attributes `paths` and `filters`.
        sort: A column or config key by which the rows will be sorted. None: they will not be sorted.

    Raises:
        UserError: A folder, a column or a key does not exist.
    """
    args.filters = [text for text in args.selection if "=" in text and not Path(text).exists()]
    args.paths = [text for text in args.selection if text not in args.filters]
    if not args.paths:  # the outputs of the project, also in a subfolder of the project
        places = (outputs(), *(folder / "outputs" for folder in Path.cwd().parents))
        args.paths = [os.path.relpath(next((place for place in places if place.is_dir()), "outputs"))]
    runs = list(_rows(args.paths)) if args.paths != ["outputs"] or Path("outputs").is_dir() else []
    _add_queued(runs, args.paths)
    if broken := [str(row["folder"]) for row in runs if row["status"] is None]:
        note(f"skipped {counted(len(broken), 'folder')} whose summary.json cannot be read: {joined(broken, 3)}")
    rows = runs = [row for row in runs if row["status"] is not None]
    for key in filter(None, [sort, *(text.partition("=")[0] for text in args.filters)]):
        names = [*COLUMNS, *dict.fromkeys(name for row in runs if key not in COLUMNS for name in _config(row))]
        if runs and key not in names:
            raise UserError(f"{key}: these runs have no such column or config key{nearest(key, names)}")
    for key, _, wanted in (text.partition("=") for text in args.filters):
        rows = [row for row in rows if any(_matches(_value(row, key), value) for value in wanted.split(","))]
    return runs, rows


def _rows(paths: Sequence[str]) -> Iterator[Row]:
    """Yield a row (see `_row`) for each run below some folders, and one for each search of `fedopt tune`. No run is repeated.

    Symbolic links are not followed. The status in a row is None if summary.json cannot be read.

    Args:
        paths: The folders.

    Raises:
        UserError: A folder does not exist.
    """
    seen = set()
    for path in paths:
        if not os.path.isdir(path):
            raise UserError(f"{path}: there is no such folder; give a folder that contains runs")
        for place, inside, files in os.walk(path):
            if SEARCH in files and place != path:
                inside.clear()  # do not list the trials of a search, most of which have poor values by design
                yield _row(Path(place), ()) | {"status": "search"}
            elif {*files} & {*TEXTS[:4]} and (real := os.path.realpath(place)) not in seen:
                seen.add(real)
                yield _row(Path(place), files)


def _add_queued(rows: list[Row], paths: Sequence[str]) -> None:
    """Add the runs below these paths that are in the queue of a cluster to `rows`, in place.

    If a queued run already has a row, its status becomes queued, unless it is running or has ended.

    Args:
        rows: The rows of runs, as `_rows` yields them.
        paths: The folders.
    """
    known = {row["folder"].resolve(): row for row in rows}
    for folder in (entry.folder.resolve() for entry in queued()):
        row = known.get(folder)
        if row is None and any(folder.is_relative_to(Path(path).resolve()) for path in paths):
            rows.append(row := _row(Path(os.path.relpath(folder)), ()))
        if row is not None and row["status"] not in ("running", *OVER):
            row["status"] = "queued"


def _row(path: Path, files: Sequence[str]) -> Row:
    """Return the row of a run: its values by column, with its error message and its chosen option of each config group.

    Args:
        path: The run's folder.
        files: The names of the files in the folder. The sum of their sizes in bytes is the column ``size``.
    """
    folder, size = RunFolder(path), 0
    card, summary = folder.card(), folder.summary()
    for name in files:
        with suppress(OSError):  # the file was removed meanwhile
            size += os.lstat(path / name).st_size
    status, metric = summary.get("status"), next((metric.name for metric in card.get("metrics", ())), None)
    chosen, began = card.get("chosen", {}), None
    with suppress(KeyError, ValueError):
        began = datetime.fromisoformat(card["started"]).astimezone().strftime("%Y-%m-%d %H:%M")
    return {
        "status": "interrupted" if status == "running" and not folder.alive else status,
        "algo": chosen.get("algo"),
        "problem": chosen.get("problem"),
        "seed": card.get("seed"),
        "metric": metric,
        "value": numbers_of(None if status in LOST else summary.get("final")).get(metric or ""),
        "time": summary.get("seconds"),
        "date": began,
        "size": size,
        "folder": path,
        "error": summary.get("error", "") if status == "failed" else "",
        "chosen": chosen,
    }


def _config(row: Row) -> Row:
    """Return a run's config: the values by dotted key, and the chosen options by config group.

    If config.yaml is broken, only the options are returned. The result is cached in the row.

    Args:
        row: The row of the run, from `_row`.
    """
    if "config" not in row:
        row["config"] = dict(row["chosen"])
        with suppress(UserError):  # config.yaml cannot be read
            row["config"] |= flat(RunFolder(row["folder"]).config())
    return row["config"]


def _value(row: Row, key: str) -> object:
    """Return a value that describes a run; None if there is no such value.

    Args:
        row: The row of the run, from `_row`.
        key: The name of a column, or a dotted key of the run's config.
    """
    return row[key] if key in COLUMNS else _config(row).get(key)


def _matches(value: object, wanted: str) -> bool:
    """Return whether a value satisfies a filter of `fedopt ls`.

    Args:
        value: The value of a column or config key.
        wanted: The number that it must equal, or the shell pattern that it must match, as typed.
    """
    if (size := as_number(str(value))) is not None and size == as_number(wanted):
        return True
    text = json.dumps(value) if value is None or isinstance(value, bool) else str(value)  # null, true and false
    return fnmatchcase(text, wanted)


def _print(rows: Sequence[Row]) -> None:
    """Print the table of runs, with the error message of a failed run below its row.

    Args:
        rows: The rows of the runs, from `_row`.
    """
    cells = [[_cell(name, row[name]) for name in SHOWN] for row in rows]
    show_table(SHOWN, cells, NUMBERS, [[printable(row["error"])[: columns() - 4]] for row in rows])


def _cell(name: str, value: object) -> str:
    """Return the text of a cell of the table of runs.

    Args:
        name: The name of the column.
        value: The value in this column.
    """
    if value is None:
        return "-"
    return f"{value:.4g}" if name == "value" else str(value)


def _advise(rows: Sequence[Row], args: argparse.Namespace) -> None:
    """Print the number of runs, a command that compares them, and a command that resumes an interrupted run.

    The compare command names the runs that the filters choose; without filters, it names folders that contain runs.

    Args:
        rows: The rows that were printed.
        args: The arguments, with the attributes that `_chosen` adds.
    """
    counts = Counter(row["status"] for row in rows)
    show(f"{counted(len(rows), 'run')}: {', '.join(f'{number} {status}' for status, number in counts.items())}")
    compared = [row["folder"] for row in rows if row["status"] not in ("failed", "queued", "search")]
    if len(compared) > 1:
        places = compared if args.filters else [_below(folder, args.paths) for folder in compared]
        show(f"to compare: fedopt compare {shlex.join(map(str, dict.fromkeys(places)))}")
    if stopped := [row["folder"] for row in rows if row["status"] == "interrupted"]:
        show(f"to resume: fedopt resume=true {shlex.quote(f'output_dir={stopped[0]}')}")


def _below(folder: Path, paths: Sequence[str]) -> Path:
    """Return the folder directly below one of the paths that contains a run; the run's folder if it is one of the paths.

    Args:
        folder: The run's folder.
        paths: The folders that the command names.
    """
    path = next(path for path in paths if folder.is_relative_to(path))
    return Path(path, *folder.relative_to(path).parts[:1])
