"""`fedopt ls` and `fedopt rm`: a table of the runs in folders, from run.json and summary.json, and the deletion of runs.

config.yaml is read only if one of its keys is asked for.
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
from fedopt.errors import UserError, nearest, some
from fedopt.jobs import queued
from fedopt.results import FILES, LOST, OVER, TEXTS, RunFolder, numbers_of

Row = dict[str, Any]
COLUMNS = ("status", "algo", "problem", "seed", "metric", "value", "time", "date", "size", "folder")
SHOWN = ("status", "algo", "problem", "seed", "metric", "value", "date", "folder")
NUMBERS = ("seed", "value")  # flush right
SEARCH = "search.json"  # is in the folder of a search


def ls(arguments: list[str]) -> None:
    """Print a table of runs, and how to compare them and to resume an interrupted one.

    Raises UserError for a folder, a column or a key that does not exist.
    """
    parser = _parser("ls", "The runs in folders, at any depth. A search is one line; its folder lists its trials.")
    parser.add_argument("--sort", metavar="KEY", help=f"{', '.join(COLUMNS)}, or a config key (default: folder)")
    parser.add_argument("--reverse", "-r", action="store_true", help="the largest, or last, first")
    parser.add_argument("--json", action="store_true", help="print JSON, with all columns")
    args = parser.parse_intermixed_args(arguments)
    runs, rows = _chosen(args, args.sort)
    values = [(row, _value(row, args.sort or "folder")) for row in rows]
    values.sort(key=lambda pair: (pair[1] is None, order(str(pair[1]))), reverse=args.reverse)
    rows = [row for row, _ in values]
    if args.json:
        show(json.dumps([{name: row[name] for name in (*COLUMNS, "error")} for row in rows], default=str, indent=2))
    elif rows:
        _print(rows)
        _advise(rows, args)
    else:
        begin = "" if runs else "; fedopt algo=fedmsa problem=mco begins one"
        wanted = f" with {' '.join(args.filters)}" if args.filters else ""
        show(f"no run{wanted} in {', '.join(args.paths)}, which has {len(runs)}{begin}")


def rm(arguments: list[str]) -> None:
    """Delete runs after asking: those that the words choose, else those that failed. Runs in progress stay.

    Raises UserError if there is nobody to ask, and as `ls` does.
    """
    parser = _parser("rm", "Delete the runs that the words choose, without words those that failed, after asking.")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    args = parser.parse_intermixed_args(arguments)
    args.words = args.words or ["status=failed"]
    rows = [row for row in _chosen(args)[1] if row["status"] != "search"]  # it would run its trials again
    if busy := [row for row in rows if row["status"] in ("running", "queued")]:
        note(f"{counted(len(busy), 'run')} in progress, not deleted: {some([str(row['folder']) for row in busy], 3)}")
        rows = [row for row in rows if row not in busy]
    if rows:
        _print(rows)
    if rows and not args.yes:
        if not sys.stdin.isatty():
            raise UserError("fedopt rm: nobody is here to be asked; add --yes to delete these runs")
        asked = f"delete {counted(len(rows), 'run')} ({decimal(sum(row['size'] for row in rows))})? [y/N] "
        rows = rows if input(asked).strip().lower() in ("y", "yes") else []
    show(f"deleted {counted(sum(_delete(row['folder']) for row in rows), 'run')}")


def _delete(path: Path) -> bool:
    """Delete a run's files, and its folder if it has no others. Return whether that was possible; if not, a note says why."""
    folder = RunFolder(path)
    with closing(folder):
        try:
            folder.open()  # so that no run begins here meanwhile
        except UserError as error:
            note(str(error))
            return False
        for name in FILES:
            (path / name).unlink(missing_ok=True)
    with suppress(OSError):  # other files, which stay, or other runs
        path.rmdir()
        path.parent.rmdir()
    return True


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = Parser(prog=f"fedopt {name}", description=description)
    what = "a folder (default: outputs), or KEY=VALUE,... of a column or a config key: only the runs that fit, such as "
    what += "algo=fed* or 'date=2026-05-*'"
    parser.add_argument("words", nargs="*", metavar="WORD", help=what)
    return parser


def _chosen(args: argparse.Namespace, sort: str | None = None) -> tuple[list[Row], list[Row]]:
    """Return all runs in the folders of a command, and those that it chooses.

    Args:
        args: The arguments. `paths` and `filters` are added: the words that are folders, and the others.
        sort: A column or config key by which the rows are sorted.

    Raises:
        UserError: A folder, a column or a key does not exist.
    """
    args.filters = [word for word in args.words if "=" in word and not Path(word).exists()]
    args.paths = [word for word in args.words if word not in args.filters]
    if not args.paths:  # in a folder below a project's, its outputs
        places = (outputs(), *(folder / "outputs" for folder in Path.cwd().parents))
        args.paths = [os.path.relpath(next((place for place in places if place.is_dir()), "outputs"))]
    runs = list(_rows(args.paths)) if args.paths != ["outputs"] or Path("outputs").is_dir() else []
    _add_queued(runs, args.paths)
    if broken := [str(row["folder"]) for row in runs if row["status"] is None]:
        note(f"skipped {counted(len(broken), 'folder')} whose summary.json cannot be read: {some(broken, 3)}")
    rows = runs = [row for row in runs if row["status"] is not None]
    for key in filter(None, [sort, *(word.partition("=")[0] for word in args.filters)]):
        names = [*COLUMNS, *dict.fromkeys(name for row in runs if key not in COLUMNS for name in _config(row))]
        if runs and key not in names:
            raise UserError(f"{key}: none of these runs has such a column or config key{nearest(key, names)}")
    for key, _, wanted in (word.partition("=") for word in args.filters):
        rows = [row for row in rows if any(_matches(_value(row, key), value) for value in wanted.split(","))]
    return runs, rows


def _rows(paths: Sequence[str]) -> Iterator[Row]:
    """Yield a row (see `_row`) for each run in the folders, each run once, and one for each search.

    Symbolic links are not followed. The status is None if summary.json cannot be read. Raises UserError for a missing folder.
    """
    seen = set()
    for path in paths:
        if not os.path.isdir(path):
            raise UserError(f"{path}: there is no such folder; give one that holds runs")
        for place, inside, files in os.walk(path):
            if SEARCH in files and place != path:
                inside.clear()  # its trials have seeds of their own, and bad values by design
                yield _row(Path(place), ()) | {"status": "search"}
            elif {*files} & {*TEXTS[:4]} and (real := os.path.realpath(place)) not in seen:
                seen.add(real)
                yield _row(Path(place), files)


def _add_queued(rows: list[Row], paths: Sequence[str]) -> None:
    """Add to `rows`, in place, the runs below these paths that wait in a cluster's queue.

    A run that already has a row gets the status queued there, unless it is running or over.
    """
    known = {row["folder"].resolve(): row for row in rows}
    for folder in (entry.folder.resolve() for entry in queued()):
        row = known.get(folder)
        if row is None and any(folder.is_relative_to(Path(path).resolve()) for path in paths):
            rows.append(row := _row(Path(os.path.relpath(folder)), ()))
        if row is not None and row["status"] not in ("running", *OVER):
            row["status"] = "queued"


def _row(path: Path, files: Sequence[str]) -> Row:
    """Return the columns of a run, why it failed, and the options that it chose."""
    folder, size = RunFolder(path), 0
    card, summary = folder.card(), folder.summary()
    for name in files:
        with suppress(OSError):  # it is gone by now
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


def _config(row: Row) -> dict[str, Any]:
    """Return a run's config as dotted key -> value, together with config group -> chosen option. If config.yaml is broken, only
    the options.

    The result is cached in the row, under the key config. row: as `_row` returns it.
    """
    if "config" not in row:
        row["config"] = dict(row["chosen"])
        with suppress(UserError):  # it cannot be read
            row["config"] |= flat(RunFolder(row["folder"]).config())
    return row["config"]


def _value(row: Row, key: str) -> Any:
    return row[key] if key in COLUMNS else _config(row).get(key)


def _matches(value: Any, wanted: str) -> bool:
    """Return whether a value equals `wanted` as a number, or matches it as a shell pattern."""
    if (size := as_number(str(value))) is not None and size == as_number(wanted):
        return True
    words = {"None": "null", "True": "true", "False": "false"}
    return fnmatchcase(words.get(str(value), str(value)), wanted)


def _print(rows: Sequence[Row]) -> None:
    """Print the rows. Why a run failed is below its row."""
    cells = [[_cell(name, row[name]) for name in SHOWN] for row in rows]
    show_table(SHOWN, cells, NUMBERS, [[printable(row["error"])[: columns() - 4]] for row in rows])


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if name == "value" else str(value)


def _counts(rows: Sequence[Row]) -> str:
    counts = Counter(row["status"] for row in rows)
    return f"{counted(len(rows), 'run')}: {', '.join(f'{number} {status}' for status, number in counts.items())}"


def _advise(rows: Sequence[Row], args: argparse.Namespace) -> None:
    """Print how many runs there are, a command that compares them, and one that resumes an interrupted run.

    The command names the runs that filters choose; without filters, folders that hold some.

    Args:
        rows: The runs that are shown.
        args: The arguments, as `_chosen` leaves them.
    """
    show(_counts(rows))
    compared = [row["folder"] for row in rows if row["status"] not in ("failed", "queued", "search")]
    if len(compared) > 1:
        places = compared if args.filters else [_below(folder, args.paths) for folder in compared]
        show(f"to compare: fedopt compare {shlex.join(map(str, dict.fromkeys(places)))}")
    if stopped := [row["folder"] for row in rows if row["status"] == "interrupted"]:
        show(f"to resume: fedopt resume=true {shlex.quote(f'output_dir={stopped[0]}')}")


def _below(folder: Path, paths: Sequence[str]) -> Path:
    """Return the folder above a run's that is directly below one of the paths; the run's own folder if it is the path."""
    path = next(path for path in paths if folder.is_relative_to(path))
    return Path(path, *folder.relative_to(path).parts[:1])
